"""One connection, kept open: how it is set up, how threads use it in turn, and what becomes of it when it breaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Protocol

import sqlalchemy as sa

from claimjobs.database.connect import open_connection
from claimjobs.database.error_translation import TablesInUse, raised_as_sqlalchemy_does
from claimjobs.database.fair_lock import FairLock
from claimjobs.database.transactions import IN_UTC, in_utc
from claimjobs.dialects import Dialect
from claimjobs.dialects.sessions import UTC_NAMES
from claimjobs.errors import session_read_only, setting_unfit
from claimjobs.options import Liveness
from claimjobs.signals import shielded

SESSION_LOCKS: Final = "claimjobs_session_locks"
"""The key of a connection's `info` with the SessionLocks of its session. They go with the session."""

CALM_SECONDS: Final = 3.0
"""Seconds after a lost connection in which other owners may still reconnect: that takes a second and a heartbeat."""


class StatementCut(sa.exc.OperationalError):
    """The server did not answer within a lease, and another thread needed the connection, which was broken for that."""


class SessionLocks(Protocol):
    """The advisory locks of a session, which outlast its transaction (`contrib.advisory_locks.SessionKeyLocks`)."""

    def clear(self, connection: sa.Connection) -> None:
        """Release all of them."""


class KeptConnection:
    """Threads use it in turn, for a transaction each.

    The isolation is the dialect's, whatever the engine's default is. At REPEATABLE READ a claim would see the table as
    it was at the transaction's start, and lock gaps on InnoDB.
    """

    is_never_idle: ClassVar[bool] = False
    """Whether a statement is sent several times in a lease, whatever happens."""

    def __init__(self, engine: sa.Engine, dialect: Dialect, liveness: Liveness, tables: TablesInUse | None) -> None:
        self.disconnects = 0
        """How often a connection was lost during a transaction: its commit may have happened, or not."""
        self.pooled = False
        """Whether a pooler shares the session with other clients. Then claimjobs must not change its settings."""
        self._is_cut = False
        """Whether the connection was broken because a thread has used it for longer than a lease."""
        self.locks_are_seen = True
        """Whether a lock of the session is kept, and seen by all others. Otherwise only the lease tells who is dead."""
        self._engine = engine
        self._dialect = dialect
        self._liveness = liveness
        self._tables = tables
        self._table_name = None if tables is None else tables.name
        self._depends_on_zone = tables is not None and tables.depend_on_zone
        self._lock = FairLock(liveness.lease / 4, self._break_if_dead)
        self._connection: sa.Connection | None = None
        self._autocommit = False
        self._opened = 0.0
        self._was_read_only = False
        """Whether the last connection looked as if the engine made it read-only."""

    @property
    def is_calm(self) -> bool:
        """Whether the connection was not lost lately. An outage may have ended the connections of other owners, too."""
        return not self.disconnects or time.monotonic() - self._opened > CALM_SECONDS

    def close(self) -> None:
        """Close the connection; a later transaction opens another one."""
        with shielded(), self._lock:
            self._drop()

    # --- a transaction -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def once(self, *, autocommit: bool = False) -> Iterator[sa.Connection]:
        """A transaction that the end of the block commits, and an exception rolls back. `autocommit`: the block sends
        one statement, which commits itself if the session is ours.
        """
        with shielded(), self._lock:
            connection = self._open()
            try:
                with self._breaking(connection):
                    self._set_autocommit(connection, autocommit and not self.pooled)
                    if not self._autocommit:
                        with connection.begin(), in_utc(connection, self._dialect, depends=self._depends_on_zone):
                            yield connection
                    else:
                        try:
                            yield connection
                        except BaseException:
                            connection.rollback()
                            raise
                        connection.commit()  # the transaction that SQLAlchemy may have begun
            finally:
                self._clear_up()

    def _set_autocommit(self, connection: sa.Connection, autocommit: bool) -> None:
        if autocommit != self._autocommit:
            # Each call of `execution_options` would add a callback that stays until the connection is closed.
            level: Any = "AUTOCOMMIT" if autocommit else self._dialect.isolation
            driver_connection: Any = connection.connection.dbapi_connection
            connection.dialect.set_isolation_level(driver_connection, level)
            self._autocommit = autocommit

    def _clear_up(self) -> None:
        """Release the locks that are kept until a transaction has ended. If that fails, end the session, which has the
        same effect."""
        connection = self._connection
        if connection is None or connection.closed or connection.invalidated or SESSION_LOCKS not in connection.info:
            return
        try:
            locks: SessionLocks = connection.info[SESSION_LOCKS]
            locks.clear(connection)
        except sa.exc.SQLAlchemyError:
            self._drop()

    # --- a connection that breaks ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _breaking(self, connection: sa.Connection) -> Iterator[None]:
        """Drop a connection that breaks. Raises StatementCut if another thread broke it, TableMissing if a table of the
        queue is missing, and SettingUnfit.
        """
        self._is_cut = False
        try:
            with raised_as_sqlalchemy_does(connection):
                yield
        except sa.exc.DBAPIError as error:
            if self._dialect.errors.broken_kind(error):
                self.disconnects += 1
                self._drop()
                if self._is_cut:
                    cause = error.orig or error
                    raise StatementCut(error.statement, error.params, cause, connection_invalidated=True) from error
            elif self._autocommit and self._connection is not None and self._dialect.errors.is_stale_plan(error):
                self._dialect.sessions.forget_prepared(self._connection.connection.driver_connection)
            self._raise_what_it_means(error)
            raise

    def _raise_what_it_means(self, error: BaseException) -> None:
        if self._tables is not None and (missing := self._tables.missing(error)):
            raise missing from error
        if unfit := self._dialect.errors.unfit_setting(error):
            raise setting_unfit(*unfit) from error

    def _break_if_dead(self) -> None:
        """Break a connection that a thread uses for longer than a lease: it is dead, or sends what takes too long."""
        if time.monotonic() - self._lock.since > self._liveness.lease:
            self._is_cut = True
            self._break()

    def _break(self) -> None:
        connection = self._connection
        with contextlib.suppress(sa.exc.SQLAlchemyError, AttributeError):
            if connection is not None and not connection.closed:
                self._dialect.sessions.break_connection(connection.connection.driver_connection)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                # It must not return to the pool, because it has our settings and our session lock.
                connection.invalidate()
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.close()

    # --- a new connection --------------------------------------------------------------------------------

    def _open(self) -> sa.Connection:
        if self._connection is not None and (self._connection.invalidated or self._connection.closed):
            # An exception that is no error of SQL did this, or a user's function that got the connection.
            self.disconnects += 1
            self._drop()
        if self._connection is None:
            self._connection = open_connection(self._engine)
            self._autocommit = False
            self._opened = time.monotonic()
            try:
                with raised_as_sqlalchemy_does(self._connection):
                    self._connection.execution_options(isolation_level=self._dialect.isolation)
                self._set_up(self._connection)
            except BaseException as error:
                self._drop()
                self._raise_what_it_means(error)
                raise
        return self._connection

    def _set_up(self, connection: sa.Connection) -> None:
        with connection.begin():
            declared, sessions = self._liveness.session_lock, self._dialect.sessions
            self.pooled = not (sessions.is_as_greeted(connection) if declared is None else declared)
            self.locks_are_seen = not self.pooled and sessions.locks_are_seen(connection)
            if self.pooled:
                self._accept_settings(connection)
            else:
                for setting in sessions.settings(self._liveness.lock_timeout):
                    connection.execute(sa.text(setting))
                connection.info[IN_UTC] = True
                if not self.locks_are_seen:
                    sessions.catch_up(connection)
            self._limit_silence(connection)
        with connection.begin():
            self._on_open(connection)

    def _accept_settings(self, connection: sa.Connection) -> None:
        """Raise SettingUnfit if our statements would fail in a session whose settings we must not change; note whether
        it is in UTC.
        """
        sessions = self._dialect.sessions
        if found := sessions.unfit_setting(connection):
            raise setting_unfit(*found)
        connection.info[IN_UTC] = not self._depends_on_zone or connection.scalar(sessions.zone) in UTC_NAMES

    def _limit_silence(self, connection: sa.Connection) -> None:
        """Let both ends give up a connection on which the other has been silent for a lease: its machine may be gone.

        If only the client did, the server would keep the locks of a transaction that nobody can end any more.
        """
        sessions = self._dialect.sessions
        if sessions.ends_idle_clients and not self.is_never_idle:
            return
        if sessions.is_as_greeted(connection):  # behind a pooler the server's client is the pooler
            connection.execute(sa.text(sessions.silence_setting(self._liveness.lease))).close()
        sessions.limit_silence(connection.connection.driver_connection, self._liveness.lease)

    def _on_open(self, connection: sa.Connection) -> None:
        """Called in a transaction of its own on every new connection. An owner's connection registers the owner."""

    def _require_writable(self, connection: sa.Connection) -> None:
        """Raise SettingUnfit if the engine makes its sessions read-only. A server that is may not stay so, and may have
        changed since this transaction began: only two connections in a row tell.
        """
        found = self._dialect.sessions.read_only_setting(connection)
        if found and self._was_read_only:
            raise session_read_only(self._table_name or "", *found)
        self._was_read_only = found is not None

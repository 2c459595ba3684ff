"""Connector: one connection for short transactions, which run again after an error that may pass."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, TypeVar

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.database.attempts import Attempts
from claimjobs.database.clock import IN_UTC, in_utc
from claimjobs.database.connect import open_connection
from claimjobs.database.error_translation import TablesInUse, raised_as_sqlalchemy_does, reason
from claimjobs.database.fair_lock import FairLock, Ticket
from claimjobs.dialects import Dialect
from claimjobs.dialects.error_codes import FULL, READ_ONLY, UNAVAILABLE
from claimjobs.errors import ReadOnly, ServerUnreachable, StatementTimedOut, session_read_only, setting_unfit
from claimjobs.log_events import OUTAGE_OVER, TRYING_AGAIN
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.signals import shielded

Result = TypeVar("Result")

SESSION_LOCKS: Final = "claimjobs_session_locks"
"""The key of a connection's `info` with the SessionLocks of its session. They go with the session."""

CALM: Final = 3.0
"""Seconds after a lost connection in which other owners may still reconnect: that takes a second and a heartbeat."""

_NOTHING: Final = contextlib.nullcontext()

log = logging.getLogger("claimjobs.connection")


class SessionLocks(Protocol):
    """The advisory locks of a session, which outlast its transaction (`contrib.advisory_locks.SessionKeyLocks`)."""

    def clear(self, connection: sa.Connection) -> None:
        """Release all of them."""


@dataclass(frozen=True)
class IdleConnection:
    """A connection that no other thread needs at the moment."""

    connection: sa.Connection
    wait: Callable[[float], bool]
    """Wait to be woken, for at most so many seconds; whether the wait ended earlier."""
    is_needed: Callable[[], bool]
    """Whether another thread wants the connection now. Call it at least once in a lease."""


class Connector:
    """One connection, kept open. Threads use it in turn, for a transaction each.

    The isolation is the dialect's, whatever the engine's default is. At REPEATABLE READ a claim would see the table as
    it was at the transaction's start, and lock gaps on InnoDB.
    """

    is_never_idle: ClassVar[bool] = False
    """Whether a statement is sent several times in a lease, whatever happens."""

    def __init__(
        self,
        engine: sa.Engine,
        dialect: Dialect,
        liveness: Liveness,
        report: Report,
        *,
        tables: TablesInUse | None = None,
        control: Control | None = None,
    ) -> None:
        """`tables`: those that the statements use. An error for a missing table names it.

        `control`: after its `stop` transactions are tried again for at most a lease.
        """
        self.lost = 0
        """How often a connection was lost during a transaction: its commit may have happened, or not."""
        self.pooled = False
        """Whether a pooler shares the session with other clients. Then claimjobs must not change its settings."""
        self.locks_are_seen = True
        """Whether a lock of the session is kept, and seen by all others. Otherwise only the lease tells who is dead."""
        self._engine = engine
        self._dialect = dialect
        self._tables = tables
        self._liveness = liveness
        self._report = report
        self._control = control
        self._lock = FairLock()
        self._connection: sa.Connection | None = None
        self._autocommit = False
        self._opened = 0.0
        self._outage: Outage | None = None

    @property
    def is_calm(self) -> bool:
        """Whether the connection was not lost lately. An outage may have ended the connections of other owners, too."""
        return not self.lost or time.monotonic() - self._opened > CALM

    def transaction(self, work: Callable[[sa.Connection], Result], patience: float | None = None) -> Result:
        """Run `work` in a transaction and commit it. Tried again, and raises, as `attempts`."""
        for attempt in self.attempts(patience):
            with attempt as connection:
                result = work(connection)
        return result

    def scalar(self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None) -> Any:
        """The first value that one statement returns, in a transaction of its own; None if there is no row."""
        for attempt in self.attempts(patience):
            with attempt as connection:
                value = connection.scalar(statement, values)
        return value

    def rows(
        self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None
    ) -> Sequence[sa.Row[Any]]:
        """All rows that one statement returns, in a transaction of its own."""
        for attempt in self.attempts(patience):
            with attempt as connection:
                rows = connection.execute(statement, values).all()
        return rows

    def write(self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None) -> int:
        """Run one statement in a transaction of its own; how many rows it wrote."""
        for attempt in self.attempts(patience):
            with attempt as connection:
                count = connection.execute(statement, values).rowcount
        return count

    def attempts(
        self,
        patience: float | None = None,
        *,
        unless: Control | None = None,
        autocommit: bool = False,
        divisible: bool | None = None,
    ) -> Attempts:
        """The attempts of one transaction: `for attempt in connector.attempts(): with attempt as connection: ...`

        If one fails, another follows, for at most `patience` seconds: in the same session after a deadlock, a lock
        timeout or a serialization failure; on a new connection after a lost one, or if the server restarts, is full,
        read-only or has too many connections. Each error is counted, and the first of an outage is logged. When the
        time is over, the error is raised as SQLAlchemy raises it, or as ServerUnreachable, ReadOnly or
        StatementTimedOut.

        There is no further attempt when `unless` is stopping. `divisible`: the caller divides work that fails, so an
        error that the work itself may cause (a statement that takes too long) is raised after a few attempts; if that
        is False, after a lease; otherwise when the time is over. `autocommit`: the work is a single statement. It is
        sent without BEGIN and COMMIT if the session is ours.
        """
        patience = self._liveness.patience if patience is None else patience
        unclear = self._liveness.lease if divisible is False else math.inf
        return Attempts(
            self, patience, unless, autocommit=autocommit, divisible=bool(divisible), unclear_patience=unclear
        )

    def deadline(self, failed_since: float, patience: float) -> float:
        """Until when a transaction is tried again that failed first at this time, by this machine's clock.

        After `stop` a lease is enough: then others may have its jobs, and a consumer that is told to end must end.
        """
        stopped_at = math.inf if self._control is None else self._control.stopped_at
        return min(failed_since + patience, max(failed_since, stopped_at) + self._liveness.lease)

    def raise_in_words(self, error: Exception) -> None:
        """Raise StatementTimedOut or ReadOnly for the last error of all attempts, if it is one of these."""
        if self._dialect.errors.timed_out(error):
            raise StatementTimedOut(reason(error)) from error
        if isinstance(error, sa.exc.DBAPIError) and self._kind(error) == READ_ONLY:
            raise ReadOnly(self._table_name, reason(error)) from error

    @property
    def _table_name(self) -> str | None:
        return None if self._tables is None else self._tables.name

    def close(self) -> None:
        """Close the connection; a later transaction opens another one."""
        with self._locked():
            self._drop()

    # --- waiting on the connection -----------------------------------------------------------------------

    @contextlib.contextmanager
    def idle(self) -> Iterator[IdleConnection]:
        """The connection for a thread that waits on it. Each statement is a transaction of its own, with one attempt.

        Another thread that needs the connection ends the wait. Raises SQLAlchemy's errors, or ServerUnreachable.
        """
        try:
            with shielded(), self._locked():
                connection = self._open()
                with self._breaking(connection):
                    self._set_autocommit(connection, False)
                    with (
                        contextlib.closing(self._dialect.waking.listener(connection)) as listener,
                        self._lock.releasable_by(listener.end),
                        connection.begin(),
                        self._dialect.waking.autocommit(connection),
                    ):
                        yield IdleConnection(connection, listener.wait, self._is_needed)
        except Exception as error:
            self.note(error)
            raise
        self.recovered()

    def end_wait(self) -> None:
        """End the wait of `idle`, if there is one."""
        self._lock.end_wait()

    def _is_needed(self) -> bool:
        self._lock.since = time.monotonic()
        return self._lock.has_waiters

    # --- a single attempt --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def once(self, *, autocommit: bool = False) -> Iterator[sa.Connection]:
        """A single attempt: a transaction that the end of the block commits, and an exception rolls back."""
        with shielded(), self._locked():
            connection = self._open()
            try:
                with self._breaking(connection):
                    self._set_autocommit(connection, autocommit and not self.pooled)
                    with _Autocommit(connection) if self._autocommit else connection.begin(), self._in_utc(connection):
                        yield connection
            finally:
                self._clear_up()

    def _set_autocommit(self, connection: sa.Connection, autocommit: bool) -> None:
        if autocommit != self._autocommit:
            # Each call of `execution_options` would add a callback that stays until the connection is closed.
            level: Any = "AUTOCOMMIT" if autocommit else self._dialect.isolation
            driver_connection: Any = connection.connection.dbapi_connection
            connection.dialect.set_isolation_level(driver_connection, level)
            self._autocommit = autocommit

    @contextlib.contextmanager
    def _breaking(self, connection: sa.Connection) -> Iterator[None]:
        """Drop a connection that breaks. Raises TableMissing if a table of the queue is missing, and SettingUnfit."""
        try:
            with raised_as_sqlalchemy_does(connection):
                yield
        except sa.exc.DBAPIError as error:
            if self._dialect.errors.broken_kind(error):
                self.lost += 1
                self._drop()
            elif self._autocommit and self._connection is not None and self._dialect.errors.is_stale_plan(error):
                self._dialect.sessions.forget_prepared(self._connection.connection.driver_connection)
            self._raise_what_it_means(error)
            raise

    def _raise_what_it_means(self, error: BaseException) -> None:
        missing = self._tables.missing(error) if self._tables else None
        if missing is not None:
            raise missing from error
        if unfit := self._dialect.errors.unfit_setting(error):
            raise setting_unfit(*unfit) from error

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

    def _locked(self) -> Ticket:
        """Let one thread use the connection. If it takes longer than a lease, the connection is dead: break it."""
        return self._lock.ticket(self._liveness.lease / 4, self._break_if_dead)

    def _break_if_dead(self) -> None:
        if time.monotonic() - self._lock.since > self._liveness.lease:
            self._break()

    def _break(self) -> None:
        connection = self._connection
        with contextlib.suppress(sa.exc.SQLAlchemyError, AttributeError):
            if connection is not None and not connection.closed:
                self._dialect.sessions.break_connection(connection.connection.driver_connection)

    def _open(self) -> sa.Connection:
        if self._connection is not None and (self._connection.invalidated or self._connection.closed):
            # An exception that is no error of SQL did this, or a user's function that got the connection.
            self.lost += 1
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
            if not self.pooled:
                for setting in sessions.settings(self._liveness.lock_timeout):
                    connection.execute(sa.text(setting))
                if not self.locks_are_seen:
                    sessions.catch_up(connection)
            else:
                self._require_fit(connection)
                self._note_zone(connection)
            self._limit_silence(connection)
        with connection.begin():
            self._on_open(connection)

    def _note_zone(self, connection: sa.Connection) -> None:
        """Note whether the session is in UTC. One that we do not set up need not be."""
        connection.info[IN_UTC] = not self._depends_on_zone or self._dialect.sessions.is_in_utc(connection)

    @property
    def _depends_on_zone(self) -> bool:
        return self._tables is not None and self._tables.depend_on_zone

    def _in_utc(self, connection: sa.Connection) -> AbstractContextManager[None]:
        if connection.info.get(IN_UTC, True):
            return _NOTHING
        return in_utc(connection, self._dialect, depends=True)

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

    def _require_fit(self, connection: sa.Connection) -> None:
        """Raise SettingUnfit if our statements would fail in a shared session, whose settings we must not change."""
        if found := self._dialect.sessions.unfit_setting(connection):
            raise setting_unfit(*found)

    def _require_writable(self, connection: sa.Connection) -> None:
        """Raise SettingUnfit if the engine makes its sessions read-only. A server that is may not stay so."""
        if found := self._dialect.sessions.read_only_setting(connection):
            raise session_read_only(self._table_name or "", *found)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                # It must not return to the pool, because it has our settings and our session lock.
                connection.invalidate()
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.close()

    # --- outages -----------------------------------------------------------------------------------------

    def _kind(self, error: BaseException | None) -> str | None:
        if isinstance(error, ReadOnly):
            return READ_ONLY
        if isinstance(error, ServerUnreachable):
            problem = self._dialect.errors.connect_problem(error.__cause__ or error)
            return FULL if problem == FULL else UNAVAILABLE
        if not isinstance(error, sa.exc.DBAPIError):
            return None
        return self._dialect.errors.broken_kind(error) or self._dialect.errors.transient_kind(error)

    def is_passing(self, error: BaseException) -> bool:
        """Whether another attempt may succeed after this error."""
        return self._kind(error) is not None

    def may_be_of_a_row(self, error: BaseException) -> bool:
        """Whether a single row of the work may be the cause of this error."""
        return isinstance(error, sa.exc.DBAPIError) and self._dialect.errors.may_be_of_a_row(error)

    def note(self, error: BaseException) -> None:
        """Count a failed attempt by its kind, whether or not another one follows; log the first of an outage."""
        kind = self._kind(error)
        if kind is None:
            return
        self._report.transients[kind] += 1
        if self._outage is not None:
            self._outage.attempts += 1
        elif kind not in self._dialect.errors.transient.values():
            self._outage = Outage(kind)
            fields = {"event": TRYING_AGAIN, "kind": kind, "error": reason(error)}
            log.warning("%s (%s): trying again", kind, fields["error"], extra=fields)

    def recovered(self) -> None:
        """An attempt succeeded: log the end of an outage."""
        outage, self._outage = self._outage, None
        if outage is not None:
            seconds = time.monotonic() - outage.since
            fields = {"event": OUTAGE_OVER, "kind": outage.kind, "seconds": round(seconds, 1)}
            log.warning(
                "%s: over after %.1f s and %d more attempts", outage.kind, seconds, outage.attempts, extra=fields
            )


class _Autocommit:
    """A `with` block around one statement that commits itself. It ends the transaction that SQLAlchemy may begin."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._connection.in_transaction():
            self._connection.commit() if kind is None else self._connection.rollback()


@dataclass
class Outage:
    """An outage, from its first error until the first success."""

    kind: str
    since: float = field(default_factory=time.monotonic)
    attempts: int = 0

"""Connector: one connection for short transactions, that comes through whatever passes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from claimjobs.backoff import Backoff
from claimjobs.control import Control
from claimjobs.database.connect import open_connection
from claimjobs.database.error_translation import TablesInUse, reason
from claimjobs.database.fair_lock import FairLock, Ticket
from claimjobs.dialects import Dialect
from claimjobs.errors import ServerUnreachable, SettingUnfit, StatementTimedOut
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.signals import shielded

Result = TypeVar("Result")

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
"""Seconds: before its nth try a transaction waits for a random part of the first, doubled n times, up to the longest.
The losers of a deadlock part ways by that."""

AFTERWARDS: Final = "claimjobs_afterwards"
"""Where the `info` of a connection holds what is to be called with it when its transaction has ended, either way."""

CALM: Final = 3.0
"""Seconds after a lost connection in which others may not be back yet: reconnecting takes them one, and a beat."""

log = logging.getLogger("claimjobs.connection")


@dataclass(frozen=True)
class IdleConnection:
    """A connection that nobody else needs for the moment."""

    connection: sa.Connection
    wait: Callable[[float], bool]
    """Wait to be called, for so many seconds at most: whether that ended before them."""
    is_needed: Callable[[], bool]
    """Whether somebody wants the connection now. To be asked at least once in a lease: so it is seen to be alive."""


class Connector:
    """One connection, kept open. Threads take turns, a transaction each.

    Isolation is the dialect's, whatever the engine's default: a claim at REPEATABLE READ would see a frozen table
    and, on InnoDB, lock gaps.
    """

    def __init__(
        self,
        engine: sa.Engine,
        dialect: Dialect,
        liveness: Liveness,
        report: Report,
        *,
        tables: TablesInUse | None = None,
    ) -> None:
        """`tables`: those that the work is about, so that a missing one is named."""
        self.lost = 0
        """How often a connection was lost in the middle of work: its last commit may have happened, or not."""
        self.pooled = False
        """Whether somebody stands between us and the server: a setting would be made in a stranger's session."""
        self._engine = engine
        self._dialect = dialect
        self._tables = tables
        self._liveness = liveness
        self._report = report
        self._lock = FairLock()
        self._connection: sa.Connection | None = None
        self._alone = False
        self._opened = 0.0
        self._trouble: Trouble | None = None
        self._giving_up = threading.Event()

    @property
    def is_calm(self) -> bool:
        """Whether the connection was not lost lately. What ended it may have ended everybody's."""
        return not self.lost or time.monotonic() - self._opened > CALM

    def transaction(
        self,
        work: Callable[[sa.Connection], Result],
        patience: float | None = None,
        *,
        unconfirmed: list[BaseException] | None = None,
        unless: Control | None = None,
        alone: bool = False,
    ) -> Result:
        """Run `work` in a transaction and commit it; `patience` seconds at most, if it does not succeed at once.

        `alone`: the work is a single statement, which is a transaction by itself, and is sent without BEGIN and COMMIT
        where the session is ours.

        A deadlock, lock timeout or serialization failure rolls it back and runs it again. A lost connection, a
        restarting, full or read-only server, too many connections: the same on a new connection. Each is counted,
        and told of once. Then the error is raised as SQLAlchemy raises it, or ServerUnreachable, or StatementTimedOut.

        `unconfirmed` collects the errors after which nobody knows whether a try was committed. There is no
        further try once `unless` was told to stop.
        """
        attempts = self.attempts(patience, unconfirmed=unconfirmed, unless=unless, alone=alone)
        for attempt in attempts:
            with attempt as connection:
                result = work(connection)
        return result

    def scalar(self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None) -> Any:
        """The first value that one statement returns, in a transaction of its own; None where there is no row."""
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
        unconfirmed: list[BaseException] | None = None,
        unless: Control | None = None,
        alone: bool = False,
    ) -> Attempts:
        """The tries of one transaction, with the parameters of `transaction`:

        `for attempt in connector.attempts(): with attempt as connection: ...`
        """
        patience = self._liveness.patience if patience is None else patience
        return Attempts(self, patience, unless, unconfirmed, alone=alone)

    def raise_if_timed_out(self, error: Exception) -> None:
        """Raises StatementTimedOut, in place of its error, for a statement that was never given the time it takes."""
        if self._dialect.errors.timed_out(error):
            raise StatementTimedOut(reason(error)) from error

    def give_up(self) -> None:
        """Let transactions that cannot succeed now fail rather than try on; the connector is about to be closed."""
        self._giving_up.set()

    def close(self) -> None:
        """Close the connection; a later transaction opens another one."""
        with self._locked():
            self._drop()
        self._giving_up.clear()

    # --- a turn to wait in -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def idle(self) -> Iterator[IdleConnection]:
        """The connection for one thread, which waits on it. Each statement is a transaction of its own, tried once.

        A thread that needs the connection meanwhile ends the waiting. Raises as SQLAlchemy, or ServerUnreachable.
        """
        try:
            with shielded(), self._locked():
                connection = self._open()
                self._commit_by_itself(connection, False)
                with (
                    contextlib.closing(self._dialect.waking.listener(connection)) as listener,
                    self._lock.releasable_by(listener.end),
                    self._breaking(),
                    connection.begin(),
                    self._dialect.waking.autocommit(connection),
                ):
                    yield IdleConnection(connection, listener.wait, self._is_needed)
        except Exception as error:
            self.note(error)
            raise
        self.recovered()

    def end_wait(self) -> None:
        """End what `idle` waits for, if anything."""
        self._lock.end_wait()

    def _is_needed(self) -> bool:
        self._lock.since = time.monotonic()
        return self._lock.has_waiters

    # --- a single try ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def once(self, unconfirmed: list[BaseException] | None = None, *, alone: bool = False) -> Iterator[sa.Connection]:
        """A single try: a transaction that the end of the block commits, and an exception rolls back."""
        with shielded(), self._locked():
            connection = self._open()
            self._commit_by_itself(connection, alone and not self.pooled)
            try:
                with _Autocommit(connection) if self._alone else connection.begin():
                    yield connection
            except sa.exc.DBAPIError as error:
                self._learn_from(error, unconfirmed)
                raise
            finally:
                self._clear_up()

    def _commit_by_itself(self, connection: sa.Connection, alone: bool) -> None:
        if alone != self._alone:
            # Not by `execution_options`, each of which adds a callback to a connection that is given back only at the
            # end: a hundred claims left two hundred behind.
            level: Any = "AUTOCOMMIT" if alone else self._dialect.isolation
            driver_connection: Any = connection.connection.dbapi_connection
            connection.dialect.set_isolation_level(driver_connection, level)
            self._alone = alone

    @contextlib.contextmanager
    def _breaking(self, unconfirmed: list[BaseException] | None = None) -> Iterator[None]:
        """A connection that breaks is dropped."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            self._learn_from(error, unconfirmed)
            raise

    def _learn_from(self, error: sa.exc.DBAPIError, unconfirmed: list[BaseException] | None) -> None:
        """Drop a connection that broke. Raises TableMissing where a table of the queue is gone."""
        if self._dialect.errors.broken_kind(error):
            self.lost += 1
            self._drop()
            if unconfirmed is not None:
                unconfirmed.append(error)
        self._name_what_is_missing(error)

    def _name_what_is_missing(self, error: BaseException) -> None:
        missing = self._tables.missing(error) if self._tables else None
        if missing is not None:
            raise missing from error

    def _clear_up(self) -> None:
        """Do what is left to be done when a transaction has ended. Where it fails, the end of the session does it."""
        connection = self._connection
        if connection is None or connection.closed or connection.invalidated or AFTERWARDS not in connection.info:
            return
        try:
            connection.info[AFTERWARDS](connection)
        except sa.exc.SQLAlchemyError:
            self._drop()

    def _locked(self) -> Ticket:
        """One thread at a time. Whoever keeps the connection for longer than a lease waits for a dead line: cut it."""
        return self._lock.ticket(self._liveness.lease / 4, self._cut_if_dead)

    def _cut_if_dead(self) -> None:
        if time.monotonic() - self._lock.since > self._liveness.lease:
            self._cut()

    def _cut(self) -> None:
        connection = self._connection
        with contextlib.suppress(sa.exc.SQLAlchemyError, AttributeError):
            if connection is not None and not connection.closed:
                self._dialect.sessions.break_connection(connection.connection.driver_connection)

    def _open(self) -> sa.Connection:
        if self._connection is not None and (self._connection.invalidated or self._connection.closed):
            # By an exception that is no error of SQL; or by a function of the user's that was given it.
            self.lost += 1
            self._drop()
        if self._connection is None:
            connection = open_connection(self._engine)
            self._connection = connection.execution_options(isolation_level=self._dialect.isolation)
            self._alone = False
            self._opened = time.monotonic()
            try:
                self._set_up(self._connection)
            except BaseException as error:
                self._drop()
                self._name_what_is_missing(error)
                raise
        return self._connection

    def _set_up(self, connection: sa.Connection) -> None:
        with connection.begin():
            declared = self._liveness.session_lock
            self.pooled = not (self._dialect.sessions.are_ours(connection) if declared is None else declared)
            if not self.pooled:
                for setting in self._dialect.sessions.settings(self._liveness.lock_timeout):
                    connection.execute(sa.text(setting))
            else:
                self._require_fit(connection)
        with connection.begin():
            self._on_open(connection)

    def _on_open(self, connection: sa.Connection) -> None:
        """Called in a transaction of its own on every new connection. An owner's connection registers the owner."""

    def _require_fit(self, connection: sa.Connection) -> None:
        """Raises SettingUnfit for a session that is not ours to set."""
        if found := self._dialect.sessions.unfit_setting(connection):
            raise SettingUnfit(*found)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                # Not back into the pool: our settings and our session lock are on it.
                connection.invalidate()
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.close()

    # --- trouble ---------------------------------------------------------------------------------------

    def _kind(self, error: BaseException | None) -> str | None:
        if isinstance(error, ServerUnreachable):
            return self._dialect.errors.connect_kind(error.__cause__ or error)
        if not isinstance(error, sa.exc.DBAPIError):
            return None
        return self._dialect.errors.broken_kind(error) or self._dialect.errors.transient_kind(error)

    def is_passing(self, error: BaseException) -> bool:
        """Whether what failed with this error may succeed when it is tried again."""
        return self._kind(error) is not None

    def note(self, error: BaseException) -> None:
        """Count a failed try by its kind, also one that is not tried again here; log the first of an outage."""
        kind = self._kind(error)
        if kind is None:
            return
        self._report.transients[kind] += 1
        if self._trouble is not None:
            self._trouble.tries += 1
        elif kind not in self._dialect.errors.transient.values():
            self._trouble = Trouble(kind)
            log.warning("%s (%s): trying again", kind, reason(error))

    def recovered(self) -> None:
        """A try succeeded: log the end of an outage."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            seconds = time.monotonic() - trouble.since
            log.warning("%s: over after %.1f s and %d more tries", trouble.kind, seconds, trouble.tries)

    def pause(self, seconds: float) -> bool:
        """Wait before another try; whether `give_up` was called, so that there is to be none."""
        return self._giving_up.wait(seconds)


class Attempts:
    """The tries of one transaction, until one succeeds. To be iterated over once; each try is used in a `with` block.

    An error that may pass ends the block without an exception, and after a pause there is another try; so does a
    connection that cannot be had. Any other error is raised, and so is the last one where there is no time left.
    """

    def __init__(
        self,
        connector: Connector,
        patience: float,
        unless: Control | None,
        unconfirmed: list[BaseException] | None,
        *,
        alone: bool,
    ) -> None:
        self._connector = connector
        self._patience = patience
        self._unless = unless
        self._unconfirmed = unconfirmed
        self._alone = alone
        self._succeeded = False
        self._deadline: float | None = None
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.0)

    def __iter__(self) -> Iterator[Attempts]:
        while not self._succeeded:
            yield self

    def __enter__(self) -> sa.Connection:
        while True:
            self._once = self._connector.once(self._unconfirmed, alone=self._alone)
            try:
                return self._once.__enter__()
            except Exception as error:
                if not self._may_go_on(error):
                    raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._once.__exit__(kind, error, trace)
        except Exception as failed:  # of the commit
            return self._swallows(failed)
        if error is not None:
            return isinstance(error, Exception) and self._may_go_on(error)
        self._succeeded = True
        self._connector.recovered()
        return False

    def _swallows(self, error: Exception) -> bool:
        if not self._may_go_on(error):
            raise error
        return True

    def _may_go_on(self, error: Exception) -> bool:
        """Whether there is to be another try; after the pause before it."""
        if not self._connector.is_passing(error):
            return False
        self._connector.note(error)
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._patience
        if now >= self._deadline or (self._unless is not None and self._unless.stopping):
            self._connector.raise_if_timed_out(error)
            return False
        return not self._connector.pause(self._backoff.pause())


class _Autocommit:
    """For a `with` block around one statement that commits itself: ends what SQLAlchemy begins if it sends that."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._connection.in_transaction():
            self._connection.commit() if kind is None else self._connection.rollback()


class Trouble:
    """An outage, from its first error until the first success."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.since = time.monotonic()
        self.tries = 0

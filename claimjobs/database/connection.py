"""Connector: one connection for short transactions, which run again after an error that may pass."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.database.error_translation import TablesInUse, reason
from claimjobs.database.kept_connection import KeptConnection, StatementCut
from claimjobs.dialects import Dialect
from claimjobs.dialects.error_codes import FULL, READ_ONLY, UNAVAILABLE
from claimjobs.errors import ReadOnly, ServerUnreachable, StatementTimedOut
from claimjobs.log_events import OUTAGE_OVER, TRYING_AGAIN
from claimjobs.options import Backoff, Liveness
from claimjobs.report import Report
from claimjobs.signals import raise_delayed, shielded

Result = TypeVar("Result")

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
"""Seconds. The pause before an attempt is a random part of the first, doubled with each attempt up to the longest. So
the losers of a deadlock try again at different times."""
FIRST_AMONG_PRIMARIES: Final = 0.1
"""The first pause on one of several primaries. A transaction is refused there before its server has applied what
another one has committed: at once it would often be refused again."""
DOUBTFUL: Final = 5
"""Attempts at work that can be divided, which end in an error that one of its rows may cause each time."""

log = logging.getLogger("claimjobs.connection")


@dataclass
class Outage:
    """An outage, from its first error until the first success."""

    kind: str
    since: float = field(default_factory=time.monotonic)
    attempts: int = 0


class Connector(KeptConnection):
    """One connection for short transactions. A transaction is tried again after an error that may pass."""

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
        super().__init__(engine, dialect, liveness, tables)
        self._report = report
        self._control = control
        self._outage: Outage | None = None

    def transaction(self, work: Callable[[sa.Connection], Result], patience: float | None = None) -> Result:
        """Run `work` in a transaction and commit it. Tried again, and raises, as `attempts`."""
        for attempt in self.attempts(patience):
            with attempt as connection:
                result = work(connection)
        return result

    def scalar(self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None) -> Any:
        """The first value that one statement returns, in a transaction of its own; None if there is no row."""
        return self.transaction(lambda connection: connection.scalar(statement, values), patience)

    def rows(
        self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None
    ) -> Sequence[sa.Row[Any]]:
        """All rows that one statement returns, in a transaction of its own."""
        return self.transaction(lambda connection: connection.execute(statement, values).all(), patience)

    def write(self, statement: Any, values: Mapping[str, Any] | None = None, patience: float | None = None) -> int:
        """Run one statement in a transaction of its own; how many rows it wrote."""
        return self.transaction(lambda connection: connection.execute(statement, values).rowcount, patience)

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

        There is no further attempt when `unless` is stopping. `divisible` says when an error is raised that the work
        itself may cause, as a statement that takes too long. True: after a few attempts, because the caller divides
        work that fails. False: after a lease. None: when the time is over. `autocommit`: the work is a single
        statement. It is sent without BEGIN and COMMIT if the session is ours.
        """
        patience = self._liveness.patience if patience is None else patience
        unclear_errors = DOUBTFUL if divisible else math.inf
        unclear_patience = self._liveness.lease if divisible is False else math.inf
        return Attempts(self, patience, unless, autocommit=autocommit, unclear=(unclear_errors, unclear_patience))

    # --- waiting on the connection -----------------------------------------------------------------------

    @contextlib.contextmanager
    def idle(self) -> Iterator[tuple[sa.Connection, Callable[[float], bool]]]:
        """The connection for a thread that waits on it. Each statement is a transaction of its own, with one attempt.
        And what waits to be woken, for at most so many seconds; it returns whether the wait ended earlier.

        Another thread that needs the connection ends the wait. Raises SQLAlchemy's errors, or ServerUnreachable.
        """
        try:
            with shielded(), self._lock:
                connection = self._open()
                with self._breaking(connection):
                    self._set_autocommit(connection, False)
                    with (
                        contextlib.closing(self._dialect.sessions.listener(connection)) as listener,
                        self._lock.releasable_by(listener.end),
                        connection.begin(),
                        self._dialect.sessions.autocommit(connection),
                    ):
                        yield connection, listener.wait
        except Exception as error:
            self.note(error)
            raise
        self.recovered()

    def end_wait(self) -> None:
        """End the wait of `idle`, if there is one."""
        self._lock.end_wait()

    def is_needed(self) -> bool:
        """Whether another thread wants the connection of `idle` now. Call it there at least once in a lease."""
        self._lock.since = time.monotonic()
        return self._lock.has_waiters

    # --- errors ------------------------------------------------------------------------------------------

    def _kind(self, error: BaseException) -> str | None:
        if isinstance(error, ReadOnly):
            return READ_ONLY
        if isinstance(error, ServerUnreachable):
            problem = self._dialect.errors.connect_problem(error.__cause__ or error)
            return FULL if problem == FULL else UNAVAILABLE
        if not isinstance(error, sa.exc.DBAPIError):
            return None
        return self._dialect.errors.passing_kind(error)

    def is_passing(self, error: BaseException) -> bool:
        """Whether another attempt may succeed after this error."""
        return self._kind(error) is not None

    def may_be_of_a_row(self, error: BaseException) -> bool:
        """Whether a single row of the work may be the cause of this error."""
        is_of_server = isinstance(error, sa.exc.DBAPIError) and self._dialect.errors.may_be_of_a_row(error)
        return is_of_server or isinstance(error, StatementCut)

    def deadline(self, failed_since: float, patience: float) -> float:
        """Until when a transaction is tried again that failed first at this time, by this machine's clock.

        After `stop` a lease is enough: then others may have its jobs, and a consumer that is told to end must end.
        """
        stopped_at = math.inf if self._control is None else self._control.stopped_at
        return min(failed_since + patience, max(failed_since, stopped_at) + self._liveness.lease)

    def raise_in_words(self, error: Exception) -> None:
        """Raise StatementTimedOut or ReadOnly for the last error of all attempts, if it is one of these."""
        if isinstance(error, StatementCut) or self._dialect.errors.timed_out(error):
            raise StatementTimedOut(self._reason(error)) from error
        if isinstance(error, sa.exc.DBAPIError) and self._kind(error) == READ_ONLY:
            raise ReadOnly(self._table_name, reason(error)) from error

    def _reason(self, error: BaseException) -> str:
        is_cut = isinstance(error, StatementCut)
        return f"not answered within the lease of {self._liveness.lease:g} s" if is_cut else reason(error)

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
            fields = {"event": TRYING_AGAIN, "kind": kind, "error": self._reason(error)}
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


class Attempts:
    """The attempts of one transaction, until one succeeds: `for attempt in attempts: with attempt as connection: ...`.

    An error that may pass ends the block without an exception, and another attempt follows after a pause. A failure to
    connect does so, too. Any other error is raised, and so is the last one when the time is over.
    """

    def __init__(
        self,
        connector: Connector,
        patience: float,
        unless: Control | None,
        *,
        autocommit: bool,
        unclear: tuple[float, float],
    ) -> None:
        """`unclear`: after how many errors that the work itself may cause, and after how many seconds of no other,
        such an error is raised.
        """
        self._connector = connector
        self._patience = patience
        self._unless = unless
        self._autocommit = autocommit
        self._unclear_errors_left, self._unclear_patience = unclear
        self._unclear_since: float | None = None
        self._succeeded = False
        self._failed_since: float | None = None
        first = FIRST_PAUSE if connector.pooled or connector.locks_are_seen else FIRST_AMONG_PRIMARIES
        self._backoff = Backoff(first, LONGEST_PAUSE, least=0.0)

    def __iter__(self) -> Iterator[Attempts]:
        while not self._succeeded:
            yield self

    def __enter__(self) -> sa.Connection:
        while True:
            self._once = self._connector.once(autocommit=self._autocommit)
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
        except Exception as failed:  # the commit failed
            if not self._may_go_on(failed):
                raise
            return True
        if error is not None:
            return isinstance(error, Exception) and self._may_go_on(error)
        self._succeeded = True
        self._connector.recovered()
        return False

    def _may_go_on(self, error: Exception) -> bool:
        """Whether another attempt follows. It waits for the pause before that attempt."""
        raise_delayed()
        if not self._connector.is_passing(error):
            return False
        self._connector.note(error)
        now = time.monotonic()
        self._failed_since = now if self._failed_since is None else self._failed_since
        is_over = now >= self._connector.deadline(self._failed_since, self._patience)
        if not self._connector.may_be_of_a_row(error):
            self._unclear_since = None
        else:  # the work itself may cause it
            self._unclear_errors_left -= DOUBTFUL if isinstance(error, StatementCut) else 1  # the next takes as long
            self._unclear_since = now if self._unclear_since is None else self._unclear_since
            is_unclear_for_long = now >= self._unclear_since + self._unclear_patience
            is_over = is_over or self._unclear_errors_left <= 0 or is_unclear_for_long
        if is_over or (self._unless is not None and self._unless.stopping):
            self._connector.raise_in_words(error)
            return False
        time.sleep(self._backoff.pause())
        raise_delayed()
        return True

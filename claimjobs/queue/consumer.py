"""Consumer: claims batches for a Queue, and finds out why claims are in vain."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from claimjobs import tracing
from claimjobs.admin.stats import Retries, read_retries
from claimjobs.batch.batch import Batch
from claimjobs.batch.batch_timer import BatchTimer
from claimjobs.batch.claim_plan import ClaimPlans
from claimjobs.batch.hold import Following, HoldContext
from claimjobs.claim.candidates import Probe
from claimjobs.claim.record import ClaimRecord, record_of
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.control import Control
from claimjobs.database.clock import DatabaseClock
from claimjobs.database.error_translation import reason
from claimjobs.dialects.types import database_now, statement_now
from claimjobs.errors import ClaimjobsError, key_unreadable, not_consumer
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.lease.transaction_hold import TransactionHold
from claimjobs.log_events import JOBS_RELEASED, JOBS_UNCLAIMABLE, RELEASE_FAILED
from claimjobs.options import LEAVE
from claimjobs.queue.access import Access
from claimjobs.queue.row_isolation import ERRORS, RowIsolation
from claimjobs.report import Report
from claimjobs.settings import Settings
from claimjobs.settle.outcome_table import outcome_table
from claimjobs.settle.settler import Settler
from claimjobs.settle.still_due import StillDueRows
from claimjobs.signals import check_timeout
from claimjobs.statements.job_rows import job_rows
from claimjobs.statements.pause import resumed
from claimjobs.table.predicates import Where

if TYPE_CHECKING:
    from claimjobs.explain.plans import Subject

AnyHold = LeaseHold | TransactionHold

PROBES: Final = frozenset(2**n for n in range(1, 30))
"""After so many claims in a row that found candidates and claimed none, a Probe checks whether they can be claimed."""
REPORTED: Final = 2**30
"""A number larger than any of these."""
NO_KEY: Final = (
    "Python cannot hold the value of their key; correct these rows, or choose other columns as Columns(key=...)"
)

log = logging.getLogger("claimjobs.claim")


class Consumer:
    """Claims batches for a Queue, and none while the queue is paused. Its parts are made when they are needed first."""

    def __init__(self, access: Access, settings: Settings, report: Report, control: Control) -> None:
        self.access, self.control = access, control
        self._settings, self._report = settings, report
        self._hold: AnyHold | None = None
        self._finalizers: list[Callable[[], Any]] = []
        self._timer: BatchTimer | None = None
        self._pause_expected = False
        self._in_vain = 0
        """Claims in a row that found candidates and claimed none."""
        self._empty = 0
        """Claims that found no candidate."""
        self._deadline = math.inf

    @property
    def hold(self) -> AnyHold:
        """Holds claims. A lease hold registers as an owner."""
        self.access.must_claim()  # each time: it raises CrossedFork in a forked process
        with self.access.preparing:
            if self._hold is None:
                self._hold = self._new_hold()
                self._finalizers.append(weakref.finalize(self, self._hold.close))
                if self._settings.locking is not None:
                    self._finalizers.append(weakref.finalize(self, self._settings.locking.close))
                self._hold.read_pause()
            return self._hold

    def _new_hold(self) -> AnyHold:
        self.access.check_connections()
        engine, backend, chosen = self.access.engine, self.access.backend, self._settings
        context = HoldContext(
            engine, backend, chosen.liveness, chosen.retry, self._report, self.control, self.access.failures
        )
        if chosen.by_lease:
            return LeaseHold(context, self.settler())
        return TransactionHold(context, self.settler(), reclaims=self.access.reclaims())

    def settler(self) -> Settler:
        """Writes outcomes. Raises UnfitTable if the table cannot store done jobs that are kept."""
        backend, chosen, on_done = self.access.backend, self._settings, self.access.on_done
        still_due = self.plans.still_due
        # A transaction that holds jobs has begun long ago, so the time of its beginning is too old.
        lasts = not chosen.by_lease and isinstance(chosen.now, database_now)
        return Settler(
            outcome_table(backend, self._record, statement_now() if lasts else chosen.now, chosen.also_writes),
            on_done,
            otherwise=self.access.default_finish if callable(on_done) else None,
            still_due=still_due,
            ready=None if still_due is None else self.plans.selector.selection(None).ready,
        )

    @cached_property
    def _record(self) -> ClaimRecord:
        """Where claims are recorded."""
        return record_of(self.access.backend, self._settings.now, locks_only=not self._settings.by_lease)

    @cached_property
    def plans(self) -> ClaimPlans:
        """How jobs are claimed."""
        backend, chosen = self.access.backend, self._settings
        return ClaimPlans(
            self.access.engine,
            backend,
            chosen.now,
            where=chosen.where,
            order_by=chosen.order_by,
            record=self._record,
            locking=chosen.locking,
            per_key=chosen.per_key,
            still_due=StillDueRows(backend.roles, backend.dialect, self._report) if chosen.on_done == LEAVE else None,
        )

    def explained(self) -> Subject:
        """What `explain` is about. Raises AccessDenied or BadPredicate."""
        from claimjobs.explain.plans import Subject  # noqa: PLC0415 - a claim needs none of it

        backend = self.access.must_claim()
        self.check_selection()
        return Subject(backend, self.plans.plan(None), self.settler(), self._settings.liveness)

    def check_selection(self) -> None:
        """Have the database read the predicate and the order. Raises BadPredicate or AccessDenied."""
        selector, backend = self.plans.selector, self.access.backend
        try:
            with selector.understood(None):
                selector.trial(None, ordered=True)
        except sa.exc.DBAPIError as error:
            if not backend.dialect.errors.refuses_account(error):
                raise
            name = backend.source.name
            raise not_consumer(name, reason(error), f"SELECT, UPDATE and perhaps DELETE on {name}") from error

    # --- claiming ----------------------------------------------------------------------------------------

    def claim(self, size: int, where: Where, following: Following | None = None, *, ahead: bool = False) -> Batch:
        """Claim a batch; it may be empty. `following`: what its settle claims. `ahead`: before a loop asks for it.

        Raises BadPredicate; KeyUnfit or WriteSwallowed if no claim can ever succeed.
        """
        hold, plans = self.hold, self.plans
        if self.is_paused():
            return self.batch(NOTHING, following)
        if plans.still_due is not None:
            plans.still_due.check()
        with plans.selector.understood(where), self._readable():
            with tracing.span("claim", self.access.backend.source.name):
                try:
                    claimed = hold.claim(size, plans.plan(where))
                except ERRORS as error:
                    report, control = self._report, self.control
                    isolation = RowIsolation(self.access, plans, hold, report=report, control=control)
                    claimed = isolation.claim(size, where, error, self._settings.liveness.patience)
                    self._note_left()
            self._in_vain = self._in_vain + 1 if claimed.examined and not claimed.jobs else 0
            if self._in_vain in PROBES:
                claimed = self._claim_with_rows_locked_first(size, where)
            elif not claimed.found:
                self._report_unreadable_keys()
        return self.batch(claimed, following, ahead=ahead)

    def batch(
        self,
        claimed: ClaimResult,
        following: Following | None = None,
        *,
        ahead: bool = False,
        since: float | None = None,
    ) -> Batch:
        """The Batch of a claim. `since`: as in Batch."""
        chosen, hold = self._settings, self.hold
        batch = Batch(
            claimed,
            hold,
            self.access.backend.roles,
            chosen.retry,
            following=following,
            entity=chosen.entity,
            failures=self.access.failures,
            timer=self._timer,
            since=since,
        )
        batch.contended = bool(claimed.found) and not claimed.jobs
        if claimed.jobs:
            batch.kept_alive = self
            hold.give(claimed, batch, ahead=ahead)
        return batch

    def measure_batches(self) -> None:
        """Measure sizes and times of the batches from now on: see `Report.times`."""
        clock = DatabaseClock(self.access.engine, self._settings.now)
        self._timer = self._timer or BatchTimer(self._report, self.access.backend.source, clock)

    # --- for loops ---------------------------------------------------------------------------------------

    def is_paused(self) -> bool:
        """Whether the queue is paused. The database is asked while it is, after `expect_pause`, and where no heartbeat
        does it.
        """
        if self.control.paused or self._pause_expected or self.hold.pause_is_stale:
            self._pause_expected = False
            self.hold.read_pause()
        return self.control.paused

    def expect_pause(self) -> None:
        """Let the next claim read whether the queue is paused: while a loop slept, no heartbeat read it."""
        self._pause_expected = True

    def work(self, where: Where) -> sa.ColumnElement[Any] | None:
        """A scalar that is NULL when no job is due, or the queue is paused. None if a callable gives the predicate."""
        if self.control.paused:
            backend = self.access.backend
            return resumed(backend.queues, backend.roles.claims)
        return self.plans.work(where)

    def retries(self, where: Where) -> Retries:
        """The matching jobs that wait for their next attempt. Raises BadPredicate."""
        backend, now, selector = self.access.backend, self._settings.now, self.plans.selector
        with selector.understood(where), self.access.connected_in_utc() as connection:
            mine = job_rows(backend, now).meeting(selector.predicates(where))
            return read_retries(connection, backend.roles, now, mine)

    def restart_from_head(self) -> None:
        """Begin the next claim at the head of the order: there are new jobs."""
        if self._hold is not None:
            self._hold.restart_from_head()

    def release_following(self, claimed: ClaimResult) -> None:
        """Release what a settle has claimed and no loop asks for. Does nothing in a forked child."""
        if self._hold is not None:
            self._hold.release_following(claimed)

    # --- claims in vain ----------------------------------------------------------------------------------

    def _note_left(self) -> None:
        """Let `status` know how many rows are left, if this consumer has an owner. The claim goes on if that cannot be
        written.
        """
        owner = self.hold.owner
        if self.plans.left and owner is not None:
            with suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
                owner.row.note_unclaimable(len(self.plans.left))

    def _claim_with_rows_locked_first(self, size: int, where: Where) -> ClaimResult:
        """Claim after candidates were found again and again and never claimed: others hold them, or nobody can.

        The strategy locks rows before it marks them. Only so it finds out which rows swallow the write.
        """
        plan = self.plans.plan(where)
        with self.access.connector() as connector:
            connector.transaction(Probe(self.access.backend, plan.selection).run)
        strategy = self.plans.strategy(plan.selection, lock_before_mark=True)
        return self.hold.claim(size, replace(plan, strategy=strategy))

    def _report_unreadable_keys(self) -> None:
        """Log once the rows that are never claimed, when no other row is left: then the claim's index finds them."""
        backend = self.access.backend
        source, readable = backend.source, backend.dialect.readable(backend.source.key)
        self._empty += 1
        if not readable or self._empty not in {1, *PROBES}:
            return
        unreadable = sa.not_(sa.and_(*readable))
        rows = sa.select(sa.func.count()).select_from(source.table).where(source.due(self._settings.now), unreadable)
        with self.access.connected_in_utc() as connection:
            count, predicate = connection.scalar(rows), unreadable.compile(connection)
        if count:
            self._empty = REPORTED
            fields = {"event": JOBS_UNCLAIMABLE, "queue": source.name, "jobs": count, "error": NO_KEY}
            log.warning(
                "table %s: no claim takes %d rows of %s: %s", source.name, count, predicate, NO_KEY, extra=fields
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raises KeyUnfit for an error of the driver: only keys of candidates are converted in this block."""
        try:
            yield
        except sa.exc.DataError as error:
            backend = self.access.backend
            if backend.dialect.errors.code(error) is None:
                raise key_unreadable(backend.source.name, reason(error)) from error
            raise

    # --- the end -----------------------------------------------------------------------------------------

    def release_after(self, timeout: float) -> None:
        """Release all jobs that are held, also those of open batches, in so many seconds, in a thread. Of several calls
        the earliest counts. Raises ValueError. A signal handler may call it.
        """
        check_timeout(timeout)
        at = time.monotonic() + timeout
        if at < self._deadline:
            self._deadline = at
            timer = threading.Timer(timeout, self._release)
            timer.daemon = True
            timer.start()

    def _release(self) -> None:
        self.control.expire()  # before the release: a claim that is being made must not outlast it
        try:
            jobs = 0 if self._hold is None else self._hold.release_held()
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            fields = {"event": RELEASE_FAILED, "error": str(error)}
            log.warning("the jobs could not be released at the deadline of `stop`: %s", reason(error), extra=fields)
        else:
            if jobs:
                were = "job was" if jobs == 1 else "jobs were"
                words = "%d %s released at the deadline of `stop`"
                log.warning(words, jobs, were, extra={"event": JOBS_RELEASED, "jobs": jobs})

    def close(self) -> None:
        """Close the connections. The hold is made again when it is needed again."""
        while self._finalizers:
            self._finalizers.pop()()
        self._hold = None

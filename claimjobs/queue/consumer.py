"""Consumer: claims batches for a Queue, and finds out why claims are in vain."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from claimjobs import tracing
from claimjobs.admin.stats import Retries
from claimjobs.batch.batch import Batch, BatchTimer
from claimjobs.batch.hold import HoldContext, NextClaim
from claimjobs.claim.candidates import check_that_keys_find
from claimjobs.claim.claim_plan import ClaimPlans
from claimjobs.claim.record import ClaimRecord, record_of
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.database.clock import age_at
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError, key_unreadable, not_consumer
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.lease.transaction_hold import TransactionHold
from claimjobs.log_events import JOBS_RELEASED, JOBS_UNCLAIMABLE, RELEASE_FAILED
from claimjobs.options import LEAVE, HoldKind
from claimjobs.queue.access import Access
from claimjobs.queue.row_isolation import ERRORS, RowIsolation
from claimjobs.settle.outcome_table import outcome_table
from claimjobs.settle.settler import Settler
from claimjobs.settle.still_due import StillDueRows
from claimjobs.signals import check_timeout
from claimjobs.statements import stored_jobs
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.predicates import Where

if TYPE_CHECKING:
    from claimjobs.explain.plans import Subject

AnyHold = LeaseHold | TransactionHold
HOLDING: Final[dict[HoldKind, type[AnyHold]]] = {"lease": LeaseHold, "transaction": TransactionHold}

PROBES: Final = frozenset(2**n for n in range(1, 30))
"""After so many claims in a row that found candidates and claimed none, it is checked whether they can be claimed."""
REPORTED: Final = 2**30
"""A number larger than any of these."""
NO_KEY: Final = (
    "Python cannot hold the value of their key; correct these rows, or choose other columns as Columns(key=...)"
)

log = logging.getLogger("claimjobs.claim")


class Consumer:
    """Claims batches for a Queue, and none while the queue is paused. Its parts are made when they are needed first."""

    def __init__(self, access: Access) -> None:
        self.access, self.control, self.settings = access, access.control, access.settings
        self.made_hold: AnyHold | None = None
        """`hold`, if it was made."""
        self._plans: ClaimPlans | None = None
        self._finalizers: list[Callable[[], Any]] = []
        self.timer: BatchTimer | None = None
        """Measures the batches from now on."""
        self.expects_pause = False
        """Whether the next claim asks the database for a pause: while a loop slept, no heartbeat did."""
        self._in_vain = 0
        """Claims in a row that found candidates and claimed none."""
        self._empty = 0
        """Claims that found no candidate."""
        self._deadline = math.inf

    # --- parts -------------------------------------------------------------------------------------------

    @property
    def hold(self) -> AnyHold:
        """Holds claims. A lease hold registers as an owner."""
        access, settings = self.access, self.settings
        backend = access.backend_for_claims  # each time: it raises CrossedFork in a forked process
        with access.preparing:
            if self.made_hold is None:
                access.check_connections()
                settler, report, failures = self.settler(), access.report, access.failures
                context = HoldContext(
                    access.engine, backend, settings.liveness, settings.retry, report, self.control, failures
                )
                self.made_hold = HOLDING[settings.hold](context, settler)
                self._finalizers.append(weakref.finalize(self, self.made_hold.close))
                if settings.locking is not None:
                    self._finalizers.append(weakref.finalize(self, settings.locking.close))
                self.made_hold.read_pause()
            return self.made_hold

    def settler(self) -> Settler:
        """Writes outcomes. Raises UnfitTable if the table cannot store done jobs that are kept."""
        on_done, still_due = self.access.on_done, self._still_due
        table = outcome_table(self.access.backend, self._record, self.settings.also_writes)
        otherwise = self.access.default_finish if callable(on_done) else None
        due = None if still_due is None else self.plans.selection(None).due
        return Settler(table, on_done, otherwise=otherwise, still_due=still_due, due=due)

    @cached_property
    def _record(self) -> ClaimRecord:
        return record_of(self.access.backend, self.settings.now, locks_only=not self.settings.by_lease)

    @cached_property
    def _still_due(self) -> StillDueRows | None:
        """With `on_done="leave"`: the rows that are not claimed again. All threads have the same."""
        backend = self.access.backend
        leaves = self.settings.on_done == LEAVE
        return StillDueRows(backend.roles, backend.dialect, self.access.report) if leaves else None

    @property
    def plans(self) -> ClaimPlans:
        """How jobs are claimed. All threads have the same."""
        backend, settings = self.access.backend, self.settings
        with self.access.preparing:
            if self._plans is None:
                self._plans = ClaimPlans(
                    self.access.engine,
                    backend,
                    settings.now,
                    where=settings.where,
                    order_by=settings.order_by,
                    record=self._record,
                    locking=settings.locking,
                    per_key=settings.per_key,
                    claimable=sa.true() if self._still_due is None else self._still_due.claimable,
                )
            return self._plans

    def subject(self) -> Subject:
        """What `explain` is about, after the database has read the predicate and the order. Raises AccessDenied or
        BadPredicate; and as `settler`.
        """
        from claimjobs.explain.plans import Subject  # noqa: PLC0415 - a claim needs none of it

        backend, plans = self.access.backend_for_claims, self.plans
        try:
            with plans.understood(None):
                plans.trial(None, ordered=True)
        except sa.exc.DBAPIError as error:
            if not backend.dialect.errors.refuses_account(error):
                raise
            name = backend.source.name
            raise not_consumer(name, reason(error), f"SELECT, UPDATE and perhaps DELETE on {name}") from error
        return Subject(backend, self.plans.plan(None), self.settler(), self.settings.liveness)

    # --- claiming ----------------------------------------------------------------------------------------

    def claim(self, size: int, where: Where, next_claim: NextClaim | None = None, *, ahead: bool = False) -> Batch:
        """Claim a batch; it may be empty. `next_claim`: what its settle claims. `ahead`: before a loop asks for it.

        Raises BadPredicate; KeyUnfit or WriteSwallowed if no claim can ever succeed.
        """
        hold, plans, backend = self.hold, self.plans, self.access.backend
        if self._is_paused(hold):
            return self.batch(NOTHING, next_claim)
        if self._still_due is not None:
            self._still_due.check()
        if hold.unwritable:
            unwritable, hold.unwritable = hold.unwritable, {}
            RowIsolation(self.access, plans, hold).leave(unwritable)
        with plans.understood(where):
            try:
                with tracing.span("claim", backend.source.name):
                    try:
                        claimed = hold.claim(size, plans.plan(where))
                        while claimed.goes_on and not (self.control.stopping or self.control.paused):
                            claimed = hold.claim(size, plans.plan(where))
                    except ERRORS as error:
                        claimed = RowIsolation(self.access, plans, hold).claim(size, where, error)
                self._in_vain = self._in_vain + 1 if claimed.examined and not claimed.jobs else 0
                if self._in_vain in PROBES:
                    claimed = self._claim_with_rows_locked_first(size, where)
                elif not claimed.candidates:
                    self._report_unreadable_keys()
            except sa.exc.DataError as error:
                # An error of the driver: only keys of candidates are converted here.
                if backend.dialect.errors.code(error) is None:
                    raise key_unreadable(backend.source.name, reason(error)) from error
                raise
        return self.batch(claimed, next_claim, ahead=ahead, hold=hold)

    def batch(
        self,
        claimed: ClaimResult,
        next_claim: NextClaim | None = None,
        *,
        ahead: bool = False,
        since: float | None = None,
        hold: AnyHold | None = None,
    ) -> Batch:
        """The Batch of a claim. `since`: as in Batch. `hold`: that has made the claim; None: the present one."""
        settings, hold = self.settings, hold or self.hold
        batch = Batch(
            claimed,
            hold,
            self.access.backend.roles,
            settings.retry,
            next_claim=next_claim,
            entity=settings.table if isinstance(settings.table, type) else None,
            failures=self.access.failures,
            timer=self.timer,
            since=since,
        )
        batch.contended = bool(claimed.candidates) and not claimed.jobs
        if claimed.jobs:
            batch.kept_alive = self
            hold.give(claimed, batch, ahead=ahead)
        return batch

    def _is_paused(self, hold: AnyHold) -> bool:
        """Whether the queue is paused. The database is asked while it is, if that is expected, or no heartbeat does."""
        if self.control.paused or self.expects_pause or hold.pause_is_stale:
            self.expects_pause = False
            hold.read_pause()
        return self.control.paused

    def retries(self, where: Where) -> Retries:
        """The matching jobs that wait for their next attempt. Raises BadPredicate."""
        backend, now, plans = self.access.backend, self.settings.now, self.plans
        with plans.understood(where), self.access.connected_in_utc() as connection:
            mine = job_rows(backend, now).meeting(plans.predicates(where))
            if backend.roles.run_at is None:  # none waits
                return Retries(0, None)
            row = connection.execute(stored_jobs.retries(backend.roles, now, *mine)).one()
        return Retries(row.jobs, None if row.next is None else age_at(row.next, row.now), row.due)

    # --- claims in vain ----------------------------------------------------------------------------------

    def _claim_with_rows_locked_first(self, size: int, where: Where) -> ClaimResult:
        """Claim after candidates were found again and again and never claimed: others hold them, or nobody can.

        The strategy locks rows before it marks them. Only so it finds out which rows swallow the write.
        """
        plan = self.plans.plan(where)
        with self.access.connector() as connector:
            connector.transaction(
                lambda connection: check_that_keys_find(connection, self.access.backend, plan.selection)
            )
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
        rows = sa.select(sa.func.count()).select_from(source.table).where(source.due(self.settings.now), unreadable)
        with self.access.connected_in_utc() as connection:
            count, predicate = connection.scalar(rows), unreadable.compile(connection)
        if count:
            self._empty = REPORTED
            fields = {"event": JOBS_UNCLAIMABLE, "queue": source.name, "jobs": count, "error": NO_KEY}
            words = "table %s: no claim takes %d rows of %s: %s"
            log.warning(words, source.name, count, predicate, NO_KEY, extra=fields)

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
            jobs = 0 if self.made_hold is None else self.made_hold.release_held()
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
        try:
            while self._finalizers:
                self._finalizers.pop()()
        finally:
            self.made_hold = None  # also after Ctrl-C: a hold that is closed claims nothing

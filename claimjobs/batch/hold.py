"""Hold: what keeps claimed jobs from other consumers, a lease or an open transaction."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from claimjobs.claim.candidate_range import CandidateRange
from claimjobs.claim.claim_plan import ClaimPlan, ClaimPlans
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult
from claimjobs.control import Control
from claimjobs.database.connection import Connector
from claimjobs.database.statement_size import most_keys
from claimjobs.dialects import Key
from claimjobs.errors import ClaimjobsError, NoOpenTransaction
from claimjobs.options import Liveness, Retry
from claimjobs.report import Report
from claimjobs.settle.failures import Failures
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.settler import Settler
from claimjobs.signals import shielded
from claimjobs.statements.find import ends
from claimjobs.statements.owners import paused
from claimjobs.table.backend import Backend
from claimjobs.table.predicates import Where

if TYPE_CHECKING:  # it is imported by the first session
    from sqlalchemy.orm import Session


@dataclass(frozen=True)
class HoldContext:
    """What a hold and its owner get from the consumer that makes them."""

    engine: sa.Engine
    backend: Backend
    liveness: Liveness
    retry: Retry
    report: Report
    control: Control
    """The control of the consumer's loops. It is told of a pause, and of jobs that were reclaimed."""
    failures: Failures


class HandlerWrites:
    """What the handler of a batch writes for its jobs. By lease it writes elsewhere: this class does nothing."""

    in_loop = False
    """Whether a loop over the batch is at a job."""
    wrote_outside = False
    """Whether something was written since the claim while it was at none, which may be for any job."""

    @property
    def connection(self) -> sa.Connection:
        """The connection whose open transaction holds the jobs. Raises NoOpenTransaction if there is none."""
        what = "is empty or held by lease, and has no open transaction"
        raise NoOpenTransaction(what, "make the Queue with hold='transaction'")

    def session(self, **options: Any) -> Session:
        """A session on the connection."""
        from sqlalchemy.orm import Session  # noqa: PLC0415

        return Session(self.connection, **options)

    def begin_job(self) -> None:
        """Begin a job. Raises the error of what was written outside of any, as `keep_job`."""

    def keep_job(self) -> bool:
        """End a job that is done, and keep its writes. Returns whether there were some.

        Raises the error by which the database refuses what the sessions had not written until now, or one if it refuses
        all, because the handler went on after an error: undo the job then.
        """
        return False

    def undo_job(self) -> None:
        """Undo the writes of the current job."""

    def undo_all(self) -> bool:
        """Undo all writes since the claim. Returns whether there were some."""
        return False

    def undo_outside(self, *, of_all: bool) -> None:
        """Undo what was written while the loop was at no job. Raises BatchMisused unless that is for jobs of which none
        is done (`of_all`).
        """


class Hold(ABC):
    """Claims jobs, keeps others from them, and settles them. LeaseHold and TransactionHold are in the room lease."""

    keeps_locks: bool
    """Whether an open transaction keeps jobs locked until `end`. Then a failed `end` cannot be tried again. If not,
    jobs are locked during a claim only.
    """

    def __init__(self, context: HoldContext, settler: Settler) -> None:
        backend = self._backend = context.backend
        self._context, self.settler, self._report, self._control = context, settler, context.report, context.control
        self._range = CandidateRange(self._report)
        self._most_keys = most_keys(backend.roles.key, backend.dialect)
        self._forgotten = 0.0
        """When the plans of claims were forgotten last, by this machine's clock."""
        self._process = os.getpid()
        self._one_at_a_time = threading.Lock()
        """Locked during a claim, and a settle by lease, until what they have learned and what is held is noted."""
        self.unwritable: dict[Key, Exception] = {}
        """Jobs in whose rows neither an outcome nor a failure can be written, with the error: they are to be claimed no
        more. (By lease they stay claimed.)"""
        self._closed = False
        """Whether it claims nothing any more: that would open its connections again."""
        self._read_pause = paused(backend.queues, backend.roles.recorded_as)
        self._heartbeat: threading.Thread | None = None
        """The thread of the owner's heartbeat."""

    def _claim_until_over(self, connector: Connector, size: int, plan: ClaimPlan) -> ClaimResult:
        while True:
            request = self._next_request(connector, size, plan)
            claimed = self._range.learn(request, self._claim_once(connector, request, plan))
            if self._range.is_over(claimed) or self._control.stopping:
                return claimed

    def _next_request(self, connector: Connector, size: int, plan: ClaimPlan) -> ClaimRequest:
        """The next request. If it begins a sweep, the database is asked where the jobs are; if it cannot say that, the
        claim meets the error itself.
        """
        sweep = self._range.sweep_to_begin(plan.strategy)
        if sweep is not None:
            with contextlib.suppress(sa.exc.DBAPIError, ClaimjobsError):
                sweep.start(connector.rows(ends(self._backend.source, plan.selection), patience=0), size)
        # A statement with more keys would be too large. Fewer jobs are claimed then.
        return self._range.next_request(int(min(size, self._most_keys)), plan.strategy)

    @abstractmethod
    def _claim_once(self, connector: Connector, request: ClaimRequest, plan: ClaimPlan) -> ClaimResult:
        """Claim in a transaction of this connector."""

    def note_pause(self, connection: sa.Connection) -> None:
        """Read through this connection whether the queue is paused, and note it."""
        self._control.set_paused(connection.execute(self._read_pause).first() is not None)

    def _forget_plans(self, connection: sa.Connection) -> None:
        """Have the next claims of this connection planned anew, if there was one: the table may have grown."""
        forget = self._backend.dialect.sessions.forget_plans
        if forget is not None and self._range.since > self._forgotten:
            self._forgotten = time.monotonic()
            connection.execute(forget)

    @abstractmethod
    def settle(self, claimed: ClaimResult, outcomes: Outcomes, next_claim: NextClaim | None = None) -> set[Key]:
        """Write the outcomes of claimed jobs and commit; return the keys of the jobs that this consumer held no longer.

        Afterwards `outcomes` are those that were written. `next_claim`: jobs are claimed in the same transaction, by
        lease; if that claim fails, it only settles. These jobs wait for `confirm_next`, and are released after half a
        lease.
        """

    def confirm_next(self, claimed: ClaimResult) -> bool:
        """Whether this claim of a settle is still held. Each claim is given once."""
        del claimed  # a settle claims nothing
        return False

    def release_next(self, claimed: ClaimResult) -> None:  # noqa: B027 - a settle claims nothing
        """Release this claim of a settle, for which nobody will ask; later, if that is not possible at once."""

    def writes_of(self, claimed: ClaimResult) -> HandlerWrites:
        """What the handler writes for these jobs in the open transaction that holds them, if one does."""
        del claimed
        return HandlerWrites()

    def split(self, claimed: ClaimResult, keeper: object) -> list[ClaimResult]:
        """Hold each job of a claim by itself; return a claim for each. `keeper`: in place of their Batches."""
        raise NotImplementedError("one transaction holds all jobs of a batch")

    def join(self, parts: Iterable[ClaimResult]) -> ClaimResult:
        """Settle these claims together: one claim, of all their jobs that are still held."""
        raise NotImplementedError("one transaction holds all jobs of a batch")

    @abstractmethod
    def is_held(self, claimed: ClaimResult) -> bool:
        """Whether these jobs were not released, or given to others, as far as this process knows."""

    def progress(self, claimed: ClaimResult) -> None:  # noqa: B027 - the locks of a transaction need no care
        """The handler of this claim begins, or makes progress. Called for each job, so it must be cheap."""

    def rest(self, claimed: ClaimResult) -> None:  # noqa: B027 - the locks of a transaction need no care
        """No handler works on this claim any more: it waits for its settle."""

    def restart_from_head(self) -> None:
        """Begin the next claim at the head of the order: jobs may be before the cursor."""
        self._range.restart_from_head()

    def maintain(self, *, away: float = 0.0) -> None:  # noqa: B027 - the locks of a transaction need no care
        """Release jobs on which nobody works, and give up what hangs. The heartbeat's thread calls it. `away`: for so
        many seconds the database could not be reached, and a handler may have waited for it, too.
        """

    def close(self) -> None:
        """Release all jobs, and close the connections. Does nothing in a forked child."""
        if self._process != os.getpid():
            return
        if threading.current_thread() is self._heartbeat:
            # The garbage collector closes a forgotten Queue, in any thread. The heartbeat's thread cannot wait for its
            # own end, nor for the connection, which it may be using.
            threading.Thread(target=self._close_alone, name="claimjobs close").start()
        else:
            self._close_alone()

    def _close_alone(self) -> None:
        """Close, after the claim of another thread has ended. An outage may keep that one for long."""
        is_alone = False
        with shielded():  # `Cancelled` would leave the lock taken
            try:
                is_alone = self._one_at_a_time.acquire(timeout=self._context.liveness.lease)
            finally:  # also after Ctrl-C in this wait: nobody closes it again
                try:
                    self._close()
                finally:
                    self._closed = True
                    if is_alone:
                        self._one_at_a_time.release()

    @abstractmethod
    def _close(self) -> None: ...


class NextClaim:
    """What a settle claims for a loop."""

    def __init__(self, plans: ClaimPlans, size: int, where: Where, control: Control) -> None:
        """`size`, `where`: as the loop claims."""
        self._plans, self._where, self._control = plans, where, control
        self.size = size
        self.claimed = NOTHING
        """What the last settle claimed, until the loop takes it."""
        self.is_over = False
        """Whether the loop has ended."""

    def plan_after(self, outcomes: Outcomes) -> ClaimPlan | None:
        """The plan of the claim that is made with these outcomes; None: they are settled alone.

        If no job was done, a claim would return the same jobs again; so it would a failed one that is due at once (see
        `ClaimPlan.follows_commit`). A claim that waits for the loop is not replaced: a pool may make several settles
        before it takes one.
        """
        if self.is_over or self._control.stopping or self._control.paused or not outcomes.done or self.claimed.jobs:
            return None
        if any(failure.wait <= 0 for failure in outcomes.retried.values()):
            return None
        try:
            plan = self._plans.plan(self._where)
        except Exception:  # of a user's callable: the next claim raises it
            return None
        return None if plan.follows_commit else plan

    def take(self) -> ClaimResult:
        """What the last settle claimed. Each claim is given once."""
        claimed, self.claimed = self.claimed, NOTHING
        return claimed

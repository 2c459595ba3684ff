"""BatchLoop: claims batch after batch, and waits while no job is due."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Literal

import sqlalchemy as sa

from claimjobs.batch.batch import Batch
from claimjobs.batch.hold import Hold
from claimjobs.batch.settle import Outcomes
from claimjobs.claim.strategy import ClaimResult
from claimjobs.control import Control
from claimjobs.dialects import Key
from claimjobs.errors import BatchMisused, ReadOnly, ServerUnreachable, StatementTimedOut
from claimjobs.lease.idle_checks import WakeCondition
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.queue.claimer import Claimer
from claimjobs.queue.idle_backoff import IdleBackoff
from claimjobs.queue.parts import QueueParts
from claimjobs.table.predicates import Where

Drain = bool | Literal["retries"]

FIRST_CHECK: Final = 0.05
"""Seconds from the beginning of a sleep to its first check for work; then the pauses double. The first checks find rows
that were just being committed."""
RARER: Final = 3
"""The longest pause between the checks of a sleeping loop, as a multiple of `poll`: a wake comes earlier."""
CHECK: Final = 5.0
"""Seconds after which a sleeping loop checks that the heartbeat's thread is active."""


class BatchLoop:
    """The batches of one loop, without empty ones. Iterate over it once."""

    def __init__(
        self,
        parts: QueueParts,
        claimer: Claimer,
        source: BatchSource | PrefetchSource,
        control: Control,
        *,
        drain: Drain,
        poll: float,
        idle: float | None,
    ) -> None:
        """The loop ends after `control.stop`; with `drain`, or after `control.drain`, when no job is due; and after
        `idle` seconds without a batch. `poll`: the longest pause between two claims, in seconds.
        """
        self._parts = parts
        self._claimer = claimer
        self._source = source
        self._control = control
        self._drain = drain
        self._poll = poll
        self._idle = math.inf if idle is None else idle

    def __iter__(self) -> Generator[Batch, None, None]:
        """Raises BatchMisused if the last batch is still open, and the errors of a claim."""
        with contextlib.closing(self._source):
            yield from self._batches(IdleBackoff(self._poll, self._idle))

    def _batches(self, idleness: IdleBackoff) -> Generator[Batch, None, None]:
        while not self._control.stopping:
            began = time.monotonic()
            batch = self._claim()
            if batch:
                yield batch
                _must_be_settled(batch)
                idleness.worked()
            elif batch is None or self._is_last(batch, idleness):
                return
            else:
                idleness.met_locked_jobs(time.monotonic() - began if batch.contended else 0.0)
                if self._drains_retries or not self._slept(batch, idleness):
                    self._control.wait(idleness.pause())

    def _claim(self) -> Batch | None:
        """A batch, perhaps empty; None if the loop must stop and the database cannot be reached, or written."""
        try:
            return self._source.next_batch()
        except (sa.exc.DBAPIError, ReadOnly, ServerUnreachable, StatementTimedOut):
            if not self._control.stopping:
                raise
            return None

    def _is_last(self, empty: Batch, idleness: IdleBackoff) -> bool:
        """Whether the loop ends after this empty batch. A drain goes on while others have locked the candidates, and
        while the queue is paused: nobody knows then whether a job is due.
        """
        if self._control.stopping or idleness.left <= 0:
            return True
        drained = (self._drain or self._control.draining) and not (empty.contended or self._control.paused)
        return bool(drained) and not self._retries_are_awaited()

    @property
    def _drains_retries(self) -> bool:
        """Such a loop does not sleep: no wake comes when another consumer has done the last job."""
        return self._drain == "retries" or self._control.waits_for_retries

    def _retries_are_awaited(self) -> bool:
        if not self._drains_retries:
            return False
        retries = self._parts.retries(self._source.where)
        return retries.jobs + retries.due > 0  # one may have come due since the last claim

    # --- asleep ----------------------------------------------------------------------------------------

    def _slept(self, empty: Batch, idleness: IdleBackoff) -> bool:
        """Sleep until there may be work. Returns False if a sleep is not possible, or not worth its cost."""
        if empty.contended and not self._parts.hold.keeps_locks:
            return False
        sleeper = self._parts.sleeper
        if sleeper is None or not sleeper.can_sleep() or not idleness.may_sleep:
            return False
        condition = self._wake_condition(empty, idleness)
        with idleness.asleep(costs=condition.work is not None), sleeper.waiting(condition):
            self._wait_to_be_woken(sleeper, idleness)
        self._control.clear_wake()
        self._claimer.expect_pause()
        return True

    def _wake_condition(self, empty: Batch, idleness: IdleBackoff) -> WakeCondition:
        """What to wait for. If only a claim finds out whether there is work, a claim follows after a pause as usual.
        So it is while other transactions hold jobs: these look unclaimed.
        """
        work = None if empty.contended else self._parts.work(self._source.where)
        if work is not None:
            return WakeCondition(work, FIRST_CHECK, self._poll * RARER)
        pause = idleness.pause()
        return WakeCondition(None, pause, pause)

    def _wait_to_be_woken(self, sleeper: IdleSleeper, idleness: IdleBackoff) -> None:
        while not self._control.woken(min(CHECK, max(0.0, idleness.left))):
            if idleness.left <= 0 or not sleeper.is_active:
                return


def _must_be_settled(batch: Batch) -> None:
    if not batch.settled:
        batch.settle()
        raise BatchMisused(
            "the last batch was still open when the next one was asked for, so it was settled: the outcomes of its "
            "jobs were written, and jobs without one were released; put the work in `with batch:`"
        )


class BatchSource:
    """Claims the batches of a loop. Leaving a batch settles it and claims the next one, in one transaction.

    A batch that the loop does not ask for is released when the loop ends, or after half a lease.
    """

    def __init__(self, parts: QueueParts, claimer: Claimer, size: int, where: Where, *, control: Control) -> None:
        """After `control.stop` a settle claims no next batch."""
        self._parts = parts
        self._claimer = claimer
        self._size = size
        self.where = where
        self._control = control
        self._closed = False
        self._next: tuple[Hold, ClaimResult] | None = None

    def next_batch(self) -> Batch:
        """The batch that was claimed with the last settle, or else a new claim. It may be empty."""
        if self._control.paused:
            self._release_following()
        following, self._next = self._next, None
        if following is not None:
            hold, claimed = following
            if hold.take_following(claimed):
                return self._claimer.batch(hold, claimed, self)
        return self._claimer.claim(self._size, self.where, self)

    def settle(self, hold: Hold, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Settle a batch and claim the next one. If no job was done, a claim would return the same jobs again."""
        if self._ends or not (outcomes.done and hold.settles_and_claims):
            return hold.settle(claimed, outcomes)
        try:
            plan = self._parts.plan(self.where)
        except Exception:  # of a user's callable: the next claim raises it
            return hold.settle(claimed, outcomes)
        lost, following = hold.settle_and_claim(claimed, outcomes, self._size, plan)
        if following.jobs:
            self._next = hold, following
        return lost

    @property
    def _ends(self) -> bool:
        """Whether no other batch follows for now."""
        return self._closed or self._control.stopping or self._control.paused

    def close(self) -> None:
        """Release the batch that was not asked for. The settle of an open batch claims no next one any more."""
        self._closed = True
        self._release_following()

    def _release_following(self) -> None:
        following, self._next = self._next, None
        if following is not None:
            hold, claimed = following
            hold.release_following(claimed)


class PrefetchSource:
    """Claims batches in a thread while the handler works. Each batch is settled by itself.

    This owner holds the prefetched batches: it loses them all if it dies, or if its handler hangs.
    """

    def __init__(self, claimer: Claimer, size: int, where: Where, control: Control, *, count: int) -> None:
        """`count`: how many batches to claim ahead."""
        self._claimer = claimer
        self._size = size
        self.where = where
        self._control = control
        self._count = count
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="claimjobs prefetch")
        self._next: deque[Future[Batch]] = deque()

    def next_batch(self) -> Batch:
        """The oldest batch that was claimed ahead, or else a new claim. It may be empty."""
        if self._control.paused:
            self._release_all()
        batch = self._next.popleft().result() if self._next else self._claim()
        if not batch:  # it was claimed some time ago: there may be jobs now
            batch = self._claim()
        if batch:
            batch.extend()
        while batch and len(self._next) < self._count and not self._control.stopping:
            self._next.append(self._thread.submit(self._claim))
        return batch

    def close(self) -> None:
        """Release the batches that were not asked for."""
        self._thread.shutdown(cancel_futures=True)
        self._release_all()

    def _release_all(self) -> None:
        """Release each of them, also after an error, which is raised at the end."""
        with contextlib.ExitStack() as releases:
            while self._next:
                claim = self._next.popleft()
                if not claim.cancelled() and not claim.exception():
                    releases.callback(claim.result().settle)

    def _claim(self) -> Batch:
        return self._claimer.claim(self._size, self.where, ahead=True)

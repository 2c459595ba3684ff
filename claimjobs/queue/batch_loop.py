"""BatchLoop: claims batch after batch, and waits while there is nothing to claim."""

from __future__ import annotations

import contextlib
import math
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
from claimjobs.errors import BatchNotSettled, ServerUnreachable
from claimjobs.lease.idle_checks import WakeCondition
from claimjobs.lease.sleeper import Sleeper
from claimjobs.queue.idle_backoff import IdleBackoff
from claimjobs.queue.parts import QueueParts
from claimjobs.table.predicates import Where

Drain = bool | Literal["retries"]

FIRST_CHECK: Final = 0.05
"""Seconds after a loop fell asleep; doubled with each look. What was about to be committed then, these find."""
RARER: Final = 3
"""Times `poll`: how often a loop looks that is asleep, and would be called."""
CHECK: Final = 5.0
"""Seconds after which a loop that waits to be called makes sure that there is somebody to hear it."""


class BatchLoop:
    """The batches of one loop that hold something. To be iterated over once."""

    def __init__(
        self,
        parts: QueueParts,
        source: BatchSource | PrefetchSource,
        control: Control,
        *,
        drain: Drain,
        poll: float,
        idle: float | None,
    ) -> None:
        """It ends when `control` says stop; with `drain`, or when `control` says so, once nothing can be claimed; and
        after `idle` seconds without a batch. `poll` is the longest pause between two claims, in seconds.
        """
        self._parts = parts
        self._source = source
        self._control = control
        self._drain = drain
        self._poll = poll
        self._idle = math.inf if idle is None else idle

    def __iter__(self) -> Generator[Batch, None, None]:
        """Raises BatchNotSettled when the next batch is asked for while the last one is open, and what a claim does."""
        with contextlib.closing(self._source):
            yield from self._batches(IdleBackoff(self._poll, self._idle))

    def _batches(self, idleness: IdleBackoff) -> Generator[Batch, None, None]:
        while not self._control.stopping:
            batch = self._claim()
            if batch:
                yield batch
                _must_be_settled(batch)
                idleness.worked()
            elif batch is None or self._is_last(batch, idleness):
                return
            elif batch.contended or self._drains_retries or not self._slept(idleness):
                self._control.wait(idleness.pause())

    def _claim(self) -> Batch | None:
        """A batch, perhaps empty; None where the database cannot be reached and the loop is to stop."""
        try:
            return self._source.next_batch()
        except (sa.exc.DBAPIError, ServerUnreachable):
            if not self._control.stopping:
                raise
            return None

    def _is_last(self, empty: Batch, idleness: IdleBackoff) -> bool:
        """Whether this was the last look. What others are about to claim may come back: a drain waits for that."""
        if self._control.stopping or idleness.left <= 0:
            return True
        drained = (self._drain or self._control.draining) and not empty.contended
        return bool(drained) and not self._retries_are_awaited()

    @property
    def _drains_retries(self) -> bool:
        """Then it does not sleep: nobody calls when another consumer has done the last one."""
        return self._drain == "retries" or self._control.waits_for_retries

    def _retries_are_awaited(self) -> bool:
        return self._drains_retries and self._parts.retries(self._source.where).jobs > 0

    # --- asleep ----------------------------------------------------------------------------------------

    def _slept(self, idleness: IdleBackoff) -> bool:
        """Wait to be called, where that can be and is worth it; then there may be work."""
        sleeper = self._parts.hold.sleeper
        if sleeper is None or not sleeper.can_sleep() or not idleness.may_sleep:
            return False
        condition = self._wake_condition(idleness)
        with idleness.asleep(costs=condition.work is not None), sleeper.waiting(condition):
            self._wait_to_be_woken(sleeper, idleness)
        self._control.heed()
        return True

    def _wake_condition(self, idleness: IdleBackoff) -> WakeCondition:
        """What to be called for. Where only a claim can tell whether there is work, claims go on as ever."""
        work = self._parts.work(self._source.where)
        if work is not None:
            return WakeCondition(work, FIRST_CHECK, self._poll * RARER)
        pause = idleness.pause()
        return WakeCondition(None, pause, pause)

    def _wait_to_be_woken(self, sleeper: Sleeper, idleness: IdleBackoff) -> None:
        while not self._control.hears(min(CHECK, max(0.0, idleness.left))):
            if idleness.left <= 0 or not sleeper.is_active:
                return


def _must_be_settled(batch: Batch) -> None:
    if not batch.settled:
        batch.settle()
        raise BatchNotSettled


class BatchSource:
    """Claims for a loop over batches. Leaving a batch settles it and claims the next, in one transaction.

    What is claimed so and not asked for is released: when the loop ends, or after half a lease.
    """

    def __init__(self, parts: QueueParts, size: int, where: Where, control: Control) -> None:
        """No batch is claimed ahead once `control` says stop."""
        self._parts = parts
        self._size = size
        self.where = where
        self._control = control
        self._closed = False
        self._early: tuple[Hold, ClaimResult] | None = None

    def next_batch(self) -> Batch:
        """The batch that was claimed with the last settle, or one that is claimed now. It may be empty."""
        early, self._early = self._early, None
        if early is not None:
            hold, claimed = early
            if hold.take_early(claimed):
                return self._parts.batch(hold, claimed, self)
        return self._parts.claim(self._size, self.where, self)

    def settle(self, hold: Hold, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Settle a batch and claim the next one. If no job was done, a claim would return the same jobs again."""
        if self._is_last or not (outcomes.done and hold.settles_and_claims):
            return hold.settle(claimed, outcomes)
        try:
            plan = self._parts.plan(self.where)
        except Exception:  # of a user's callable: whoever asks for the next batch gets the error
            return hold.settle(claimed, outcomes)
        lost, following = hold.settle_and_claim(claimed, outcomes, self._size, plan)
        if following.jobs:
            self._early = hold, following
        return lost

    @property
    def _is_last(self) -> bool:
        return self._closed or self._control.stopping

    def close(self) -> None:
        """Release what nobody asked for. A batch that is still open claims no other one any more."""
        self._closed = True
        early, self._early = self._early, None
        if early is not None:
            hold, claimed = early
            if hold.take_early(claimed):
                hold.settle(claimed, Outcomes(released=[job.key for job in claimed.jobs]))


class PrefetchSource:
    """Claims batches in a thread, while the one before is worked on; each is settled by itself.

    Prefetched batches are held: an owner that dies loses them all, and so does one whose handler hangs.
    """

    def __init__(self, parts: QueueParts, size: int, where: Where, control: Control, *, count: int) -> None:
        """`count`: how many batches to hold beside the one that is worked on."""
        self._parts = parts
        self._size = size
        self.where = where
        self._control = control
        self._count = count
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="claimjobs prefetch")
        self._next: deque[Future[Batch]] = deque()

    def next_batch(self) -> Batch:
        """The batch that was claimed first, or one that is claimed now. It may be empty."""
        batch = self._next.popleft().result() if self._next else self._claim()
        if not batch:  # that was some time ago
            batch = self._claim()
        while batch and len(self._next) < self._count and not self._control.stopping:
            self._next.append(self._thread.submit(self._claim))
        return batch

    def close(self) -> None:
        """Release what nobody asked for."""
        self._thread.shutdown(cancel_futures=True)
        for claim in self._next:
            if not claim.cancelled() and not claim.exception():
                claim.result().settle()
        self._next.clear()

    def _claim(self) -> Batch:
        return self._parts.claim(self._size, self.where)

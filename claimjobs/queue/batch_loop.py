"""Rounds: a loop that claims batch after batch, and waits in between while there is nothing to claim."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Literal

import sqlalchemy as sa

from claimjobs.batch.batch import Batch, Grip
from claimjobs.batch.settle import Outcomes
from claimjobs.batch.transaction_hold import TransactionHold
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.dialects import Key
from claimjobs.errors import BatchNotSettled, ServerUnreachable
from claimjobs.lease.idle_checks import WakeCondition
from claimjobs.lease.lease_hold import EarlyClaim, LeaseHold
from claimjobs.lease.sleeper import Sleeper
from claimjobs.queue.control import Control
from claimjobs.queue.idle_backoff import IdleBackoff
from claimjobs.queue.parts import QueueParts
from claimjobs.table.predicates import Where

Drain = bool | Literal["retries"]

FIRST_LOOK: Final = 0.05
"""Seconds after a loop fell asleep; doubled with each look. What was about to be committed then, these find."""
RARER: Final = 3
"""Times `poll`: how often a loop looks that is asleep, and would be called."""
CHECK: Final = 5.0
"""Seconds after which a loop that waits to be called makes sure that there is somebody to hear it."""


class BatchLoop:
    """The batches of one loop that hold something. To be iterated over once."""

    def __init__(
        self,
        works: QueueParts,
        relay: BatchSource | PrefetchSource,
        orders: Control,
        *,
        drain: Drain,
        poll: float,
        idle: float | None,
    ) -> None:
        """It ends when it is ordered to stop; with `drain`, or ordered to, when nothing can be claimed; and after
        `idle` seconds without a batch. `poll` is the longest pause between two looks, in seconds.
        """
        self._works = works
        self._relay = relay
        self._orders = orders
        self._drain = drain
        self._poll = poll
        self._idle = math.inf if idle is None else idle

    def __iter__(self) -> Generator[Batch, None, None]:
        """Raises BatchNotSettled when the next batch is asked for while the last one is open, and what a claim does."""
        with contextlib.closing(self._relay):
            yield from self._batches(IdleBackoff(self._poll, self._idle))

    def _batches(self, idleness: IdleBackoff) -> Generator[Batch, None, None]:
        while not self._orders.stopping:
            batch = self._claim()
            if batch:
                yield batch
                _must_be_settled(batch)
                idleness.worked()
            elif self._is_last(batch, idleness):
                return
            elif batch.contended or self._drains_retries or not self._slept(idleness):
                self._orders.wait(idleness.pause())

    def _claim(self) -> Batch:
        """A batch; an empty one where the database cannot be reached and nobody wants to wait for it any more."""
        try:
            return self._relay()
        except (sa.exc.DBAPIError, ServerUnreachable):
            if not self._orders.stopping:
                raise
            return self._works.batch(NOTHING, Grip(lambda _: set()))

    def _is_last(self, empty: Batch, idleness: IdleBackoff) -> bool:
        """Whether this was the last look. What others are about to claim may come back: a drain waits for that."""
        if self._orders.stopping or idleness.left <= 0:
            return True
        drained = (self._drain or self._orders.draining) and not empty.contended
        return bool(drained) and not self._retries_are_awaited()

    @property
    def _drains_retries(self) -> bool:
        """Then it does not sleep: nobody calls when another consumer has done the last one."""
        return self._drain == "retries" or self._orders.waits_for_retries

    def _retries_are_awaited(self) -> bool:
        return self._drains_retries and self._works.retries(self._relay.where).jobs > 0

    # --- asleep ----------------------------------------------------------------------------------------

    def _slept(self, idleness: IdleBackoff) -> bool:
        """Wait to be called, where that can be and is worth it; then there may be work."""
        sleeper = self._works.hand.sleeper
        if sleeper is None or not sleeper.can() or not idleness.may_sleep:
            return False
        wish = self._wish(idleness)
        with idleness.asleep(costs=wish.work is not None), sleeper.waiting(wish):
            self._wait_for_a_call(sleeper, idleness)
        self._orders.heed()
        return True

    def _wish(self, idleness: IdleBackoff) -> WakeCondition:
        """What to be called for. Where only a claim can tell whether there is work, claims go on as ever."""
        work = self._works.work(self._relay.where)
        if work is not None:
            return WakeCondition(work, FIRST_LOOK, self._poll * RARER)
        pause = idleness.pause()
        return WakeCondition(None, pause, pause)

    def _wait_for_a_call(self, sleeper: Sleeper, idleness: IdleBackoff) -> None:
        while not self._orders.hears(min(CHECK, max(0.0, idleness.left))):
            if idleness.left <= 0 or not sleeper.is_well:
                return


def listen(hand: LeaseHold | TransactionHold, *, orders: Control, on_hang: Callable[[], None]) -> None:
    """Let a new hand heed the orders, and tell the loops when there may be work; `on_hang`: when a batch hangs."""
    hand.unwanted = lambda: orders.stopping
    if isinstance(hand, LeaseHold):
        hand.heart.on_reclaimed = hand.heart.sleeper.on_called = partial(_look_back_at_once, hand, orders)
        hand.heart.on_hang = on_hang


def _look_back_at_once(hand: LeaseHold, orders: Control) -> None:
    hand.look_back()
    orders.wake()


def _must_be_settled(batch: Batch) -> None:
    if not batch.settled:
        batch.settle()
        raise BatchNotSettled


class BatchSource:
    """Claims for a loop over batches. Leaving a batch settles it and claims the next, in one transaction.

    What is claimed so and not asked for is released: when the loop ends, or after half a lease.
    """

    def __init__(self, works: QueueParts, size: int, where: Where, wanted: Callable[[], bool]) -> None:
        """`wanted`: whether there is to be another batch."""
        self._works = works
        self._size = size
        self.where = where
        self._wanted = wanted
        self._next: tuple[LeaseHold, EarlyClaim] | None = None

    def __call__(self) -> Batch:
        """The batch that was taken along, or one that is claimed now. It may be empty."""
        claimed, grip = self._taken_along() or self._works.claim(self._size, self.where)
        hand = self._works.hand
        if isinstance(hand, LeaseHold):  # where a transaction holds the jobs, it ends with them
            grip.settle_and_go_on = partial(self._go_on, hand, claimed.owner)
        return self._works.batch(claimed, grip)

    def close(self) -> None:
        """Release what nobody asked for. A batch that is still open takes no other one along any more."""
        self._wanted = _nobody
        hand, claimed = self._take()
        if hand is not None and claimed is not None:
            hand.settle(Outcomes(released=[job.key for job in claimed.jobs]), claimed.owner)

    def _go_on(self, hand: LeaseHold, owner: int, outcomes: Outcomes) -> set[Key]:
        """Settle. Where nothing came of a batch the next one would not be another."""
        if not outcomes.done or not self._wanted():
            return hand.settle(outcomes, owner)
        try:
            turn = self._works.turn(self.where)
        except Exception:  # of a user's callable: whoever asks for the next batch is told
            return hand.settle(outcomes, owner)
        lost, claimed = hand.turn(outcomes, owner, self._size, turn)
        if claimed.jobs:
            self._next = hand, hand.ahead.add(claimed)
        return lost

    def _taken_along(self) -> tuple[ClaimResult, Grip] | None:
        hand, claimed = self._take()
        return None if hand is None or claimed is None else (claimed, hand.grip(claimed))

    def _take(self) -> tuple[LeaseHold | None, ClaimResult | None]:
        taken, self._next = self._next, None
        return (None, None) if taken is None else (taken[0], taken[0].ahead.take(taken[1]))


def _nobody() -> bool:
    return False


class PrefetchSource:
    """The same, where batches are claimed while the one before is worked on, in a thread; each is settled by itself.

    They are in hand from then on: an owner that dies loses them all, and so does one whose handler hangs.
    """

    def __init__(self, works: QueueParts, size: int, where: Where, wanted: Callable[[], bool], *, count: int) -> None:
        """`count`: how many batches to have in hand beside the one that is worked on."""
        self._works = works
        self.where = where
        self._claim = partial(works.claim, size, where)
        self._wanted = wanted
        self._count = count
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="claimjobs prefetch")
        self._next: deque[Future[tuple[ClaimResult, Grip]]] = deque()

    def __call__(self) -> Batch:
        """The batch that was claimed first, or one that is claimed now. It may be empty."""
        claimed, grip = self._next.popleft().result() if self._next else self._claim()
        if not claimed.jobs:  # that was some time ago
            claimed, grip = self._claim()
        while claimed.jobs and len(self._next) < self._count and self._wanted():
            self._next.append(self._thread.submit(self._claim))
        return self._works.batch(claimed, grip)

    def close(self) -> None:
        """Release what nobody asked for."""
        self._thread.shutdown(cancel_futures=True)
        for claim in self._next:
            if not claim.cancelled() and not claim.exception():
                self._works.batch(*claim.result()).settle()
        self._next.clear()

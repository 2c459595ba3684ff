"""Relay: the batches of one loop, of which each takes the next one along, or is worked on while that is fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from claimjobs.ahead import Ahead
from claimjobs.batch import Batch, Grip
from claimjobs.dialects import Key
from claimjobs.hand import Hand
from claimjobs.phases import Claimed
from claimjobs.selection import Where
from claimjobs.settle import Outcomes
from claimjobs.works import Works


class Relay:
    """Claims for a loop over batches. Leaving a batch settles it and claims the next, in one transaction.

    What is claimed so and not asked for is released: when the loop ends, or after half a lease.
    """

    def __init__(self, works: Works, size: int, where: Where, wanted: Callable[[], bool]) -> None:
        """`wanted`: whether there is to be another batch."""
        self._works = works
        self._size = size
        self.where = where
        self._wanted = wanted
        self._next: tuple[Hand, Ahead] | None = None

    def __call__(self) -> Batch:
        """The batch that was taken along, or one that is claimed now. It may be empty."""
        claimed, grip = self._taken_along() or self._works.claim(self._size, self.where)
        hand = self._works.hand
        if isinstance(hand, Hand):  # where a transaction holds the jobs, it ends with them
            grip.settle_and_go_on = partial(self._go_on, hand, claimed.owner)
        return self._works.batch(claimed, grip)

    def close(self) -> None:
        """Release what nobody asked for. A batch that is still open takes no other one along any more."""
        self._wanted = _nobody
        hand, claimed = self._take()
        if hand is not None and claimed is not None:
            hand.settle(Outcomes(released=[job.key for job in claimed.jobs]), claimed.owner)

    def _go_on(self, hand: Hand, owner: int, outcomes: Outcomes) -> set[Key]:
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

    def _taken_along(self) -> tuple[Claimed, Grip] | None:
        hand, claimed = self._take()
        return None if hand is None or claimed is None else (claimed, hand.grip(claimed))

    def _take(self) -> tuple[Hand | None, Claimed | None]:
        taken, self._next = self._next, None
        return (None, None) if taken is None else (taken[0], taken[0].ahead.take(taken[1]))


def _nobody() -> bool:
    return False


class Prefetch:
    """The same, where batches are claimed while the one before is worked on, in a thread; each is settled by itself.

    They are in hand from then on: an owner that dies loses them all, and so does one whose handler hangs.
    """

    def __init__(self, works: Works, size: int, where: Where, wanted: Callable[[], bool], *, count: int) -> None:
        """`count`: how many batches to have in hand beside the one that is worked on."""
        self._works = works
        self.where = where
        self._claim = partial(works.claim, size, where)
        self._wanted = wanted
        self._count = count
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="claimjobs prefetch")
        self._next: deque[Future[tuple[Claimed, Grip]]] = deque()

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

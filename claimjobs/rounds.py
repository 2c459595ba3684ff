"""Rounds: a loop that claims batch after batch, and waits in between while there is nothing to claim."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, Literal

import sqlalchemy as sa

from claimjobs.batch import Batch, Grip
from claimjobs.errors import BatchNotSettled, ServerUnreachable
from claimjobs.hand import Hand
from claimjobs.idle import Idleness
from claimjobs.orders import Orders
from claimjobs.phases import NOTHING
from claimjobs.relay import Prefetch, Relay
from claimjobs.sleep import Sleeper
from claimjobs.transaction import TransactionHold
from claimjobs.wish import Wish
from claimjobs.works import Works

Drain = bool | Literal["retries"]

FIRST_LOOK: Final = 0.05
"""Seconds after a loop fell asleep; doubled with each look. What was about to be committed then, these find."""
RARER: Final = 3
"""Times `poll`: how often a loop looks that is asleep, and would be called."""
CHECK: Final = 5.0
"""Seconds after which a loop that waits to be called makes sure that there is somebody to hear it."""


class Rounds:
    """The batches of one loop that hold something. To be iterated over once."""

    def __init__(
        self, works: Works, relay: Relay | Prefetch, orders: Orders, *, drain: Drain, poll: float, idle: float | None
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
            yield from self._batches(Idleness(self._poll, self._idle))

    def _batches(self, idleness: Idleness) -> Generator[Batch, None, None]:
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

    def _is_last(self, empty: Batch, idleness: Idleness) -> bool:
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

    def _slept(self, idleness: Idleness) -> bool:
        """Wait to be called, where that can be and is worth it; then there may be work."""
        sleeper = self._works.hand.sleeper
        if sleeper is None or not sleeper.can() or not idleness.may_sleep:
            return False
        wish = self._wish(idleness)
        with idleness.asleep(costs=wish.work is not None), sleeper.waiting(wish):
            self._wait_for_a_call(sleeper, idleness)
        self._orders.heed()
        return True

    def _wish(self, idleness: Idleness) -> Wish:
        """What to be called for. Where only a claim can tell whether there is work, claims go on as ever."""
        work = self._works.work(self._relay.where)
        if work is not None:
            return Wish(work, FIRST_LOOK, self._poll * RARER)
        pause = idleness.pause()
        return Wish(None, pause, pause)

    def _wait_for_a_call(self, sleeper: Sleeper, idleness: Idleness) -> None:
        while not self._orders.hears(min(CHECK, max(0.0, idleness.left))):
            if idleness.left <= 0 or not sleeper.is_well:
                return


def listen(hand: Hand | TransactionHold, *, orders: Orders, on_hang: Callable[[], None]) -> None:
    """Let a new hand heed the orders, and tell the loops when there may be work; `on_hang`: when a batch hangs."""
    hand.unwanted = lambda: orders.stopping
    if isinstance(hand, Hand):
        hand.heart.on_reclaimed = hand.heart.sleeper.on_called = partial(_look_back_at_once, hand, orders)
        hand.heart.on_hang = on_hang


def _look_back_at_once(hand: Hand, orders: Orders) -> None:
    hand.look_back()
    orders.wake()


def _must_be_settled(batch: Batch) -> None:
    if not batch.settled:
        batch.settle()
        raise BatchNotSettled

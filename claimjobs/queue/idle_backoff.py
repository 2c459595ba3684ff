"""Idle: how long a loop has had nothing to do, and how it waits for more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from claimjobs.backoff import Backoff

SHORTEST_POLL: Final = 0.02
"""Seconds an idle consumer waits after its first empty claim; doubled with each one up to `poll`."""
SHORT: Final = 0.1
"""A sleep of fewer seconds was not worth what is written for it: it makes the loop wait before the next one."""
LONGEST_WAIT: Final = 1.0
"""Seconds that a loop is awake between two sleeps, at most, however short they were."""


class IdleBackoff:
    """Of one loop. A pause follows each look that found nothing; or a sleep, where somebody calls."""

    def __init__(self, poll: float, idle: float) -> None:
        """`poll` is the longest pause; after `idle` seconds without work none is `left`."""
        self._backoff = Backoff(min(SHORTEST_POLL, poll), poll)
        self._idle = idle
        self._awake_for = 0.0
        self._awake_since = time.monotonic()
        self.worked()

    def worked(self) -> None:
        """There was something to do until now."""
        self._backoff.reset()
        self._ends = time.monotonic() + self._idle

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return self._ends - time.monotonic()

    def pause(self) -> float:
        """Seconds until the next look; twice as many the next time, and so that not all look at once."""
        return min(self._backoff.pause(), max(self.left, SHORTEST_POLL))

    @property
    def may_sleep(self) -> bool:
        """Whether it has been awake for long enough. At once, unless its last sleeps were short: lying down and
        getting up are written, and where there is always something soon that is more than a few looks cost.
        """
        return time.monotonic() - self._awake_since >= self._awake_for

    @contextmanager
    def asleep(self, *, costs: bool = True) -> Iterator[None]:
        """The loop sleeps for a `with` block. `costs`: it does so in place of pauses, not of one of them."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._awake_since = time.monotonic()
            short = self._awake_since - began < SHORT
            self._awake_for = min(LONGEST_WAIT, max(SHORTEST_POLL, 2 * self._awake_for)) if short and costs else 0.0

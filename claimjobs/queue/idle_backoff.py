"""IdleBackoff: how long a loop has been idle, and how long it pauses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from claimjobs.backoff import Backoff

SHORTEST_POLL: Final = 0.02
"""The pause after the first empty claim, in seconds; it doubles with each one up to `poll`."""
SHORT: Final = 0.1
"""A sleep of fewer seconds was not worth its two writes: the loop stays awake for a while before the next one."""
SHARE: Final = 10
"""While others have locked all jobs, a loop pauses for at least so many times as long as a claim takes. So claims that
read many locked rows take at most about one part in so many of the time."""
LONGEST_REST: Final = 5.0
"""The longest such pause in seconds."""
LONGEST_WAIT: Final = 1.0
"""The longest time in seconds that a loop stays awake between two sleeps."""


class IdleBackoff:
    """The pauses and sleeps of one loop. One of them follows each claim that found nothing."""

    def __init__(self, poll: float, idle: float) -> None:
        """`poll`: the longest pause in seconds. `idle`: the seconds without work after which the loop ends."""
        self._backoff = Backoff(min(SHORTEST_POLL, poll), poll)
        self._idle = idle
        self._took = self._rest = 0.0
        self._awake_for = 0.0
        self._awake_since = time.monotonic()
        self.worked()

    def worked(self) -> None:
        """Begin again: the loop had a batch."""
        self._backoff.reset()
        self._took = self._rest = 0.0
        self._ends = time.monotonic() + self._idle

    def met_locked_jobs(self, seconds: float) -> None:
        """Note how long the last claim took, which met only jobs that others have locked. The shorter of two counts:
        the first claim of a consumer connects, too.
        """
        self._rest = min(SHARE * min(seconds, self._took), LONGEST_REST)
        self._took = seconds

    @property
    def left(self) -> float:
        """Seconds until the loop ends."""
        return self._ends - time.monotonic()

    def pause(self) -> float:
        """Seconds until the next claim. They double each time, with jitter, so that loops claim at different times."""
        return min(max(self._backoff.pause(), self._rest), max(self.left, SHORTEST_POLL))

    @property
    def may_sleep(self) -> bool:
        """Whether a sleep is worth its two writes. After short sleeps it is not for a while: a few claims cost less."""
        return time.monotonic() - self._awake_since >= self._awake_for

    @contextmanager
    def asleep(self, *, costs: bool = True) -> Iterator[None]:
        """A `with` block in which the loop sleeps. `costs`: it counts as a short sleep if it is short."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._awake_since = time.monotonic()
            short = self._awake_since - began < SHORT
            self._awake_for = min(LONGEST_WAIT, max(SHORTEST_POLL, 2 * self._awake_for)) if short and costs else 0.0

"""Search: the claims of one consumer, of which each teaches the next where and how far to look."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from claimjobs.claim import Algorithm
from claimjobs.cursor import Cursor
from claimjobs.overfetch import Overfetch
from claimjobs.phases import Claimed, Look
from claimjobs.report import Report

TRIES: Final = 5
"""How often a claim that met only other hands looks again, wider each time, before it comes back empty."""


class Search:
    """Claims of one consumer: each is tried until it takes something."""

    def __init__(self, report: Report) -> None:
        self._overfetch = Overfetch()
        self._report = report
        self._algorithm: Any = None
        self._cursor = Cursor(None)
        self._since = 0.0

    def __call__(self, size: int, algorithm: Algorithm, take: Callable[[Look], Claimed]) -> Claimed:
        """What `take` takes with this algorithm: up to `size` jobs. Counted."""
        tries = TRIES
        while True:
            look = self.look(size, algorithm)
            claimed = take(look)
            self.learn(look, claimed)
            if claimed.jobs or (look.after is None and not claimed.found):
                return claimed
            tries -= look.after is None  # what stands beyond a cursor is not all that there is
            if not tries:
                return claimed

    def look(self, size: int, algorithm: Algorithm) -> Look:
        """Where and how far to look. What was learned of places counts for the same algorithm only."""
        if algorithm is not self._algorithm:
            self._algorithm, self._cursor = algorithm, Cursor(algorithm.walk)
        self._since = time.monotonic()
        limit = self._overfetch.most(size) if algorithm.is_lazy else self._overfetch.limit(size)
        return Look(size, limit, self._cursor.begin())

    def learn(self, look: Look, claimed: Claimed) -> None:
        """What came of a look. Counted."""
        self._overfetch.learn(claimed, look.size, look.limit)
        self._cursor.learn(claimed, look, time.monotonic() - self._since)
        self._report.count_claim(len(claimed.jobs), candidates=claimed.found, collisions=claimed.collisions)

    def look_back(self) -> None:
        """There may be jobs before the cursor: look from the head next."""
        self._cursor.look_back()

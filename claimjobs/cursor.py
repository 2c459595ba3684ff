"""Cursor: where in the order a consumer's next claim begins to look."""

from __future__ import annotations

import time
from typing import Final

from claimjobs.errors import Unreadable
from claimjobs.job import Job
from claimjobs.phases import After, Claimed, Look
from claimjobs.statements.find import Walk

SHARE: Final = 10
"""Looks from the head take at most about one part in so many of the time."""
LONGEST: Final = 2.0
"""Seconds after which a look is from the head, whatever that costs."""


class Cursor:
    """A claim begins beyond the last job of the one before: what stood up to there was taken, or was in other hands.

    What is gone stays in an index for a while; for hours, where another session holds a snapshot open. A claim from
    the head walks over all of that, a claim from the cursor over what went since the last one.

    Jobs can appear before the cursor: enqueued with a smaller key or a higher priority, committed late, run again,
    due at last, handed back. So every now and then, and whenever there are not enough beyond, one looks from the head.
    """

    def __init__(self, walk: Walk | None) -> None:
        self._walk = walk
        self._place: After = None
        self._head_at = 0.0

    def begin(self) -> After:
        """Where to look now; None: from the head."""
        return None if time.monotonic() >= self._head_at else self._place

    def learn(self, claimed: Claimed, look: Look, took: float) -> None:
        """What came of a look that took so many seconds."""
        if look.after is None:
            self._head_at = time.monotonic() + min(SHARE * took, LONGEST)
        if len(claimed.jobs) == look.size and self._walk is not None:
            self._place = self._after(self._walk, claimed.jobs[-1])
        elif not claimed.jobs or claimed.found < look.limit:
            self._place = None
        else:  # what it read others had: there is more beyond, of which the next claim reads more
            self._place = look.after

    @staticmethod
    def _after(walk: Walk, job: Job) -> After:
        """The place of a job; None where Python cannot hold what says it."""
        try:
            return walk.place(job)
        except Unreadable:
            return None

    def look_back(self) -> None:
        """Jobs have appeared before the cursor, as far as this process knows: look from the head next."""
        self._place = None

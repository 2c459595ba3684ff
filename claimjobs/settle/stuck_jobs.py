"""StuckJobs: jobs whose outcome, and whose failure, the database refuses. They stay claimed, and both are tried again.

What refuses a failure may pass: a unique index over waiting jobs does so while another job with the same values waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from claimjobs.dialects import Key
from claimjobs.settle.outcomes import Outcomes
from claimjobs.settle.refusals import SettleWithRefusals, Unsettled

AGAIN: Final = 5.0
"""Seconds between two tries to write the refused failures."""


class StuckJobs:
    """The stuck jobs of a process. A key is in it while its job is stuck."""

    def __init__(self, settling: SettleWithRefusals) -> None:
        self._settling = settling
        self._keys: set[Key] = set()
        self._later: list[tuple[int, Outcomes]] = []
        """Outcomes to be written, each with the owner that holds the jobs."""
        self._due = math.inf

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @property
    def are_tried_again(self) -> bool:
        """Whether there are outcomes to be written."""
        return bool(self._later)

    def add(self, owner: int, unsettled: Unsettled) -> None:
        """Add what a settle of this owner could not write."""
        self._keys.update(unsettled.stuck)
        if len(later := unsettled.later):
            keys = set(later.keys())
            jobs = {key: job for key, job in later.jobs.items() if key in keys}  # not all jobs of the batch
            self._later.append((owner, replace(later, jobs=jobs)))
            self._due = min(self._due, time.monotonic() + AGAIN)

    def write_again(self) -> Iterator[Outcomes]:
        """Try to write the refused outcomes, once every few seconds. Yields what is written now."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + AGAIN
        for owner, wanted in self._later.copy():
            written, refused = self._settling.settle_again(owner, wanted)
            self._later.remove((owner, wanted))
            if len(refused):
                self._later.append((owner, refused))
            self._keys -= set(wanted.keys()) - set(refused.keys())
            yield written
        self._due = self._due if self._later else math.inf

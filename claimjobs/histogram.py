"""Histogram: how many values lie below each of a few bounds. Processes add theirs to one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
"""Upper bounds for durations: from a fast batch to a backlog of an hour."""
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
"""Upper bounds for the number of jobs of a batch."""


@dataclass
class Histogram:
    """Counts of values. Empty until the first value, so that a histogram that is not used costs nothing to send."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    """How many values are at most as large as each bound, and larger than the bound before; last: larger ones."""
    sum: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value so many times."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def __add__(self, other: Histogram) -> Histogram:
        if not (self.counts and other.counts):
            used = self if self.counts else other
            return Histogram(used.bounds, list(used.counts), used.sum)
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.sum + other.sum)

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """Each upper bound, the last being `+Inf`, and how many values are not larger."""
        counts = self.counts or [0] * (len(self.bounds) + 1)
        return list(zip((*map(str, self.bounds), "+Inf"), map(float, accumulate(counts)), strict=True))

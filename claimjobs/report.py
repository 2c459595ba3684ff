"""Counters of what a queue did. Each process counts; a supervisor adds the counts of its processes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields
from itertools import accumulate, zip_longest
from typing import ClassVar, Final

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

    counts: list[int] = field(default_factory=list)
    """How many values are at most as large as each bound, and larger than the bound before; last: larger ones."""
    sum: float = 0.0
    bounds: ClassVar[tuple[float, ...]] = SECONDS

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value so many times."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def __add__(self, other: Histogram) -> Histogram:
        counts = [mine + theirs for mine, theirs in zip_longest(self.counts, other.counts, fillvalue=0)]
        return type(self)(counts, self.sum + other.sum)

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """Each upper bound, the last being `+Inf`, and how many values are not larger."""
        counts = self.counts or [0] * (len(self.bounds) + 1)
        return list(zip((*map(str, self.bounds), "+Inf"), map(float, accumulate(counts)), strict=True))


class SizeHistogram(Histogram):
    """A histogram of the sizes of batches."""

    bounds = SIZES


@dataclass
class BatchTimes:
    """Sizes and times of batches. Empty unless the Queue measures them: see `claimjobs.batch.batch`."""

    batch_jobs: Histogram = field(default_factory=SizeHistogram)
    """Jobs of each batch that is not empty."""
    due_to_claimed: Histogram = field(default_factory=Histogram)
    """Seconds, of some jobs of each batch."""
    claimed_to_settled: Histogram = field(default_factory=Histogram)
    """Seconds, of each job."""

    def __add__(self, other: BatchTimes) -> BatchTimes:
        return BatchTimes(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass
class Report:
    """Counts since the start; all are jobs unless the name says otherwise."""

    claims: int = 0
    """Claims made (not jobs), empty ones included."""
    empty_claims: int = 0
    """Claims that got no job, because no job was due or others were faster."""
    candidates: int = 0
    """Keys found in phase 1."""
    collisions: int = 0
    """Candidates that another consumer had locked or claimed before phase 2."""
    claimed: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    suspects: int = 0
    """Released after an error that named no job, to be claimed again in smaller groups."""
    released: int = 0
    lost: int = 0
    """Jobs whose outcome was refused because this owner no longer held them."""
    reclaimed: int = 0
    """Jobs that a heartbeat of this process reclaimed from dead owners."""
    enqueued: int = 0
    still_due: int = 0
    """Done with `on_done="leave"`, but still due: the handler did not make the queue's predicate false."""
    unclaimable: int = 0
    """Rows that this consumer leaves, because the database refuses every claim of them."""
    transients: Counter[str] = field(default_factory=Counter)
    """Transactions run again, by reason: deadlock, lock timeout, serialization, connection lost, ..."""
    times: BatchTimes = field(default_factory=BatchTimes)

    def __add__(self, other: Report) -> Report:
        return Report(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __str__(self) -> str:
        """The counts that are not 0, on one line."""
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.type == "int"}
        shown = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count]
        shown += [f"{count:,} x {kind}" for kind, count in sorted(self.transients.items())]
        return ", ".join(shown) or "nothing yet"

    def copy(self) -> Report:
        """A copy of the present counts."""
        return self + Report()

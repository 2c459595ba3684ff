"""Counters of what a queue did. Each process counts; a supervisor adds the counts of its processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from claimjobs.histogram import SECONDS, SIZES, Histogram


@dataclass
class BatchTimes:
    """Sizes and times of batches. Empty unless the Queue measures them: see `claimjobs.batch.batch_timer`."""

    batch_jobs: Histogram = field(default_factory=lambda: Histogram(SIZES))
    """Jobs of each batch that is not empty."""
    due_to_claimed: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Seconds, of some jobs of each batch."""
    claimed_to_settled: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Seconds, of each job."""

    def __add__(self, other: BatchTimes) -> BatchTimes:
        return BatchTimes(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __reduce__(self) -> tuple[Any, ...]:
        """Small to send, after each batch: the receiver knows the bounds."""
        return _received, tuple((histogram.counts, histogram.sum) for histogram in vars(self).values())


def _received(*sent: tuple[list[int], float]) -> BatchTimes:
    times = BatchTimes()
    for histogram, (counts, total) in zip(vars(times).values(), sent, strict=True):
        histogram.counts, histogram.sum = counts, total
    return times


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

    def count_claim(self, jobs: int, *, candidates: int, collisions: int) -> None:
        """Count one claim."""
        self.claims += 1
        self.empty_claims += not jobs
        self.candidates += candidates
        self.collisions += collisions
        self.claimed += jobs

    def __add__(self, other: Report) -> Report:
        return Report(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def copy(self) -> Report:
        """A copy of the present counts."""
        return self + Report()

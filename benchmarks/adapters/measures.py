"""Measures: what consumers and the producer have done, and how long jobs waited in the last 30 seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

WINDOW = 30
"""Seconds for which a latency counts."""


class Measures:
    """Counts that several threads add to."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.enqueued = 0
        self.completed = 0
        self._latencies: deque[tuple[int, Counter[float]]] = deque()
        self._lock = threading.Lock()
        self._clock = clock

    def add_enqueued(self, jobs: int) -> None:
        with self._lock:
            self.enqueued += jobs

    def add_completed(self, jobs: int, latencies: Sequence[float]) -> None:
        """Add the jobs of a batch that are done, and how many seconds each of its jobs waited."""
        with self._lock:
            self.completed += jobs
            self._of_this_second().update(map(_rounded, latencies))

    def percentiles(self, shares: Sequence[float]) -> list[float]:
        """The latencies in milliseconds below which these shares of the jobs lie; 0 if there was none."""
        with self._lock:
            self._forget(int(self._clock()))
            counts = sum((counter for _, counter in self._latencies), Counter[float]())
        return [_percentile(counts, share) for share in shares]

    def _of_this_second(self) -> Counter[float]:
        second = int(self._clock())
        if not self._latencies or self._latencies[-1][0] != second:
            self._forget(second)
            self._latencies.append((second, Counter()))
        return self._latencies[-1][1]

    def _forget(self, second: int) -> None:
        while self._latencies and self._latencies[0][0] <= second - WINDOW:
            self._latencies.popleft()


def _rounded(seconds: float) -> float:
    """Milliseconds with three digits that count: so the number of different values is bounded."""
    return float(f"{seconds * 1000:.3g}")


def _percentile(counts: Counter[float], share: float) -> float:
    needed, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= needed:
            return value
    return 0.0

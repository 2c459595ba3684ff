"""Slow handlers: how much longer a consumer takes than its handler, which sleeps for each job. `--help`

The time from the first job to the last settle, as a multiple of what the handler itself took by its own clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import article, raw, tables
from benchmarks.contestants import OURS, RAW, Opened, ours
from benchmarks.crew import Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.raw import Keys
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Slow handlers"
VARIES = "ms a job"
UNIT = "times the handler's"
PLOT: Plot = None
SIZES = {"milliseconds": [1, 10, 100], "batch": [100, 20, 5], "batches": [15, 8, 4], "repeat": 1}
SMALL = {"milliseconds": [1, 10], "batch": [100, 5], "batches": [3, 3]}
FULL = {"batch": [100, 100, 100], "repeat": 3}

CONTESTANTS: dict[str, tuple[Opened, dict[str, Any]]] = {RAW: (raw.opened, {}), OURS: (ours, {})}


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each duration: A B C, A B C, ..."""
    for milliseconds, size, batches in zip(sizes.milliseconds, sizes.batch, sizes.batches, strict=True):
        rows = list(article.payload(size * batches))
        for _ in range(sizes.repeat):
            for name in CONTESTANTS:
                yield _drain(name, milliseconds, size, url=server.url, rows=rows)


def _drain(name: str, milliseconds: int, size: int, *, url: str, rows: Sequence[tuple[str, str]]) -> Sample:
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, rows)
    [(jobs, whole, own)] = gather([Worker(consume, url, milliseconds / 1000, size, name=name)])
    if jobs != len(rows) or tables.count(url):
        raise tables.WrongCount(f"{jobs} of {len(rows)} jobs done")
    return Sample(name, milliseconds, whole / own, {"batch": size, "handler s": own, "jobs/s": jobs / whole})


@dataclass
class Handler:
    """Sleeps for each job, and counts how long that took."""

    seconds: float
    began: float = 0.0
    own: float = 0.0

    def __call__(self, keys: Keys) -> None:
        began = time.monotonic()
        self.began = self.began or began
        for _ in keys:
            time.sleep(self.seconds)
        self.own += time.monotonic() - began


def consume(url: str, seconds: float, size: int, *, name: str) -> tuple[int, float, float]:
    """How many jobs were done, the time from the first to the last settle, and the handler's own."""
    opened, options = CONTESTANTS[name]
    handler = Handler(seconds)
    with opened(url, 1, size=size, **options) as loop:
        tally = loop(work=handler)
    return tally.jobs, tally.last - handler.began, handler.own


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 9."""
    for milliseconds in found.places(OURS):
        what = f"{OURS}, {milliseconds:g} ms a job: time, of the handler's own"
        yield Goal(9, what, found.value(OURS, milliseconds), 1.05, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("slow_handlers")

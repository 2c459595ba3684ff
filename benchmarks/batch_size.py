"""Batch size: consumers claim more or fewer jobs at a time. `python -m benchmarks.batch_size --help`

The article's loop takes 100 at a time, and is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks import article, report
from benchmarks.contestants import OURS, RAW, of_batches
from benchmarks.drain import drain
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Drain, by batch size"
VARIES = "batch size"
UNIT = "jobs/s"
PLOT: Plot = "logarithmic"
SIZES = {
    "jobs": {"postgres": 40_000, "mysql": 15_000, "mariadb": 15_000},
    "batch": [10, 100, 500, 1000],
    "consumers": 2,
    "repeat": 1,
}
SMALL = {"jobs": 2_000, "batch": [10, 500], "repeat": 1}
FULL = {"jobs": {"postgres": 200_000, "mysql": 60_000, "mariadb": 60_000}, "repeat": 5}
FEW = 10
"""Batches of so few take much longer for each job: a quarter of the jobs will do."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each batch size: A B C, A B C, ..."""
    rows = list(article.payload(sizes.jobs))
    for size in sizes.batch:
        some = rows if size > FEW else rows[: len(rows) // 4]
        for _ in range(sizes.repeat):
            for contestant in of_batches(size):
                run = drain(contestant, sizes.consumers, url=server.url, rows=some, pid=server.pid)
                yield report.sample(run, at=size)


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 1, at other sizes of a batch."""
    ratios = [found.value(OURS, size) / found.value(RAW, size) for size in found.places(OURS)]
    yield Goal(1, "drain at any batch size, of the raw loop", min(ratios), 0.9)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("batch_size")

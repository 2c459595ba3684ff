"""Backlog: what a claim costs with few and with many jobs waiting, and with as many done ones kept beside. `--help`

The time of a turn, the settle of 100 jobs and the claim of the next 100, by one consumer that has the server for
itself: the median of many. The table never holds fewer waiting jobs than it says.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks import article, raw, tables
from benchmarks.article import BATCH
from benchmarks.contestants import OURS, RAW, Opened, ours
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Backlog and history"
VARIES = "waiting jobs"
UNIT = "ms a turn"
PLOT: Plot = "logarithmic"
SIZES = {"waiting": [1_000, 100_000, 1_000_000], "turns": 40, "repeat": 3}
SMALL = {"waiting": [1_000, 10_000], "turns": 5, "repeat": 1}
FULL = {"waiting": [1_000, 100_000, 1_000_000, 10_000_000], "repeat": 5}

CONTESTANTS: dict[str, Opened] = {RAW: raw.opened, OURS: ours}
KEPT = "as many done"


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each number of waiting jobs: A B, A B, ... without done ones, then with them."""
    for waiting in sizes.waiting:
        tables.clear(server.url)
        tables.setup_claimjobs(server.url)
        tables.fill(server.url, list(article.payload(tables.AT_ONCE)))
        tables.multiply(server.url, waiting)
        yield from _turns(server.url, waiting, sizes, "")
        tables.multiply(server.url, waiting, status="done")
        yield from _turns(server.url, waiting, sizes, f", {KEPT}")


def _turns(url: str, waiting: int, sizes: argparse.Namespace, what: str) -> Iterator[Sample]:
    spare = list(article.payload((sizes.turns + 1) * BATCH))
    for _ in range(sizes.repeat):
        for name, opened in CONTESTANTS.items():
            with article.connected(url) as db:
                tables.insert(db, spare)
            took = timed(opened, url, sizes.turns)
            yield Sample(name + what, waiting, median(took), {"p95": quantiles(took, n=20)[18]})


def timed(opened: Opened, url: str, turns: int) -> list[float]:
    """Milliseconds of each turn: from the claim of a batch to the claim of the next."""
    moments: list[float] = []
    with opened(url, 1) as loop:
        loop(work=lambda _: moments.append(time.perf_counter()), over=lambda: len(moments) > turns)
    return [(two - one) * 1000 for one, two in pairwise(moments)]


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 4: against the fewest waiting jobs, without done ones."""
    least = found.value(OURS, min(found.places(OURS)))
    for name, what in ((OURS, "waiting"), (f"{OURS}, {KEPT}", "waiting and as many done")):
        worst = max(found.value(name, at) for at in found.places(name))
        yield Goal(4, f"a turn with the most jobs {what}, of one with few", worst / least, 1.2, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("backlog")

"""Backlog: what a claim costs with few and with many jobs waiting, and with as many done ones kept beside. `--help`

The time of a turn, the settle of 100 jobs and the claim of the next 100, by one consumer that has the server for
itself: the median of many. The table never holds fewer waiting jobs than it says. All tables are there from the start,
each in a database of its own, and take turns: what a machine does faster for a while it does so for each of them.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks import article, raw, tables
from benchmarks.article import BATCH
from benchmarks.contestants import OURS, OURS_BATCHES, RAW, Opened, ours
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

CONTESTANTS: dict[str, Opened] = {RAW: raw.opened, OURS: ours, OURS_BATCHES: partial(ours, claims="batches")}
KEPT = "as many done"


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Round by round: for each number of waiting jobs, without done ones and with them, one after the other."""
    spare = list(article.payload((sizes.turns + 1) * BATCH))
    with contextlib.ExitStack() as opened:
        waiting = [
            (number, what, opened.enter_context(_waiting(server.url, number, what)))
            for number, what in product(sizes.waiting, ("", f", {KEPT}"))
        ]
        for _, (number, what, url) in product(range(sizes.repeat), waiting):
            for name, contestant in CONTESTANTS.items():
                with article.connected(url) as db:
                    tables.insert(db, spare)
                took = timed(contestant, url, sizes.turns)
                yield Sample(name + what, number, median(took), {"p95": quantiles(took, n=20)[18]})


@contextlib.contextmanager
def _waiting(server: str, number: int, what: str) -> Iterator[str]:
    """The URL of a database in which so many jobs wait."""
    with tables.database(server, f"waiting_{number}{'_and_done' if what else ''}") as url:
        tables.setup_claimjobs(url)
        tables.fill(url, list(article.payload(tables.AT_ONCE)))
        tables.multiply(url, number)
        if what:
            tables.multiply(url, number, status="done")
        yield url


def timed(opened: Opened, url: str, turns: int) -> list[float]:
    """Milliseconds of each turn: from the claim of a batch to the claim of the next."""
    moments: list[float] = []
    with opened(url, 1) as loop:
        loop(work=lambda _: moments.append(time.perf_counter()), over=lambda: len(moments) > turns)
    return [(two - one) * 1000 for one, two in pairwise(moments)]


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 4: against the fewest waiting jobs, without done ones."""
    kinds = {OURS: "", OURS_BATCHES: ", claims=batches"}
    for mine, kind in ((mine, kind) for mine, kind in kinds.items() if found.places(mine)):
        least = found.value(mine, min(found.places(mine)))
        for name, what in ((mine, "waiting"), (f"{mine}, {KEPT}", "waiting and as many done")):
            worst = max(found.value(name, at) for at in found.places(name))
            yield Goal(4, f"a turn with the most jobs {what}{kind}, of one with few", worst / least, 1.2, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("backlog")

"""Round trips: one consumer whose server is 5 ms away, and how often it waits for an answer. `--help`

Counted at the line are trips a turn, a settle and a claim. The prediction is the time of the same jobs through the
same proxy without a delay, and the delay once for each trip: what falls short of it waits for something else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks import article, tables
from benchmarks.contestants import OURS, OURS_HELD, of_batches
from benchmarks.delay import DelayingProxy
from benchmarks.goals import Found, Goal
from benchmarks.harness import Contestant, Run, run_of, together
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Round trips"
VARIES = "ms of delay"
UNIT = "jobs/s"
PLOT: Plot = "lines"
SIZES = {"jobs": 5_000, "delays_ms": [1, 5, 10], "repeat": 1}
SMALL = {"jobs": 1_000, "delays_ms": [5]}
FULL = {"jobs": 50_000, "repeat": 5}

TRIPS = "trips a turn"
OF_PREDICTED = "of that"
MOST_TRIPS = {"postgres": 1.0, "mysql": 5.0, "mariadb": 5.0}
HELD_TO = 5
"""Milliseconds of delay."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """A B C, A B C, ... each without the delay, then with it."""
    rows = list(article.payload(sizes.jobs))
    for _ in range(sizes.repeat):
        for contestant in of_batches():
            near, trips = _through(contestant, server.url, rows, 0.0)
            yield Sample(contestant.name, 0, near.rate, {TRIPS: trips / near.claims})
            for delay in sizes.delays_ms:
                far, trips = _through(contestant, server.url, rows, delay / 1000)
                yield _sample(contestant.name, delay, far, trips, near=near)


def _sample(name: str, delay: int, far: Run, trips: int, *, near: Run) -> Sample:
    predicted = far.jobs / (near.seconds + trips * delay / 1000)
    also = {TRIPS: trips / far.claims, "predicted": predicted, OF_PREDICTED: far.rate / predicted}
    return Sample(name, delay, far.rate, also)


def _through(contestant: Contestant, url: str, rows: Sequence[tuple[str, str]], seconds: float) -> tuple[Run, int]:
    """A drain by one consumer behind a proxy, and its trips."""
    tables.clear(url)
    contestant.setup_tables(url)
    keys = tables.fill(url, rows)
    with DelayingProxy(url, seconds) as proxy:
        shares = together(contestant, proxy.url, 1)
    tables.verify(url, keys, shares)
    return run_of(contestant.name, shares), proxy.trips(shares[0].began.at, shares[0].last)


def goals(found: Found, backend: str) -> Iterator[Goal]:
    """Point 7."""
    for name in (OURS, OURS_HELD):
        yield Goal(7, f"{name}: trips a turn", found.also(name, HELD_TO, TRIPS), MOST_TRIPS[backend], False)
        what = f"{name}: jobs/s with 5 ms of delay, of what the trips predict"
        yield Goal(7, what, found.also(name, HELD_TO, OF_PREDICTED), 0.9)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("round_trip")

"""Round trips: one consumer whose server is 5 ms away, and how often it waits for an answer. `--help`

Counted at the line are trips a turn, a settle and a claim. The prediction is the time of the same jobs through the
same proxy without a delay, and the delay once for each trip: what falls short of it waits for something else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks import article, tables
from benchmarks.contestants import of_batches
from benchmarks.delay import DelayingProxy
from benchmarks.harness import Contestant, Run, run_of, together
from benchmarks.report import Sample

if TYPE_CHECKING:
    from servers import Server

TITLE = "Round trips"
VARIES = "ms of delay"
UNIT = "jobs/s"
SIZES = {"jobs": 10_000, "delay_ms": 5, "repeat": 2}
SMALL = {"jobs": 1_000, "repeat": 1}
FULL = {"jobs": 50_000, "repeat": 5}


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """A B C, A B C, ... each without the delay, then with it."""
    rows = list(article.payload(sizes.jobs))
    for _ in range(sizes.repeat):
        for contestant in of_batches():
            near, _ = _through(contestant, server.url, rows, 0.0)
            yield Sample(contestant.name, 0, near.rate)
            seconds = sizes.delay_ms / 1000
            far, trips = _through(contestant, server.url, rows, seconds)
            predicted = far.jobs / (near.seconds + trips * seconds)
            also = {"trips a turn": trips / far.claims, "predicted": predicted, "of that": far.rate / predicted}
            yield Sample(contestant.name, sizes.delay_ms, far.rate, also)


def _through(contestant: Contestant, url: str, rows: Sequence[tuple[str, str]], seconds: float) -> tuple[Run, int]:
    """A drain by one consumer behind a proxy, and its trips."""
    tables.clear(url)
    contestant.setup_tables(url)
    keys = tables.fill(url, rows)
    with DelayingProxy(url, seconds) as proxy:
        shares = together(contestant, proxy.url, 1)
    tables.verify(url, keys, shares)
    return run_of(contestant.name, shares), proxy.trips(shares[0].began.at, shares[0].last)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("round_trip")

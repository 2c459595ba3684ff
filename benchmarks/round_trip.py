"""Round trips: one consumer whose server is 5 ms away, and how often it waits for an answer. `--help`

Counted at the line are trips a turn, a settle and the next claim. The prediction is the time of the same jobs through
the same proxy without a delay, and the delay once for each trip: what falls short of it waits for something else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import article, tables
from benchmarks.contestants import LOOPS, OURS, OURS_HELD
from benchmarks.crew import Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.raw import Keys
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


@dataclass(frozen=True)
class Drain:
    """By one consumer behind the proxy."""

    seconds: float
    """From the start to the last settle."""
    trips: int
    """In these seconds."""
    a_turn: float
    """From the claim of a batch to the claim of the next: the median, for a statement is prepared once, and a sign of
    life given now and then."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """A B C, A B C, ... each without a delay, then with them."""
    rows = list(article.payload(sizes.jobs))
    for _ in range(sizes.repeat):
        for name in LOOPS:
            near = _through(name, server.url, rows, 0)
            yield Sample(name, 0, len(rows) / near.seconds, {TRIPS: near.a_turn})
            for delay in sizes.delays_ms:
                far = _through(name, server.url, rows, delay)
                yield _sample(name, len(rows), delay, far=far, near=near)


def _sample(name: str, jobs: int, delay: int, *, far: Drain, near: Drain) -> Sample:
    predicted = near.seconds + far.trips * delay / 1000
    also = {TRIPS: far.a_turn, "predicted": jobs / predicted, OF_PREDICTED: predicted / far.seconds}
    return Sample(name, delay, jobs / far.seconds, also)


def _through(name: str, url: str, rows: Sequence[tuple[str, str]], delay: int) -> Drain:
    """A drain by one consumer behind a proxy."""
    from servers.proxy import Proxy  # noqa: PLC0415 - servers are slow to import, and a worker needs none

    tables.clear(url)
    tables.setup_claimjobs(url)
    keys = tables.fill(url, rows)
    with Proxy(url, delay / 1000) as proxy:
        [(done, moments, last)] = gather([Worker(consume, proxy.url, name=name)])
    if sorted(done) != sorted(keys) or tables.count(url):
        raise tables.WrongCount(f"{len(done)} jobs done, {len(keys)} there")
    turns = [proxy.round_trips_between(one, two) for one, two in pairwise(moments[1:])]
    return Drain(last - moments[0], proxy.round_trips_between(moments[0], last), median(turns))


def consume(url: str, *, name: str) -> tuple[Keys, list[float], float]:
    """What was done; when it began, and when the work on each batch did; when the last of them was settled."""
    opened, options = LOOPS[name]
    done: Keys = []
    with opened(url, 1, **options) as loop:
        moments = [time.monotonic()]
        tally = loop(work=lambda _: moments.append(time.monotonic()), settled=done.extend)
    return done, moments, tally.last


def goals(found: Found, backend: str) -> Iterator[Goal]:
    """Point 7."""
    yield Goal(7, "trips a turn", found.also(OURS, HELD_TO, TRIPS), MOST_TRIPS[backend], False)
    for name in (OURS, OURS_HELD):
        what = f"{name}: jobs/s with 5 ms of delay, of what the trips predict"
        yield Goal(7, what, found.also(name, HELD_TO, OF_PREDICTED), 0.9)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("round_trip")

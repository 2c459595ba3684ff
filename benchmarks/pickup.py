"""Pick-up: how soon an idle consumer has a job in its handler. `--help`

A consumer that waits to be called, beside one that can only look (as behind a pooler), ever more rarely while nothing
comes. Rows are enqueued one by one at random moments; counted is the time from the call of `enqueue` to the handler,
whose processes share a clock.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks import tables
from benchmarks.contestants import CALLED, LOOKS, WAYS
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.harness import SECONDS_TO_START
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from claimjobs import Queue

if TYPE_CHECKING:
    from servers import Server

TITLE = "Pick-up"
VARIES = "percentile"
UNIT = "ms"
PLOT: Plot = "lines"
SIZES = {"jobs": 200, "looking": 20, "gap_ms": [150, 250], "repeat": 1}
SMALL = {"jobs": 10, "looking": 5}
FULL = {"jobs": 500, "looking": 200, "gap_ms": [200, 3_000], "repeat": 3}

PERCENTILES = (50, 75, 90, 95, 99)
LAST = "last"
"""The payload of the row after which a consumer ends."""
MOST_MS = {"postgres": {50: 3, 99: 15}, "mysql": {50: 5, 99: 25}, "mariadb": {50: 5, 99: 25}}
"""By percentile."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """A B, A B, ..."""
    jobs = {CALLED: sizes.jobs, LOOKS: sizes.looking}
    for _ in range(sizes.repeat):
        for name in WAYS:
            yield from _picked_up(name, server.url, jobs[name], sizes.gap_ms)


def _picked_up(name: str, url: str, jobs: int, gap_ms: Sequence[int]) -> Iterator[Sample]:
    """By one consumer, what one producer enqueues."""
    tables.clear(url)
    tables.setup_claimjobs(url)
    line = SPAWN.Barrier(2)
    work: list[Worker[Any]] = [
        Worker(consume, url, line, **WAYS[name]),
        Worker(produce, url, line, jobs=jobs, gap_ms=gap_ms),
    ]
    began, enqueued = gather(work)
    if began.keys() != {"first", *enqueued} or tables.count(url):
        raise tables.WrongCount(f"{len(began)} jobs begun with, {len(enqueued) + 1} enqueued")
    yield from samples(name, began, enqueued)


def consume(url: str, line: Any, **options: Any) -> dict[str, float]:
    """When the handler began with each row."""
    began: dict[str, float] = {}
    with Queue(url, **options) as queue:
        assert queue.owner_id  # connected, and registered
        line.wait(SECONDS_TO_START)
        for batch in queue.batches():
            now = time.monotonic()
            with batch:
                began |= {job["d"]: now for job in batch.jobs}
                batch.done()
            if LAST in began:
                break
    return began


def produce(url: str, line: Any, *, jobs: int, gap_ms: Sequence[int]) -> dict[str, tuple[float, float]]:
    """When the enqueueing of each row began and ended; the very first one is for practice."""
    enqueued: dict[str, tuple[float, float]] = {}
    shortest, longest = gap_ms
    with Queue(url) as queue:
        queue.enqueue({"d": "first", "e": ""})
        line.wait(SECONDS_TO_START)
        for name in (*map(str, range(jobs - 1)), LAST):
            time.sleep(random.uniform(shortest, longest) / 1000)
            began = time.monotonic()
            queue.enqueue({"d": name, "e": ""})
            enqueued[name] = began, time.monotonic()
    return enqueued


def samples(name: str, began: Mapping[str, float], enqueued: Mapping[str, tuple[float, float]]) -> Iterator[Sample]:
    """One for each percentile, of all the time and of that within `enqueue`."""
    whole = [1000 * (began[job] - at) for job, (at, _) in enqueued.items()]
    calls = [1000 * (ended - at) for at, ended in enqueued.values()]
    also = {"slowest": max(whole), "jobs": len(whole)}
    for at, value, call in zip(PERCENTILES, _percentiles(whole), _percentiles(calls), strict=True):
        yield Sample(name, at, value, {"of enqueue alone": call, **also})


def _percentiles(values: Sequence[float]) -> list[float]:
    cuts = quantiles(values, n=100, method="inclusive")
    return [cuts[at - 1] for at in PERCENTILES]


def goals(found: Found, backend: str) -> Iterator[Goal]:
    """Point 5, but for what a consumer costs while it is idle."""
    for at, bound in MOST_MS[backend].items():
        yield Goal(5, f"ms from enqueue to handler, p{at}", found.value(CALLED, at), bound, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("pickup")

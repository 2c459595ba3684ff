"""Order: jobs of ten priorities, by priority and key; how far out of it they are worked on. `--help`

One consumer must see strict order. Of several each sees its own batches in order; a job is early where earlier ones
are yet to be begun with: they must be in flight, in the hands of the other consumers, a batch each.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks import article, raw, tables
from benchmarks.article import BATCH
from benchmarks.contestants import OURS, RAW, Opened, ours
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.harness import SECONDS_TO_START
from benchmarks.raw import Keys
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Order kept"
VARIES = "consumers"
UNIT = "jobs/s"
PLOT: Plot = None
SIZES = {"jobs": {"postgres": 80_000, "mysql": 30_000, "mariadb": 30_000}, "consumers": [1, 10], "repeat": 2}
SMALL = {"jobs": 2_000, "repeat": 1}
FULL = {"jobs": {"postgres": 200_000, "mysql": 60_000, "mariadb": 60_000}, "repeat": 5}

PRIORITIES = 10
AT_MOST = "at most"
IN_FLIGHT = "in flight"
CONTESTANTS: dict[str, tuple[Opened, dict[str, Any]]] = {
    RAW: (raw.opened, {}),
    OURS: (ours, {"order_by": ("priority", "id")}),
}

Begun = list[tuple[float, Keys]]
"""Batches, and when the work on each began."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each number of consumers: A B, A B, ..."""
    rows = list(article.payload(sizes.jobs))
    for consumers in sizes.consumers:
        for _ in range(sizes.repeat):
            for name in CONTESTANTS:
                yield _drain(name, consumers, url=server.url, rows=rows)


def _drain(name: str, consumers: int, *, url: str, rows: Sequence[tuple[str, str]]) -> Sample:
    right = _filled(url, rows)
    line = SPAWN.Barrier(consumers)
    logs = gather([Worker(consume, url, number, line, name=name) for number in range(1, consumers + 1)])
    batches = sorted((batch for _, log in logs for batch in log), key=lambda batch: batch[0])
    seen = [key for _, keys in batches for key in keys]
    if sorted(seen) != sorted(right):
        raise tables.WrongCount(f"{len(seen)} jobs done, {len(right)} there")
    seconds = max(last for last, _ in logs) - batches[0][0]
    early = passed_over(seen, right)
    also = {"99 % pass over": quantiles(early, n=100)[98], AT_MOST: max(early), IN_FLIGHT: consumers * BATCH}
    return Sample(name, consumers, len(rows) / seconds, also)


def _filled(url: str, rows: Sequence[tuple[str, str]]) -> Keys:
    """A table full of jobs with priorities; their keys in order."""
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, rows, priorities=PRIORITIES)
    with article.connected(url) as db, db.cursor() as cursor:
        cursor.execute("select id from jobs order by priority, id")
        return [row[0] for row in cursor.fetchall()]


def consume(url: str, number: int, line: Any, *, name: str) -> tuple[float, Begun]:
    """When the last batch was settled, and what was begun when."""
    opened, options = CONTESTANTS[name]
    begun: Begun = []
    with opened(url, number, **options) as loop:
        line.wait(SECONDS_TO_START)
        tally = loop(work=lambda keys: begun.append((time.monotonic(), keys)))
    return tally.last, begun


def passed_over(seen: Keys, right: Keys) -> list[int]:
    """Of each job, when it is begun with: how many earlier ones nobody has begun with yet."""
    places = {key: place for place, key in enumerate(right)}
    begun: list[int] = []
    counts = []
    for place in (places[key] for key in seen):
        before = bisect_left(begun, place)
        begun.insert(before, place)
        counts.append(place - before)
    return counts


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 2."""
    ratios = [found.value(OURS, consumers) / found.value(RAW, consumers) for consumers in found.places(OURS)]
    yield Goal(2, "drain by priority, of the raw loop", min(ratios), 0.9)
    yield Goal(2, "earlier jobs passed over, one consumer", found.also(OURS, 1, AT_MOST), 0, False)
    in_flight = found.also(OURS, 10, IN_FLIGHT)
    yield Goal(
        2,
        "earlier jobs passed over, 10 consumers, of what is in flight",
        found.also(OURS, 10, AT_MOST) / in_flight,
        1,
        False,
    )


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("order")

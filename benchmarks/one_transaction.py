"""Ways to write in the transaction that holds the jobs (`hold="transaction"`): rows per second of one consumer.

Each way is compared with the same writes of a loop over `batch.jobs`, which sets no savepoint. `--help`
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from benchmarks import tables
from benchmarks.crew import Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from claimjobs import Batch, Queue

if TYPE_CHECKING:
    from servers import Server

TITLE = "Writing in the transaction that holds the jobs"
VARIES = "batch"
UNIT = "rows/s"
PLOT: Plot = None
SIZES = {"batch": [100], "jobs": 5_000, "repeat": 5}
SMALL = {"batch": [10], "jobs": 100, "repeat": 1}
FULL = {"jobs": 20_000}

ENTRIES: Final = sa.Table("entries", sa.MetaData(), sa.Column("nr", sa.BigInteger))
FOR_ALL, EACH = "one INSERT for all", "an INSERT each"
JOBS, LOOP = "batch.jobs", "for job in batch"
WAYS: Final = tuple(f"{loop}, {writes}" for writes in (FOR_ALL, EACH) for loop in (JOBS, LOOP))


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Each way, in turns."""
    for _ in range(sizes.repeat):
        for size in sizes.batch:
            for way in WAYS:
                tables.clear(server.url)
                tables.setup_claimjobs(server.url)
                tables.fill(server.url, [("d", "")] * sizes.jobs)
                [(jobs, took, cpu)] = gather([Worker(emptied, server.url, way, size)])
                if jobs != sizes.jobs or tables.count(server.url):
                    raise tables.WrongCount(f"{jobs} of {sizes.jobs} jobs done")
                yield Sample(way, size, jobs / took, {"jobs": jobs, "client us a job": cpu / jobs * 1e6})


def emptied(url: str, way: str, size: int) -> tuple[int, float, float]:
    """Empty the table: jobs, seconds, CPU seconds."""
    with Queue(url, hold="transaction") as queue:
        queue.check()
        ENTRIES.drop(queue.engine, checkfirst=True)
        ENTRIES.create(queue.engine)
        began, cpu = time.monotonic(), time.process_time()
        for batch in queue.batches(size, drain=True):
            with batch:
                handle(batch, way)
        took = time.monotonic() - began
        with queue.engine.connect() as connection:
            written = connection.scalar(sa.select(sa.func.count()).select_from(ENTRIES))
        ENTRIES.drop(queue.engine)
        return int(written or 0), took, time.process_time() - cpu


def handle(batch: Batch, way: str) -> None:
    """Write a row for each job."""
    loop, _, writes = way.partition(", ")
    if writes == FOR_ALL and batch:
        batch.connection.execute(sa.insert(ENTRIES), [{"nr": job.id} for job in batch.jobs])
    for job in batch.jobs if loop == JOBS else batch:
        if writes == EACH:
            batch.connection.execute(sa.insert(ENTRIES), {"nr": job.id})
    if loop == JOBS:
        batch.done()


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 11."""
    for writes in (FOR_ALL, EACH):
        for size in found.places(f"{LOOP}, {writes}"):
            ratio = found.value(f"{LOOP}, {writes}", size) / found.value(f"{JOBS}, {writes}", size)
            yield Goal(11, f"{LOOP}, {writes}: rows/s, of {JOBS}", ratio, 0.7)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("one_transaction")

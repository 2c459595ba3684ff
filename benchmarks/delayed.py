"""Delayed jobs: what a claim costs beside jobs that are due later, with and without an index by `run_at`. `--help`

The time of a claim that finds nothing, of a job that comes alone (enqueue, claim, settle), and how fast a backlog is
done that came after the planner had learned of the table: the worst case of that index, because each claim sorts all
jobs that are due.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import article, tables
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from claimjobs import Queue
from claimjobs.database.connect import engine_of

if TYPE_CHECKING:
    from servers import Server

TITLE = "Beside delayed jobs"
VARIES = "delayed jobs"
UNIT = "ms of a claim of nothing"
PLOT: Plot = None
SIZES = {"delayed": [100_000, 1_000_000], "backlog": 50_000, "repeat": 5}
SMALL = {"delayed": [10_000], "backlog": 1_000, "repeat": 1}
FULL: dict[str, int] = {}

CLAIM_INDEX = "the claim index"
WITH_DUE = "(status, run_at) beside it"
ONE_JOB = "ms of one job"
BACKLOG = "jobs/s of a backlog"
LATER = {True: "now() + interval '3 days'", False: "utc_timestamp(6) + interval 3 day"}
"""By whether it is Postgres."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each number of delayed jobs without that index, then with it."""
    for delayed in sizes.delayed:
        with tables.database(server.url, f"delayed_{delayed}") as url:
            tables.setup_claimjobs(url)
            tables.fill(url, list(article.payload(tables.AT_ONCE)))
            tables.multiply(url, delayed)
            postgres = article.is_postgres(url)
            _do(url, f"update jobs set run_at = {LATER[postgres]}", *["vacuum jobs"] * postgres)
            for name in (CLAIM_INDEX, WITH_DUE):
                if name == WITH_DUE:
                    _do(url, "create index jobs_due on jobs (status, run_at)")
                tables.analyze(url)
                yield _measured(url, name, delayed, sizes)


def _measured(url: str, name: str, delayed: int, sizes: argparse.Namespace) -> Sample:
    engine = engine_of(url)
    with Queue(engine) as queue:
        queue.claim()  # what is made once is made by it
        nothing = [_seconds(queue, 0) for _ in range(sizes.repeat)]
        alone = [_seconds(queue, 1) for _ in range(sizes.repeat)]
        backlog = sizes.backlog / _seconds(queue, sizes.backlog)
    engine.dispose()
    return Sample(name, delayed, median(nothing) * 1000, {ONE_JOB: median(alone) * 1000, BACKLOG: backlog})


def _seconds(queue: Queue, jobs: int) -> float:
    """How long it takes to enqueue and do so many jobs. Of a backlog: to do them."""
    begun = time.perf_counter()
    queue.enqueue({"d": "d", "e": "e"} for _ in range(jobs))
    if jobs <= article.BATCH:
        with queue.claim() as batch:
            batch.done()
    else:
        begun = time.perf_counter()
        for batch in queue.batches(drain=True):
            with batch:
                batch.done()
    return time.perf_counter() - begun


def _do(url: str, *statements: str) -> None:
    engine = engine_of(url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def goals(_found: Found, _backend: str) -> Iterator[Goal]:
    """None: it is for docs/dba.md."""
    return iter(())


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("delayed")

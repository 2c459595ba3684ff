"""Many jobs at once in one process: `Queue.work` with slow handlers, with mails, and with handlers that do nothing.

The jobs per second, as a part of the best that is possible: for slow jobs N divided by the time of one; for mails what
N places reach if each takes the next one as soon as it is free; for jobs that take no time the loop over batches, which
is measured each time. `--help`
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import article, tables
from benchmarks.crew import Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from claimjobs import Job, Queue

if TYPE_CHECKING:
    from servers import Server

TITLE = "Many jobs at once"
VARIES = "at once"
UNIT = "of the best"
PLOT: Plot = None
SIZES = {"at_once": [10, 100, 1_000], "jobs": 10_000, "quick_jobs": 20_000, "mails": 5_000, "repeat": 3}
SMALL = {"at_once": [4], "jobs": 20, "quick_jobs": 200, "mails": 20, "repeat": 1}
FULL = {"repeat": 5}

SLOW = 0.1
"""Seconds of a slow job, and of a mail."""
STUCK = 3.0
"""Seconds of one mail in a hundred."""
ONE_IN = 100
ROUNDS = 200
"""The most slow jobs of each place: with more it would take minutes."""
THREADS, TASKS = "threads", "tasks"
MOST_THREADS = 100
MAILS_AT_ONCE = 100
QUICK_AT_ONCE = 10


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Each kind of job in threads and in tasks, in turns."""
    for _ in range(sizes.repeat):
        for at_once in sizes.at_once:
            for kind in (THREADS, TASKS):
                if kind == TASKS or at_once <= MOST_THREADS:
                    slow = [SLOW] * min(sizes.jobs, ROUNDS * at_once)
                    yield _sample(server.url, f"{kind}, 100 ms", at_once, slow)
        mails = [STUCK if number % ONE_IN == 0 else SLOW for number in range(sizes.mails)]
        quick, most = [0.0] * sizes.quick_jobs, min(MAILS_AT_ONCE, max(sizes.at_once))
        for kind in (THREADS, TASKS):
            yield _sample(server.url, f"{kind}, mails", most, mails)
            yield _sample(server.url, f"{kind}, no-op", min(QUICK_AT_ONCE, most), quick)


def _sample(url: str, name: str, at_once: int, seconds: Sequence[float]) -> Sample:
    kind = name.partition(",")[0]
    if best := schedule(seconds, at_once):
        took, cpu = _timed(url, work, seconds, kind, at_once)
    else:
        best, _ = _timed(url, loop, seconds)
        took, cpu = _timed(url, work, seconds, kind, at_once)
    jobs = len(seconds)
    return Sample(
        name, at_once, best / took, {"jobs": jobs, "jobs/s": jobs / took, "client us a job": cpu / jobs * 1e6}
    )


def schedule(seconds: Sequence[float], at_once: int) -> float:
    """How long so many places take, if each begins the next job as soon as it is free."""
    ends = [0.0] * at_once
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def _timed(url: str, consume: Callable[..., tuple[int, float, float]], seconds: Sequence[float], *given: Any) -> Any:
    """The seconds, and the CPU seconds, that a process needs for these jobs."""
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, [(str(each), "") for each in seconds])
    [(jobs, took, cpu)] = gather([Worker(consume, url, *given)])
    if jobs != len(seconds) or tables.count(url):
        raise tables.WrongCount(f"{jobs} of {len(seconds)} jobs done")
    return took, cpu


def work(url: str, kind: str, at_once: int) -> tuple[int, float, float]:
    """Empty the table by `Queue.work`: jobs, seconds, CPU seconds."""
    return _emptied(
        url, lambda queue: queue.work({THREADS: sleep, TASKS: asleep}[kind], concurrency=at_once, drain=True)
    )


def loop(url: str) -> tuple[int, float, float]:
    """Empty the table by a loop over batches."""
    return _emptied(url, partial(_loop, size=article.BATCH))


def _loop(queue: Queue, size: int) -> None:
    for batch in queue.batches(size, drain=True):
        with batch:
            for job in batch:
                sleep(job)


def _emptied(url: str, run: Callable[[Queue], None]) -> tuple[int, float, float]:
    with Queue(url) as queue:
        queue.check()
        assert queue.owner_id  # connected, and registered
        began, cpu = time.monotonic(), time.process_time()
        run(queue)
        return queue.report.done, time.monotonic() - began, time.process_time() - cpu


def sleep(job: Job) -> None:
    """A job takes as long as its payload says."""
    if seconds := float(job.d):
        time.sleep(seconds)


async def asleep(job: Job) -> None:
    """The same in a task."""
    if seconds := float(job.d):
        await asyncio.sleep(seconds)


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 10."""
    for kind in (THREADS, TASKS):
        for what, bound in (("100 ms", 0.95), ("mails", 0.91), ("no-op", 0.8)):
            name = f"{kind}, {what}"
            for at_once in found.places(name):
                yield Goal(10, f"{name}, {at_once:g} at once: jobs/s, of the best", found.value(name, at_once), bound)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("many_at_once")

"""Held snapshot: full load, with a producer, while another session keeps a snapshot open. `--help`

From second 10 on a session reads at REPEATABLE READ and stays open, as a long report does, or an idle transaction: no
row that is deleted meanwhile can be cleared away. Shown is the rate second by second; the value is that of the last
seconds, beside a shorter run without the snapshot, whose rate is even.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks import article, raw, tables
from benchmarks.contestants import OURS, OURS_BATCHES, RAW, Opened, ours
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.harness import SECONDS_TO_START
from benchmarks.raw import Keys
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Held snapshot"
VARIES = "snapshots held"
UNIT = "jobs/s in the end"
PLOT: Plot = "course"
SIZES = {"seconds": 60, "raw_seconds": 30, "without": 12, "begins": 10, "last": 10, "consumers": 2, "waiting": 20_000}
SMALL = {"seconds": 8, "raw_seconds": 8, "without": 6, "begins": 1, "last": 5, "waiting": 5_000}
FULL = {"raw_seconds": 60, "without": 60}

CHUNK = 1_000
PAUSE = 0.002
CONTESTANTS: dict[str, Opened] = {RAW: raw.opened, OURS: ours, OURS_BATCHES: partial(ours, claims="batches")}


@dataclass(frozen=True)
class Shift:
    """What producer and consumers share."""

    line: Any
    done: Any
    """How many jobs each consumer has done, written by itself alone."""
    seconds: float
    waiting: int
    """So many jobs the producer keeps in the table."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """All without, then all with the snapshot."""
    rows = list(article.payload(CHUNK))
    for name in CONTESTANTS:
        yield _run(name, server.url, rows, sizes, seconds=sizes.without, snapshot=None)
    for name in CONTESTANTS:
        seconds = sizes.raw_seconds if name == RAW else sizes.seconds
        yield _run(name, server.url, rows, sizes, seconds=seconds, snapshot=sizes.begins)


def _run(
    name: str,
    url: str,
    rows: Sequence[tuple[str, str]],
    sizes: argparse.Namespace,
    *,
    seconds: int,
    snapshot: float | None,
) -> Sample:
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, list(article.payload(sizes.waiting)))
    shift = Shift(SPAWN.Barrier(sizes.consumers + 2), SPAWN.RawArray("q", sizes.consumers), seconds, sizes.waiting)
    with _held(url, shift, snapshot):
        course, produced = _at_work(name, url, rows, shift)
    left, done = tables.count(url), sum(shift.done)
    if sizes.waiting + produced != done + left:
        raise tables.WrongCount(f"{sizes.waiting + produced} jobs in all, {done} done, {left} left")
    return Sample(name, snapshot is not None, mean(course[-sizes.last :]), {"seconds": seconds}, course)


def _at_work(name: str, url: str, rows: Sequence[tuple[str, str]], shift: Shift) -> tuple[list[int], int]:
    """How many jobs were done in each second, and how many came in."""
    producer = Worker(produce, url, shift, rows)
    consumers = [Worker(consume, url, shift, number, name=name) for number in range(1, len(shift.done) + 1)]
    counts, (produced,) = gather(consumers), gather([producer])
    seconds: Counter[int] = Counter()
    for count in counts:
        seconds.update(count)
    return [seconds[second] for second in range(int(shift.seconds))], produced


@contextmanager
def _held(url: str, shift: Shift, snapshot: float | None) -> Iterator[None]:
    """A snapshot from so many seconds after the start until all is over."""
    over = threading.Event()
    thread = threading.Thread(target=hold_snapshot, args=(url, shift, snapshot, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        shift.line.abort()  # a worker that failed is waited for by nobody
        thread.join()


def hold_snapshot(url: str, shift: Shift, snapshot: float | None, over: threading.Event) -> None:
    """Read at REPEATABLE READ and stay open. Without a time: only cross the start line."""
    with article.connected(url) as db, db.cursor() as cursor, suppress(threading.BrokenBarrierError):
        shift.line.wait(SECONDS_TO_START)
        if snapshot is not None and not over.wait(snapshot):
            cursor.execute("set transaction isolation level repeatable read")
            cursor.execute("select id from jobs limit 1")
            over.wait()


def produce(url: str, shift: Shift, rows: Sequence[tuple[str, str]]) -> int:
    """Keep so many jobs in the table; return how many were inserted."""
    produced = 0
    with article.connected(url) as db:
        shift.line.wait(SECONDS_TO_START)
        ends = time.monotonic() + shift.seconds
        while time.monotonic() < ends:
            if produced < sum(shift.done):
                tables.insert(db, rows)
                produced += len(rows)
            else:
                time.sleep(PAUSE)
    return produced


def consume(url: str, shift: Shift, number: int, *, name: str) -> Counter[int]:
    """Work until time is over; return how many jobs were settled in each second."""
    seconds: Counter[int] = Counter()
    with CONTESTANTS[name](url, number) as loop:
        shift.line.wait(SECONDS_TO_START)
        began = time.monotonic()

        def settled(keys: Keys) -> None:
            shift.done[number - 1] += len(keys)
            seconds[int(time.monotonic() - began)] += len(keys)

        loop(settled=settled, over=lambda: time.monotonic() - began >= shift.seconds)
    return seconds


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 3."""
    yield Goal(3, "rate in the end, of the run without the snapshot", found.value(OURS, 1) / found.value(OURS, 0), 0.7)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("held_snapshot")

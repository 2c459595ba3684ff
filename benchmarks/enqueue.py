"""Enqueue: a generator of rows goes into the table, in one transaction. `--help`

The opponents are plain drivers at the same table, with the same rows and one commit: on Postgres one COPY of all
rows, and executemany of 1,000; on MySQL and MariaDB INSERTs of 1,000 rows, joined by hand or by PyMySQL. None of them
takes notice of a row that does not fit. Counted is the time from the first row to the end of the commit, in a
process of its own with its connection open; afterwards every row must be there. At last claimjobs alone enqueues far
more rows, for the peak of its process's memory.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import article, machine, tables
from benchmarks.contestants import OURS
from benchmarks.crew import Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.harness import Moment, now
from benchmarks.meter import EVERY, Load, Meter, limit
from benchmarks.report import CLIENT, Sample, Value
from benchmarks.scenario import Plot
from benchmarks.tables import AT_ONCE
from claimjobs import Queue

if TYPE_CHECKING:
    from servers import Server

TITLE = "Enqueue"
VARIES = "rows"
UNIT = "rows/s"
PLOT: Plot = "logarithmic"
SIZES = {"rows": [1_000, 10_000, 100_000], "memory": 1_000_000, "repeat": 3}
SMALL = {"rows": [1_000, 10_000], "memory": 20_000, "repeat": 1}
FULL = {"rows": [1_000, 10_000, 100_000, 1_000_000], "memory": 10_000_000, "repeat": 5}

SECONDS = 3_600.0
"""That the largest run may take."""
DISTINCT = 10_000
"""Rows are made before the clock starts, and given again and again: their making is not what is measured."""
INSERT = "insert into jobs (d, e) values "
PEAK = "peak MB"

HELD_TO = 100_000
"""Rows at which the rate is held to its goal."""
RATE, OF_RAW, MEGABYTES = 150_000, 0.9, 150

SideCarJoin = tuple[str, str]
Pairs = Iterator[SideCarJoin]


@dataclass(frozen=True)
class Filled:
    """One contestant's enqueue."""

    began: Moment
    ended: Moment
    peak: float
    """Megabytes that the client's process had in memory, at most."""

    @property
    def seconds(self) -> float:
        return self.ended.at - self.began.at

    @property
    def cpu(self) -> float:
        """Seconds of the client's process."""
        return self.ended.own - self.began.own


Contestant = Callable[[str, int], Filled]
"""Of a URL and a number of rows, in a process of its own."""


# --- the contestants -----------------------------------------------------------------------------------------


def with_claimjobs(url: str, rows: int) -> Filled:
    """Through the public API."""
    with Queue(url) as queue:
        queue.check()
        return timed(rows, lambda pairs: queue.enqueue({"d": d, "e": e} for d, e in pairs))


def plainly(url: str, rows: int, *, insert: Callable[[Any, Pairs], None]) -> Filled:
    """In one transaction of a plain driver."""
    with article.connected(url) as db, db.cursor() as cursor:

        def transaction(pairs: Pairs) -> None:
            insert(cursor, pairs)
            db.commit()

        return timed(rows, transaction)


def timed(rows: int, work: Callable[[Pairs], object]) -> Filled:
    """What it took to hand so many rows to the work."""
    made = list(article.payload(DISTINCT))
    began = now()
    work(islice(cycle(made), rows))
    return Filled(began, now(), peak_of_this_process())


def peak_of_this_process() -> float:
    """Megabytes. Not ru_maxrss, which begins with what the parent had when this process was forked."""
    [kilobytes] = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) / 1024


def copy(cursor: Any, pairs: Pairs) -> None:
    with cursor.copy("copy jobs (d, e) from stdin") as copying:
        for pair in pairs:
            copying.write_row(pair)


def many(cursor: Any, pairs: Pairs) -> None:
    for chunk in chunks(pairs):
        cursor.executemany(INSERT + "(%s, %s)", chunk)


def joined(cursor: Any, pairs: Pairs) -> None:
    for chunk in chunks(pairs):
        cursor.execute(INSERT + ", ".join(["(%s, %s)"] * len(chunk)), list(chain.from_iterable(chunk)))


def chunks(pairs: Pairs) -> Iterator[list[SideCarJoin]]:
    while chunk := list(islice(pairs, AT_ONCE)):
        yield chunk


ON_POSTGRES: dict[str, Contestant] = {
    "psycopg, one COPY": partial(plainly, insert=copy),
    "psycopg, executemany of 1,000": partial(plainly, insert=many),
}
ON_MYSQL: dict[str, Contestant] = {
    "PyMySQL, 1,000 rows joined by hand": partial(plainly, insert=joined),
    "PyMySQL, executemany of 1,000": partial(plainly, insert=many),
}


# --- a run ---------------------------------------------------------------------------------------------------


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each number of rows A B C, A B C, ...; then claimjobs alone, with the most."""
    raw = ON_POSTGRES if article.is_postgres(server.url) else ON_MYSQL
    for rows in sizes.rows:
        for _ in range(sizes.repeat):
            for name, contestant in {**raw, OURS: with_claimjobs}.items():
                yield _fill(name, contestant, rows, server=server)
    if sizes.memory not in sizes.rows:
        yield _fill(OURS, with_claimjobs, sizes.memory, server=server)


def _fill(name: str, contestant: Contestant, rows: int, *, server: Server) -> Sample:
    """Make the table anew, let a process of its own fill it, and see that it did."""
    tables.clear(server.url)
    tables.setup_claimjobs(server.url)
    with Meter(server.pid) as meter:
        [filled] = gather([Worker(contestant, server.url, rows)], SECONDS)
    there = tables.count(server.url, "unclaimed")
    if there != rows:
        raise tables.WrongCount(f"{there:,} rows in the table, not {rows:,}")
    also: dict[str, Value] = {CLIENT: filled.cpu / rows * 1e6, PEAK: filled.peak, "limit": _limit(filled, meter)}
    return Sample(name, rows, rows / filled.seconds, also)


def _limit(filled: Filled, meter: Meter) -> str | None:
    """What limited it, where it took long enough to tell."""
    if filled.seconds < EVERY:
        return None
    busy = (filled.ended.busy - filled.began.busy) / filled.seconds
    used = meter.between(filled.began.at, filled.ended.at)
    return limit(Load(1, machine.cores(), filled.cpu / filled.seconds, busy, used))


def goals(found: Found, backend: str) -> Iterator[Goal]:
    """Point 6. By the rate on Postgres, where the plan names one; elsewhere beside the faster of the raw ones."""
    ours = found.value(OURS, HELD_TO)
    if backend == "postgres":
        yield Goal(6, f"rows/s, {HELD_TO:,} rows at once", ours, RATE)
    else:
        raw = max(found.value(name, HELD_TO) for name in ON_MYSQL)
        yield Goal(6, f"rows/s, {HELD_TO:,} rows at once, of raw INSERTs of 1,000", ours / raw, OF_RAW)
    most = max(found.places(OURS))
    yield Goal(
        6, f"MB at most in a process that enqueues {most:,.0f} rows", found.also(OURS, most, PEAK), MEGABYTES, False
    )


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("enqueue")

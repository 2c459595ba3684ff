"""Enqueue: a generator of rows goes into the table, in one transaction. `python -m benchmarks.enqueue --help`

The opponents are plain drivers at the same table, with the same rows and one commit: on Postgres one COPY of all
rows, and executemany of 1,000; on MySQL and MariaDB INSERTs of 1,000 rows, joined by PyMySQL or by hand. None of them
takes notice of a row that does not fit. Counted is the time from the first row to the end of the commit, in a
process of its own with its connection open; afterwards every row must be there.

`--memory ROWS` enqueues a generator of so many rows once, and prints the peak of its process's memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import article, machine
from benchmarks.crew import Worker, gather
from claimjobs import Queue, make, tables_for
from claimjobs.connect import engine_of
from servers import Server, start
from servers.sources import BACKENDS

AT_ONCE = 1_000
DISTINCT = 10_000
"""Rows are made before the clock starts, and given again and again: their making is not what is measured."""
INSERT = "insert into jobs (d, e) values "

Pair = tuple[str, str]


class WrongCount(Exception):
    """Rows are missing, or there twice: the run's figures mean nothing."""


@dataclass(frozen=True)
class Run:
    """One contestant's enqueue."""

    contestant: str
    rows: int
    seconds: float
    cpu: float
    """Seconds of the client's process."""
    peak: int
    """Bytes that the client's process had in memory, at most."""

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


# --- the contestants -----------------------------------------------------------------------------------------


def with_claimjobs(url: str, rows: int) -> Run:
    """Through the public API."""
    made = list(article.payload(DISTINCT))
    with Queue(url) as queue:
        queue.check()
        return timed("claimjobs", rows, lambda: queue.enqueue({"d": d, "e": e} for d, e in islice(cycle(made), rows)))


def plainly(url: str, rows: int, *, name: str, insert: Callable[[Any, Iterator[Pair]], None]) -> Run:
    """In one transaction of a plain driver."""
    made = list(article.payload(DISTINCT))
    with article.connected(url) as db, db.cursor() as cursor:

        def transaction() -> None:
            insert(cursor, islice(cycle(made), rows))
            db.commit()

        return timed(name, rows, transaction)


def timed(name: str, rows: int, work: Callable[[], object]) -> Run:
    began, cpu = time.monotonic(), time.process_time()
    work()
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    return Run(name, rows, seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def copy(cursor: Any, pairs: Iterator[Pair]) -> None:
    with cursor.copy("copy jobs (d, e) from stdin") as copying:
        for pair in pairs:
            copying.write_row(pair)


def many(cursor: Any, pairs: Iterator[Pair]) -> None:
    for chunk in chunks(pairs):
        cursor.executemany(INSERT + "(%s, %s)", chunk)


def joined(cursor: Any, pairs: Iterator[Pair]) -> None:
    for chunk in chunks(pairs):
        cursor.execute(INSERT + ", ".join(["(%s, %s)"] * len(chunk)), list(chain.from_iterable(chunk)))


def chunks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    while chunk := list(islice(pairs, AT_ONCE)):
        yield chunk


Contestant = Callable[[str, int], Run]


def contestants(backend: str) -> list[Contestant]:
    """The first is what the others are compared with."""
    if backend == "postgres":
        raw = {"psycopg, one COPY": copy, "psycopg, executemany of 1,000": many}
    else:
        raw = {"PyMySQL, 1,000 rows joined by hand": joined, "PyMySQL, executemany of 1,000": many}
    return [*(partial(plainly, name=name, insert=insert) for name, insert in raw.items()), with_claimjobs]


# --- a run ---------------------------------------------------------------------------------------------------


def enqueue(contestant: Contestant, url: str, rows: int) -> Run:
    """Make the table anew, let a process of its own fill it, and see that it did."""
    setup_tables(url)
    [run] = gather([Worker(contestant, url, rows)], seconds=3_600)
    verify(url, rows)
    print(f"{run.contestant}: {run.rate:,.0f} rows/s", file=sys.stderr, flush=True)
    return run


def setup_tables(url: str) -> None:
    """The table that `setup-tables` makes, empty."""
    with article.connected(url) as db, db.cursor() as cursor:
        cursor.execute("drop table if exists jobs, claimjobs_owners")
        if article.is_postgres(url):
            cursor.execute("drop type if exists jobs_status")
        db.commit()
    engine = engine_of(url)
    make(engine, tables_for("jobs"))
    engine.dispose()


def verify(url: str, rows: int) -> None:
    """As many rows as there should be. Raises WrongCount."""
    with article.connected(url) as db, db.cursor() as cursor:
        cursor.execute("select count(*) from jobs where status = 'unclaimed'")
        [there] = cursor.fetchone()
    if there != rows:
        raise WrongCount(f"{there:,} rows in the table, not {rows:,}")


# --- what is told --------------------------------------------------------------------------------------------

HEADINGS = ("contestant", "rows/s", "min - max", "of the first", "client's CPU, us/row", "client's peak, MB")


def table(runs: Sequence[Run]) -> str:
    """One line a contestant: medians."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.contestant, []).append(run)
    first = median(run.rate for run in groups[runs[0].contestant])
    lines = [HEADINGS, *(_line(name, group, first) for name, group in groups.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = line
    return "  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])])


def _line(name: str, runs: Sequence[Run], first: float) -> tuple[str, ...]:
    rates = [run.rate for run in runs]
    return (
        name,
        f"{median(rates):,.0f}",
        f"{min(rates):,.0f} - {max(rates):,.0f}",
        f"{median(rates) / first:.2f}",
        f"{median(run.cpu / run.rows for run in runs) * 1e6:.2f}",
        f"{median(run.peak for run in runs) / 1e6:.0f}",
    )


# --- the command ---------------------------------------------------------------------------------------------


def main() -> None:
    options = _parser().parse_args()
    before = machine.load()
    with start(options.backend) as server:
        runs = list(_runs(options, server.url))
        facts = _facts(options, server, before)
    print(_heading(facts), table(runs), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps({**facts, "runs": [asdict(run) for run in runs]}, indent=2) + "\n")


def _runs(options: argparse.Namespace, url: str) -> Iterator[Run]:
    """A B C, A B C, ..., so that what changes meanwhile changes for all; or ours alone, once."""
    if options.memory:
        yield enqueue(with_claimjobs, url, options.memory)
        return
    for _ in range(options.repeat):
        for contestant in contestants(options.backend):
            yield enqueue(contestant, url, options.rows)


def _facts(options: argparse.Namespace, server: Server, before: float) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.enqueue", *sys.argv[1:]]),
        "server": f"{server.backend} {server.version} ({server.how})",
        "durability": machine.durability(server.backend, server.url),
        "remarks": machine.remarks(before),
        "rows": options.memory or options.rows,
        "repeat": 1 if options.memory else options.repeat,
    }


def _heading(facts: dict[str, Any]) -> str:
    durability = ", ".join(f"{name}={value}" for name, value in facts["durability"].items())
    return "\n".join(
        [
            facts["command"],
            f"{facts['server']}; {durability}",
            *facts["remarks"],
            f"{facts['rows']:,} rows of two {article.LENGTH}-character strings from a generator, in one transaction; "
            f"medians of {facts['repeat']} interleaved runs, the rows counted afterwards",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.enqueue", description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="postgres")
    parser.add_argument("--rows", type=int, default=200_000, help="of each run")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each contestant")
    parser.add_argument("--memory", type=int, metavar="ROWS", help="only claimjobs, once, for its process's memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    return parser


if __name__ == "__main__":
    main()

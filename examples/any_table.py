"""Any table with a primary key is a queue: four consumers claim its rows in batches, by any predicate.

The table is not changed. A second table, the side-car, stores which rows are claimed and which are done.

    python -m examples.any_table --url mysql://... --table City --where "Population > 1000000"
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.harness import SECONDS_TO_START
from claimjobs import Queue, make, side_car_tables
from claimjobs.database.connect import connected, engine_of
from examples.harness import must, opened

SIZE = 100


def queue_on(url: str | sa.Engine, table: str, where: str | None = None) -> AbstractContextManager[Queue]:
    """The rows of the table for which `where` holds, SQL as after WHERE."""
    return opened(Queue(url, table, side_car=True, where=where))


def work_through(url: str, table: str, where: str | None = None, *, consumers: int = 4, size: int = SIZE) -> list[int]:
    """Let the consumers claim all rows; return how many each got. Raises WrongResult for a row twice or not at all."""
    expected = keys(url, table, where)
    set_up(url, table)
    line = SPAWN.Barrier(consumers)
    shares = gather([Worker(consume, url, table, where, line=line, size=size) for _ in range(consumers)])
    done = Counter(key for share in shares for key in share)
    must(done == Counter(expected), f"{done.total()} claims of {len(done)} rows; there are {len(expected)}")
    return [len(share) for share in shares]


def set_up(url: str, table: str) -> None:
    """Make the table of claims, and that of owners."""
    engine = engine_of(url)
    make(engine, side_car_tables(engine, table))
    engine.dispose()


def keys(url: str, table: str, where: str | None) -> list[Any]:
    """The keys of the rows that match."""
    engine = engine_of(url)
    with connected(engine) as connection:
        found = sa.Table(table, sa.MetaData(), autoload_with=connection)
        meant = sa.select(*found.primary_key)
        rows = connection.execute(meant if where is None else meant.where(sa.text(where))).all()
    engine.dispose()
    return [tuple(row) if len(row) > 1 else row[0] for row in rows]


def consume(url: str, table: str, where: str | None, *, line: Any, size: int) -> list[Any]:
    """Run one consumer; return the keys of its rows."""
    done: list[Any] = []
    with queue_on(url, table, where) as queue:
        queue.check()
        line.wait(SECONDS_TO_START)
        for batch in queue.batches(size, drain=True):
            with batch:
                done += [job.key for job in batch]
    return done


def main() -> None:
    options = _parser().parse_args()
    shares = work_through(options.url, options.table, options.where, consumers=options.consumers, size=options.size)
    print(f"{sum(shares):,} rows of {options.table}, each claimed once: {', '.join(map(str, shares))}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.any_table", description=__doc__)
    parser.add_argument("--url", required=True, help="of the database")
    parser.add_argument("--table", required=True, help="any with a primary key")
    parser.add_argument("--where", metavar="SQL", help="only rows for which this holds; SQL as after WHERE")
    parser.add_argument("--consumers", type=int, default=4, help="processes at once")
    parser.add_argument("--size", type=int, default=SIZE, help="rows of a batch, at most")
    return parser


if __name__ == "__main__":
    main()

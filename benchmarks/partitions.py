"""Partitions: what a claim costs with many kept jobs, in one table and in partitions by time. `--help`

Two tables with the same rows, each in a database of its own: as `setup-tables` makes it, and with a partition for each
day. Jobs that are done fill ten days before today. One consumer has the server for itself, and keeps what it does. The
time and the pages of a turn: the settle of 100 jobs, and the claim of the next 100. Then the oldest day is purged.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from benchmarks import article, tables
from benchmarks.article import BATCH
from benchmarks.backlog import timed
from benchmarks.contestants import ours
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample, Value
from benchmarks.scenario import Plot
from claimjobs import Queue, make, tables_for
from claimjobs.database.connect import dialect_for, engine_of
from claimjobs.dialects.partitions import period_at
from claimjobs.table.time_partitions import run

if TYPE_CHECKING:
    from servers import Server

TITLE = "Kept jobs, in one table and in partitions"
VARIES = "kept jobs"
UNIT = "ms a turn"
PLOT: Plot = "logarithmic"
SIZES = {"kept": [0, 1_000_000, 3_000_000, 10_000_000], "turns": 60, "repeat": 3}
SMALL = {"kept": [0, 20_000], "turns": 5, "repeat": 1}
FULL = {"kept": [0, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000]}

PLAIN, BY_DAY = "one table", "partitions by day"
DAYS = 10
AT_ONCE = 100_000


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Round by round, both tables in turn; then they grow."""
    spare = list(article.payload((sizes.turns + 1) * BATCH))
    opened = partial(ours, on_done="keep")
    with contextlib.ExitStack() as stack:
        made = {name: stack.enter_context(_table(server.url, name)) for name in (PLAIN, BY_DAY)}
        for kept in sizes.kept:
            for url in made.values():
                _fill(url, kept)
            for _, (name, url) in [(n, one) for n in range(sizes.repeat) for one in made.items()]:
                with article.connected(url) as db:
                    tables.insert(db, spare)
                before = _pages(url)
                took = timed(opened, url, sizes.turns)
                also: dict[str, Value] = {"p95": quantiles(took, n=20)[18]}
                yield Sample(name, kept, median(took), also | {"pages": (_pages(url) - before) / len(took)})
        for name, url in made.items():
            jobs, seconds = _purged(url)
            yield Sample(f"{name}: the oldest day purged, jobs and seconds", jobs, seconds)


@contextlib.contextmanager
def _table(server: str, name: str) -> Iterator[str]:
    """The URL of a database with an empty table, which has partitions for the past days if it has any."""
    with tables.database(server, f"kept_{name.replace(' ', '_')}") as url:
        engine = engine_of(url)
        if name == BY_DAY:
            [jobs, *_] = tables_for("jobs", partition_by_time="day")
            jobs.create(engine)
            parts, today = dialect_for(engine).partitions, datetime.now(UTC).date()
            days = [period_at("day", today - timedelta(days=n)) for n in range(DAYS, -1, -1)]
            past = parts.additions(jobs, days, has_rest=parts.moves_rows)
            with engine.begin() as connection:
                connection.execute(sa.schema.SetTableComment(jobs))
                for statement in past:
                    run(connection, statement)
        make(engine, tables_for("jobs"))
        engine.dispose()
        yield url


def _fill(url: str, kept: int) -> None:
    """Let so many jobs be done, as many on each of the past days."""
    columns = ["d", "e", "status", "owner_date", "run_at"]
    with article.connected(url) as db, db.cursor() as cursor:
        if _by_day(url):
            columns.append("created")
        days = [datetime.now(UTC).replace(tzinfo=None) - timedelta(days=n) for n in range(1, DAYS + 1)]
        there = tables.count(url, "done")
        while (missing := kept - there) >= len(days):
            number = min(AT_ONCE, missing // len(days))
            for day in days:
                at = f"timestamp '{day:%Y-%m-%d 12:00:00}'" + (
                    " at time zone 'UTC'" if article.is_postgres(url) else ""
                )
                values = ", ".join(["'kept'", "''", "'done'", *[at] * (len(columns) - 3)])
                rows = _numbers(url, number)
                cursor.execute(f"insert into jobs ({', '.join(columns)}) select {values} from {rows}")
                db.commit()
            there += number * len(days)
    _settle(url)


def _by_day(url: str) -> bool:
    return "partitions" in url.rpartition("/")[2]


def _numbers(url: str, count: int) -> str:
    """A table expression with so many rows."""
    if article.is_postgres(url):
        return f"generate_series(1, {count}) as numbers"
    digits = " union all ".join(f"select {n}" for n in range(10))
    joined = " cross join ".join(f"({digits}) as d{n}" for n in range(len(str(AT_ONCE)) - 1))
    return f"(select 1 from {joined} limit {count}) as numbers"


def _settle(url: str) -> None:
    """Let the planner learn of the rows. Autovacuum has nothing to do then."""
    engine = engine_of(url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("vacuum analyze jobs" if article.is_postgres(url) else "analyze table jobs").close()
    engine.dispose()


def _pages(url: str) -> int:
    """How many pages the server has looked for, in memory or on the disk, since it started."""
    postgres = "select sum(blks_hit + blks_read) from pg_stat_database where datname = current_database()"
    mysql = "show global status like 'Innodb_buffer_pool_read_requests'"
    engine = engine_of(url)
    with engine.connect() as connection:
        found: Any = connection.exec_driver_sql(postgres if article.is_postgres(url) else mysql).one()
    engine.dispose()
    return int(found[-1])


def _purged(url: str) -> tuple[int, float]:
    """Purge the oldest day: how many jobs it had, and in how many seconds."""
    with Queue(url, on_done="keep") as queue:
        now = datetime.now(UTC)
        until = datetime.combine(now.date() - timedelta(days=DAYS - 1), datetime.min.time(), UTC)
        began = time.perf_counter()
        jobs = queue.purge(now - until)
        took = time.perf_counter() - began
    queue.engine.dispose()
    return jobs, took


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """A claim in partitions costs as much with the most kept jobs as with none."""
    least, most = (edge(found.places(BY_DAY)) for edge in (min, max))
    ratio = found.value(BY_DAY, most) / found.value(BY_DAY, least)
    yield Goal(4, "a turn with the most kept jobs in old partitions, of one with none", ratio, 1.2, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("partitions")

"""The table that a drain empties: made, filled, and looked at afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa

from benchmarks.article import Connection, connected, is_postgres
from benchmarks.harness import Share
from claimjobs import make, tables_for
from claimjobs.database.connect import engine_of

AT_ONCE = 1_000
MANY = 100_000
STRIDE = 7919
"""A prime: rows that follow each other have priorities that look like chance."""


class WrongCount(Exception):
    """A job was done twice, or not at all: the run's figures mean nothing."""


def setup_claimjobs(url: str) -> None:
    """The table of jobs as `setup-tables` makes it: claimjobs and the raw loop work on it alike."""
    engine = engine_of(url)
    make(engine, tables_for("jobs"))
    engine.dispose()


@contextmanager
def database(url: str, name: str) -> Iterator[str]:
    """The URL of a database of its own on the same server, for a table that is to be there beside others."""
    _say(url, f"create database {name}")
    try:
        yield sa.make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        _say(url, f"drop database {name}")


def _say(url: str, statement: str) -> None:
    engine = sa.create_engine(engine_of(url).url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)


def clear(url: str) -> None:
    with connected(url) as db, db.cursor() as cursor:
        cursor.execute("drop table if exists jobs, claimjobs_owners, claimjobs_queues, claimjobs_batches")
        if is_postgres(url):
            cursor.execute("drop type if exists jobs_status")
        db.commit()


def fill(url: str, rows: Sequence[tuple[str, str]], *, priorities: int = 0) -> list[int]:
    """Insert the rows, of so many priorities if any, and let the planner learn of them; return their keys."""
    with connected(url) as db:
        insert(db, rows, priorities)
        with db.cursor() as cursor:
            cursor.execute("select id from jobs")
            keys = [row[0] for row in cursor.fetchall()]
    analyze(url)
    return keys


def insert(db: Connection, rows: Sequence[tuple[str, str]], priorities: int = 0) -> None:
    """Insert the rows as fast as it goes, and commit. Without priorities also where the table has none."""
    prioritised = [(*row, number * STRIDE % priorities) for number, row in enumerate(rows)] if priorities else rows
    columns = "d, e, priority" if priorities else "d, e"
    with db.cursor() as cursor:
        if isinstance(cursor, psycopg.Cursor):
            _copy(cursor, columns, prioritised)
        else:
            _insert(cursor, columns, prioritised)
    db.commit()


def _copy(cursor: psycopg.Cursor[Any], columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    with cursor.copy(f"copy jobs ({columns}, status) from stdin") as copy:
        for row in rows:
            copy.write_row((*row, "unclaimed"))


def _insert(cursor: Any, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    places = ", ".join(["%s"] * len(rows[0]))
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        cursor.executemany(f"insert into jobs ({columns}, status) values ({places}, 'unclaimed')", some)


def multiply(url: str, target: int, status: str = "unclaimed") -> None:
    """Copy rows within the server until so many have this status; then let the planner learn of them."""
    with connected(url) as db, db.cursor() as cursor:
        while missing := target - _count(cursor, "where status = %s", status):
            copied = "select d, e, %s from jobs limit %s"
            cursor.execute(f"insert into jobs (d, e, status) {copied}", (status, min(missing, MANY)))
            db.commit()
    analyze(url)


def analyze(url: str) -> None:
    """Let the planner learn of the rows."""
    with connected(url) as db, db.cursor() as cursor:
        cursor.execute("analyze jobs" if is_postgres(url) else "analyze table jobs")
        db.commit()


def verify(url: str, keys: Sequence[int], shares: Sequence[Share]) -> None:
    """Every job once, none left. Raises WrongCount."""
    done = Counter(key for share in shares for key in share.keys)
    twice = [key for key, times in done.items() if times > 1]
    missing = set(keys) - set(done)
    left = count(url)
    if twice or missing or left or sum(done.values()) != len(keys):
        raise WrongCount(f"{len(twice)} jobs twice, {len(missing)} not done, {left} left in the table")


def count(url: str, status: str | None = None) -> int:
    """How many rows there are, of this status or whatever theirs is."""
    with connected(url) as db, db.cursor() as cursor:
        return _count(cursor, "where status = %s", status) if status else _count(cursor)


def _count(cursor: Any, where: str = "", *values: Any) -> int:
    cursor.execute(f"select count(*) from jobs {where}", values)
    return int(cursor.fetchone()[0])

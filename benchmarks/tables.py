"""The table that a drain empties: made, filled, and looked at afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from benchmarks.article import connected, is_postgres
from benchmarks.harness import Share
from claimjobs import make, tables_for
from claimjobs.connect import engine_of

AT_ONCE = 1_000


class WrongCount(Exception):
    """A job was done twice, or not at all: the run's figures mean nothing."""


def setup_claimjobs(url: str) -> None:
    """The table of jobs as `setup-tables` makes it: claimjobs and the raw loop work on it alike."""
    engine = engine_of(url)
    make(engine, tables_for("jobs"))
    engine.dispose()


def clear(url: str) -> None:
    with connected(url) as db, db.cursor() as cursor:
        cursor.execute("drop table if exists jobs, claimjobs_owners")
        if is_postgres(url):
            cursor.execute("drop type if exists jobs_status")
        db.commit()


def fill(url: str, rows: Sequence[tuple[str, str]]) -> list[int]:
    """Insert the rows and let the planner learn of them; return their keys."""
    with connected(url) as db, db.cursor() as cursor:
        _insert(cursor, rows)
        db.commit()
        cursor.execute("select id from jobs")
        keys = [row[0] for row in cursor.fetchall()]
    analyze(url)
    return keys


def _insert(cursor: Any, rows: Sequence[tuple[str, str]]) -> None:
    if isinstance(cursor, psycopg.Cursor):
        with cursor.copy("copy jobs (d, e, status) from stdin") as copy:
            for row in rows:
                copy.write_row((*row, "unclaimed"))
    else:
        for some in chunks(rows):
            cursor.executemany("insert into jobs (d, e, status) values (%s, %s, 'unclaimed')", some)


def chunks(rows: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    """So many rows as one INSERT takes at a time."""
    return (rows[first : first + AT_ONCE] for first in range(0, len(rows), AT_ONCE))


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


def count(url: str) -> int:
    """How many rows there are, whatever their state."""
    with connected(url) as db, db.cursor() as cursor:
        cursor.execute("select count(*) from jobs")
        return int(cursor.fetchone()[0])

"""The article's job queue, written plainly in plain drivers: a second implementation that knows nothing of claimjobs.

https://blog.koehntopp.info/2021/07/13/mysql-a-job-queue-in-python.html

PyMySQL for MySQL and MariaDB, psycopg for Postgres, where the statements are the same but for `= any` instead of
`in`. MySQL stays at its default REPEATABLE READ, as in the article, unless READ COMMITTED is asked for.

It departs from the article where a benchmark and a test must come to an end:

- A claim that locked nothing is rolled back, which drops its read view. The article does so only when it found no
  candidate; where it found some and locked none it looks again through the same read view, sees the same candidates,
  and without the random letter never anything else (tests/article/test_read_view.py).
- After a deadlock the transaction runs again, and is counted. The article's process ends. Seen with 2 generators, 10
  consumers and 4,000 jobs at REPEATABLE READ: with the random letter none on MySQL and two on MariaDB, without it 4 to
  18 and 73 to 118, and up to ten times as many claims for the same jobs as at READ COMMITTED, where 0 to 3 were met.
- A consumer ends when nothing is left and nothing more is to come.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql

Connection = Any  # of the Python DB-API: pymysql's or psycopg's
Row = tuple[int, str, str]
Result = TypeVar("Result")

BATCH = 100
COMMIT_EVERY = 10
LENGTH = 64

AGAIN = {1213, 1205, 1020, "40P01", "40001"}
"""Deadlock, lock wait timeout and MariaDB's changed snapshot; deadlock and serialization failure of Postgres."""

SCHEMA = Path(__file__).parents[1] / "examples" / "s3_isotopp"
"""The folder with the article's table, for MySQL and for Postgres."""


@contextmanager
def connected(url: str, *, read_committed: bool = False) -> Iterator[Connection]:
    """A connection of the plain driver for a URL as SQLAlchemy writes it."""
    db = _postgres(url) if is_postgres(url) else _mysql(url)
    try:
        if read_committed and not is_postgres(url):  # where it is the default
            with db.cursor() as cursor:
                cursor.execute("set session transaction isolation level read committed")
        yield db
    finally:
        db.close()


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql")


def _postgres(url: str) -> Connection:
    return psycopg.connect(url.replace("postgresql+psycopg:", "postgresql:", 1))


def _mysql(url: str) -> Connection:
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.removeprefix("/"),
    )


def setup_tables(url: str) -> None:
    """Make the article's table, with its six columns and two indexes."""
    with connected(url) as db, db.cursor() as cursor:
        cursor.execute((SCHEMA / f"schema.{'postgres' if is_postgres(url) else 'mysql'}.sql").read_text())
        db.commit()


# --- the generator -------------------------------------------------------------------------------------------


def generate(db: Connection, rows: Iterable[tuple[str, str]]) -> int:
    """Insert rows one by one and commit every tenth; return how many."""
    count = 0
    ten: list[tuple[str, str]] = []
    for row in rows:
        ten.append(row)
        if len(ten) == COMMIT_EVERY:
            count += _insert(db, ten)
            ten = []
    return count + _insert(db, ten)


def _insert(db: Connection, rows: list[tuple[str, str]]) -> int:
    again(db, partial(_insert_and_commit, db, rows), Tally())
    return len(rows)


def _insert_and_commit(db: Connection, rows: list[tuple[str, str]]) -> None:
    with db.cursor() as cursor:
        for d, e in rows:
            cursor.execute(
                "insert into jobs (id, d, e, status, owner_id, owner_date) "
                "values (default, %s, %s, 'unclaimed', null, null)",
                (d, e),
            )
    db.commit()


def payload(count: int) -> Iterator[tuple[str, str]]:
    """`count` pairs of random lower-case letters."""
    return ((_letters(), _letters()) for _ in range(count))


def _letters() -> str:
    return "".join(random.choices(string.ascii_lowercase, k=LENGTH))


# --- the consumer --------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What one consumer did."""

    jobs: int = 0
    claims: int = 0
    empty: int = 0
    """Claims that took nothing, because nothing was there or others were faster."""
    again: int = 0
    """Transactions run again after a deadlock."""
    last: float = 0.0
    """When the last batch was deleted, on the monotonic clock."""


def consume(
    db: Connection,
    number: int,
    process: Callable[[list[Row]], object],
    *,
    letters: bool = True,
    more_to_come: Callable[[], bool] = lambda: False,
    settled: Callable[[list[int]], object] = lambda _: None,
) -> Tally:
    """Claim, process, delete; return when nothing is left and nothing more is to come.

    `letters` draws a random letter for each claim and takes jobs that begin with it. `settled` is told the keys of
    what is deleted.
    """
    tally = Tally()
    misses, patience = 0, len(string.ascii_lowercase) if letters else 1
    while misses < patience or more_to_come() or _anything_left(db):
        found, jobs = again(db, partial(claim, db, number, letters), tally)
        misses = 0 if found else misses + 1
        tally.claims += 1
        tally.empty += not jobs
        if jobs:
            process(jobs)
            keys = [job[0] for job in jobs]
            again(db, partial(_delete, db, keys), tally)
            tally.jobs += len(jobs)
            tally.last = time.monotonic()
            settled(keys)
    return tally


def claim(db: Connection, number: int, letters: bool) -> tuple[int, list[Row]]:
    """How many candidates were found, and the jobs that are ours now."""
    candidates = find(db, letters)
    jobs = lock(db, candidates) if candidates else []
    if not jobs:
        db.rollback()  # drops the read view: the next look sees what was inserted since
        return len(candidates), []
    mark(db, [job[0] for job in jobs], number)
    db.commit()
    return len(candidates), jobs


def find(db: Connection, letters: bool) -> list[int]:
    some = "d like %s and " if letters else ""
    values = (random.choice(string.ascii_lowercase) + "%",) if letters else ()
    with db.cursor() as cursor:
        cursor.execute(f"select id from jobs where {some}status = 'unclaimed' limit {BATCH}", values)
        return [row[0] for row in cursor.fetchall()]


def lock(db: Connection, candidates: list[int]) -> list[Row]:
    with db.cursor() as cursor:
        cursor.execute(
            f"select id, d, e from jobs where status = 'unclaimed' and id {_among(db)} for update skip locked",
            (candidates,),
        )
        return list(cursor.fetchall())


def mark(db: Connection, keys: list[int], number: int) -> None:
    with db.cursor() as cursor:
        cursor.execute(
            f"update jobs set status = 'claimed', owner_date = now(), owner_id = %s where id {_among(db)}",
            (number, keys),
        )


def _delete(db: Connection, keys: list[int]) -> None:
    with db.cursor() as cursor:
        cursor.execute(f"delete from jobs where id {_among(db)}", (keys,))
    db.commit()


def _anything_left(db: Connection) -> bool:
    with db.cursor() as cursor:
        cursor.execute("select 1 from jobs where status = 'unclaimed' limit 1")
        left = bool(cursor.fetchall())
    db.rollback()
    return left


def _among(db: Connection) -> str:
    return "= any(%s)" if isinstance(db, psycopg.Connection) else "in %s"


def again(db: Connection, transaction: Callable[[], Result], tally: Tally) -> Result:
    """Run a transaction until it meets no deadlock."""
    while True:
        try:
            return transaction()
        except (pymysql.Error, psycopg.Error) as error:
            if not is_deadlock(error):
                raise
            db.rollback()
            tally.again += 1


def is_deadlock(error: pymysql.Error | psycopg.Error) -> bool:
    """Whether this is an error after which a transaction is run again."""
    return (error.sqlstate if isinstance(error, psycopg.Error) else error.args[0]) in AGAIN

"""Shared by the five examples: a new copy of an article's tables, and plain statements with parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.article import Connection, connected, is_postgres
from claimjobs import Queue, make
from claimjobs.database.connect import engine_of
from claimjobs.table.definitions import shared_tables

HERE = Path(__file__).parent
AT_ONCE = 1_000


class WrongResult(Exception):
    """An example broke a promise: a row was done twice or not at all, or a lock was not released."""


# --- tables --------------------------------------------------------------------------------------------------


def fresh(url: str, example: str, tables: Sequence[str]) -> None:
    """Make the article's tables, after dropping those of an earlier run."""
    with connected(url) as db:
        drop(db, [*tables, *(f"{table}_claims" for table in tables), "claimjobs_owners", "claimjobs_queues"])
        script(db, (HERE / example / schema(url)).read_text())


def make_owners(url: str) -> None:
    """Make the tables of owners and queues: claimjobs adds only these to a database, if a lease holds the claims."""
    engine = engine_of(url)
    make(engine, shared_tables())
    engine.dispose()


@contextmanager
def opened(queue: Queue) -> Iterator[Queue]:
    """A `with` block with the queue; its end closes all its connections, also those of an engine that it made."""
    try:
        with queue:
            yield queue
    finally:
        queue.engine.dispose()


def schema(url: str) -> str:
    """The name of the file with an article's tables for this database."""
    return "schema.postgres.sql" if is_postgres(url) else "schema.mysql.sql"


def drop(db: Connection, tables: Sequence[str]) -> None:
    """Drop these tables, if they exist."""
    run(db, f"drop table if exists {', '.join(tables)}")
    db.commit()


def script(db: Connection, statements: str) -> None:
    """Run the statements of a file; each ends with a semicolon at the end of a line."""
    for statement in statements.split(";\n"):
        if any(line and not line.startswith("--") for line in statement.splitlines()):
            run(db, statement)
    db.commit()


def fill(db: Connection, insert: str, rows: Sequence[tuple[Any, ...]], table: str) -> None:
    """Insert the rows, and update the planner's statistics."""
    with db.cursor() as cursor:
        for first in range(0, len(rows), AT_ONCE):
            cursor.executemany(insert, rows[first : first + AT_ONCE])
    db.commit()
    analyze(db, table)


def analyze(db: Connection, table: str) -> None:
    """Update the planner's statistics of a table."""
    run(db, f"analyze table {table}" if on_mysql(db) else f"analyze {table}")
    db.commit()


# --- statements of the plain drivers, with parameters ---------------------------------------------------------


def on_mysql(db: Connection) -> bool:
    """Whether this is PyMySQL's connection, to MySQL or MariaDB."""
    return type(db).__module__.startswith("pymysql")


def run(db: Connection, statement: str, *values: Any) -> int:
    """Run a statement; return how many rows it reached."""
    with db.cursor() as cursor:
        cursor.execute(statement, values or None)
        return int(cursor.rowcount)


def rows(db: Connection, statement: str, *values: Any) -> list[Any]:
    """All rows that a statement returns."""
    with db.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def first(db: Connection, statement: str, *values: Any) -> Any:
    """The first row that a statement returns, or None."""
    return next(iter(rows(db, statement, *values)), None)


def scalar(db: Connection, statement: str, *values: Any) -> Any:
    """The first value of the first row."""
    return rows(db, statement, *values)[0][0]


def numbers(text: str) -> list[int]:
    """An option's value: `1,2,4`."""
    return [int(number) for number in text.split(",")]


def must(holds: bool, message: str) -> None:
    """Raise WrongResult if a promise is broken."""
    if not holds:
        raise WrongResult(message)

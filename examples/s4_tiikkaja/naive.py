"""The statements that the article and its comments warn of, and the question to the server of who holds what.

An advisory lock is `pg_try_advisory_lock(id)` on Postgres. On MySQL it is `get_lock('id', 0)`, held by the session too.
"""

from __future__ import annotations

from typing import Any

from benchmarks.article import Connection
from examples.harness import first, on_mysql, run, scalar

FIRST = "select id from items where available order by id limit 1"
MOST_CONSUMERS = 10
TAKEN = "update items set available = false where id = %s"

POSTGRES_HELD = (
    "select count(*) from pg_locks where locktype = 'advisory' "
    "and database = (select oid from pg_database where datname = current_database())"
)
MYSQL_HELD = "select count(*) from performance_schema.metadata_locks where object_type = 'USER LEVEL LOCK'"


def look(db: Connection) -> int | None:
    """The first row that is available. Nothing is locked."""
    return _id(first(db, FIRST))


def lock_first(db: Connection) -> int | None:
    """The first row that is available, locked: the next session waits for it."""
    return _id(first(db, f"{FIRST} for update"))


def try_lock(db: Connection, table: str = "items") -> int | None:
    """The first row whose advisory lock is free, in the statement's snapshot.

    As in the article only the first rows are tried: there may be as many consumers.
    """
    candidates = f"select id from {table} where available order by id limit {MOST_CONSUMERS}"
    return _id(first(db, f"select id from ({candidates}) as candidate where {_lock_of('id', db)} limit 1"))


def try_lock_sorted(db: Connection) -> int | None:
    """The first such row in an order that no index has: the lock of every row is tried before the sort."""
    mine = f"where available and {_lock_of('id', db)}"
    return _id(first(db, f"select id from items {mine} order by -id limit 1"))


def still_available(db: Connection, key: int) -> bool:
    """The recheck under the lock. It would be useless in an earlier snapshot."""
    return first(db, "select 1 from items where id = %s and available", key) is not None


def take(db: Connection, key: int) -> None:
    """Mark a row as not available, commit, and release its lock."""
    run(db, TAKEN, key)
    db.commit()
    unlock(db, key)


def unlock(db: Connection, key: int) -> None:
    """Release a row's advisory lock."""
    scalar(db, "select release_lock(cast(%s as char))" if on_mysql(db) else "select pg_advisory_unlock(%s)", key)
    db.commit()


def freeze(db: Connection) -> None:
    """Begin a transaction with a snapshot of now. It stands for one statement that takes long."""
    run(db, f"set {'session' if on_mysql(db) else ''} transaction isolation level repeatable read")
    scalar(db, "select count(*) from items")


def held(db: Connection) -> int:
    """How many advisory locks the server shows; on MySQL in all its databases."""
    count = scalar(db, MYSQL_HELD if on_mysql(db) else POSTGRES_HELD)
    db.commit()
    return int(count)


def hurry(db: Connection) -> None:
    """Set a short lock timeout. MySQL has none below a second."""
    run(db, "set innodb_lock_wait_timeout = 1" if on_mysql(db) else "set lock_timeout = '300ms'")
    db.commit()


def _lock_of(key: str, db: Connection) -> str:
    return f"get_lock(cast({key} as char), 0)" if on_mysql(db) else f"pg_try_advisory_lock({key})"


def _id(row: Any) -> int | None:
    return row and int(row[0])

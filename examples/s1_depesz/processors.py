"""The article's four processors, each a loop over one connection that ends when the queue is empty.

Only (d) needs what only Postgres has: an advisory lock that ends with its transaction. On MySQL it is GET_LOCK, which
ends with the session: it is released after the commit, and the row is read again under it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

from benchmarks.article import Connection
from examples.harness import first, on_mysql, run

Row = tuple[str, int, datetime]
"""job, priority, added_on"""

Process = Callable[[Row], None]

SELECT = "select job, priority, added_on from queue"
ALONG_THE_INDEX = f"{SELECT} force index (queue_by_priority)"
"""For MySQL: otherwise it locks all of a small table to sort it, and waits for consumers that use the index."""
IN_ORDER = "order by priority desc, added_on limit 1"
THIS_ROW = "where priority = %s and added_on = %s"


def plain_select(db: Connection, process: Process) -> None:
    """(a) Nothing is locked: several workers read the same row."""
    while row := first(db, f"{SELECT} {IN_ORDER}"):
        db.commit()
        process(row)
        _delete(db, row)
        db.commit()


def select_for_update(db: Connection, process: Process) -> None:
    """(b) The row is locked while it is processed. All others wait for the same row."""
    while _anything_left(db):
        if row := first(db, f"{_select(db)} {IN_ORDER} for update"):
            process(row)
            _delete(db, row)
        db.commit()


def processed_by(db: Connection, process: Process) -> None:
    """(c) The row is locked until the worker's session is stored in it. Rows of ended sessions are free, too."""
    me, alive = _names_of_sessions(db)
    free = f"where processed_by is null or processed_by not in ({alive})"
    while _anything_left(db):
        row = first(db, f"{_select(db)} {free} {IN_ORDER} for update")
        if row:
            run(db, f"update queue set processed_by = {me} {THIS_ROW}", *row[1:])
        db.commit()
        if row:
            process(row)
            _delete(db, row)
            db.commit()


def _names_of_sessions(db: Connection) -> tuple[str, str]:
    """SQL for this session's number, and for the numbers of all sessions."""
    if on_mysql(db):
        return "connection_id()", "select id from information_schema.processlist"
    return "pg_backend_pid()", "select pid from pg_stat_activity"


def advisory_lock(db: Connection, process: Process) -> None:
    """(d) The first row whose advisory lock is free; the lock is held while the row is processed."""
    take, let_go = (_take_named, _let_go) if on_mysql(db) else (_take, _nothing)
    while _anything_left(db):
        row = take(db)
        if row:
            process(row)
            _delete(db, row)
        db.commit()
        let_go(db)


def _take(db: Connection) -> Row | None:
    """The plan must read the index in order: with a sort, the lock of every row would be tried."""
    mine = "where pg_try_advisory_xact_lock(hashtext('queue'), hashtext(priority::text || added_on::text))"
    row: Row | None = first(db, f"{SELECT} {mine} {IN_ORDER} for update")
    return row


def _take_named(db: Connection) -> Row | None:
    """For MySQL, GET_LOCK is a function like any other."""
    mine = "where get_lock(concat('queue ', priority, ' ', added_on), 0)"
    seen = first(db, f"{ALONG_THE_INDEX} {mine} {IN_ORDER}")
    row: Row | None = first(db, f"{SELECT} {THIS_ROW} for update", *seen[1:]) if seen else None
    return row


def _let_go(db: Connection) -> None:
    run(db, "select release_all_locks()")
    db.commit()


def _nothing(_db: Connection) -> None:
    pass


def hashed(row: Row) -> str:
    """The work of one row, in Python, because MySQL 9 has no MD5()."""
    return hashlib.md5(row[0].encode()).hexdigest()


def _select(db: Connection) -> str:
    return ALONG_THE_INDEX if on_mysql(db) else SELECT


def _delete(db: Connection, row: Row) -> None:
    run(db, f"delete from queue {THIS_ROW}", *row[1:])


def _anything_left(db: Connection) -> bool:
    left = first(db, "select 1 from queue limit 1")
    db.commit()
    return left is not None

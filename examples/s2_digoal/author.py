"""The article's functions, called by a plain driver. Postgres only: they need locks that end with the transaction."""

from __future__ import annotations

from typing import Any

from benchmarks.article import connected
from examples.harness import HERE, first, run
from examples.s2_digoal.client import ALREADY, ASSIGNED, BUSY, NOTHING, Result

PAIR = (
    "insert into pairs select %s, %s where pg_try_advisory_xact_lock(%s) and pg_try_advisory_xact_lock(%s) "
    "on conflict do nothing returning tid"
)
RELEASE = "update java_pool set taskid = null where tid = %s and pg_try_advisory_xact_lock(%s) and taskid is not null"


def setup(url: str) -> None:
    """Make the article's functions."""
    with connected(url) as db:
        run(db, (HERE / "s2_digoal" / "functions.postgres.sql").read_text())
        db.commit()


class Author:
    """One client."""

    def __init__(self, url: str) -> None:
        self._open = connected(url)
        self._db = self._open.__enter__()

    def close(self) -> None:
        self._open.__exit__(None, None, None)

    def pick_worker(self, task: int) -> Result:
        return self._result("select set_master(%s)", task, among="select 1 from java_pool where taskid is null limit 1")

    def pick_task(self, worker: int) -> Result:
        return self._result("select set_tid(%s)", worker, among="select 1 from task_pool where tid is null limit 1")

    def _result(self, statement: str, value: int, *, among: str) -> Result:
        [found] = first(self._db, statement, value)
        self._db.commit()
        if found is None:
            return (BUSY, None) if self._there_is(among) else (NOTHING, None)
        return ({-1: ALREADY, -2: BUSY}.get(found, ASSIGNED), found)

    def _there_is(self, statement: str) -> bool:
        found: Any = first(self._db, statement)
        self._db.commit()
        return found is not None

    def release(self, worker: int) -> bool:
        released = run(self._db, RELEASE, worker, worker)
        self._db.commit()
        return released > 0

    def insert(self, worker: int, task: int) -> Result:
        # No row is returned if the lock was not free, and if a half is assigned already.
        inserted = first(self._db, PAIR, worker, task, worker, task)
        self._db.commit()
        return (ASSIGNED, worker) if inserted else (ALREADY, None)

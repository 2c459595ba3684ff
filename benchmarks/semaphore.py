"""A limit per key by semaphores, as Solid Queue has it: a row of each key counts how many more of its jobs may run.

A job over the limit is in a table of blocked ones. Who has done a job gives its place back, and lets the next blocked
job of that key be ready: each in a transaction of its own, by the statements that Solid Queue's models send
(https://github.com/rails/solid_queue, `Semaphore`, `BlockedExecution`, `ReadyExecution`).
"""

from __future__ import annotations

import time
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import engine_of

PARTS: Final = sa.MetaData()
JOBS: Final = {
    name: sa.Table(
        f"semaphore_{name}",
        PARTS,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("customer", sa.Integer, nullable=False),
        mysql_engine="InnoDB",
    )
    for name in ("ready", "blocked", "claimed")
}
READY, BLOCKED, CLAIMED = JOBS["ready"], JOBS["blocked"], JOBS["claimed"]
PLACES: Final = sa.Table(
    "semaphore_places",
    PARTS,
    sa.Column("customer", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("value", sa.Integer, nullable=False),
    mysql_engine="InnoDB",
)
sa.Index("semaphore_blocked_of", BLOCKED.c.customer, BLOCKED.c.id)
AGAIN: Final = 50
"""How often a transaction is run again that the server ends because of a deadlock."""


def prepare(url: str, rows: int, keys: int, limit: int) -> None:
    """So many jobs, those over the limit blocked."""
    engine = engine_of(url)
    PARTS.drop_all(engine)
    PARTS.create_all(engine)
    jobs = [{"id": number, "customer": number % keys} for number in range(rows)]
    at_once = limit * keys
    with engine.begin() as connection:
        connection.execute(sa.insert(READY), jobs[:at_once])
        if jobs[at_once:]:
            connection.execute(sa.insert(BLOCKED), jobs[at_once:])
        connection.execute(sa.insert(PLACES), [{"customer": key, "value": 0} for key in range(keys)])
    engine.dispose()


def clear(url: str) -> None:
    """Drop its tables."""
    engine = engine_of(url)
    PARTS.drop_all(engine)
    engine.dispose()


def consume(url: str, batch: int, limit: int, *, seconds: float, most: int) -> tuple[int, int, float]:
    """Take jobs for so long, or so many: how many, in how many claims, in how many seconds."""
    engine = engine_of(url)
    done, claims, began = 0, 0, time.monotonic()
    while time.monotonic() - began < seconds and done < most:
        claims += 1
        jobs = _transaction(engine, _claim, batch)
        for job in jobs:
            _transaction(engine, _finish, job)
            _transaction(engine, _signal, job, limit)
        done += len(jobs)
        if not jobs:
            break
    engine.dispose()
    return done, claims, time.monotonic() - began


def _transaction(engine: sa.Engine, body: Any, *given: Any) -> Any:
    for _ in range(AGAIN):
        try:
            with engine.begin() as connection:
                return body(connection, *given)
        except sa.exc.OperationalError:
            continue
    raise TimeoutError(f"{AGAIN} deadlocks in a row")


def _claim(connection: sa.Connection, batch: int) -> list[Any]:
    first = sa.select(READY).order_by(READY.c.id).limit(batch).with_for_update(skip_locked=True)
    jobs = [dict(row._mapping) for row in connection.execute(first)]
    if jobs:
        connection.execute(sa.insert(CLAIMED), jobs)
        connection.execute(sa.delete(READY).where(READY.c.id.in_([job["id"] for job in jobs])))
    return jobs


def _finish(connection: sa.Connection, job: dict[str, int]) -> None:
    connection.execute(sa.delete(CLAIMED).where(CLAIMED.c.id == job["id"]))


def _signal(connection: sa.Connection, job: dict[str, int], limit: int) -> None:
    """Give the place back, and let the next blocked job of the key have it."""
    place = PLACES.c.customer == job["customer"]
    free = sa.update(PLACES).values(value=PLACES.c.value + 1).where(place, PLACES.c.value < limit)
    connection.execute(free)
    waiting = sa.select(BLOCKED.c.id).where(BLOCKED.c.customer == job["customer"]).order_by(BLOCKED.c.id).limit(1)
    found = connection.scalar(waiting.with_for_update(skip_locked=True))
    taken = sa.update(PLACES).values(value=PLACES.c.value - 1).where(place, PLACES.c.value > 0)
    if found is not None and connection.execute(taken).rowcount:
        connection.execute(sa.insert(READY), {"id": found, "customer": job["customer"]})
        connection.execute(sa.delete(BLOCKED).where(BLOCKED.c.id == found))

"""A table of orders that must not be altered, and queues over it with a side-car."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from claimjobs import Batch, Columns, Queue, make, side_car_tables
from claimjobs.claim.strategy import ClaimRequest
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend

ORDERS = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("status", sa.String(10), nullable=False, server_default="new"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
)
LATER = timedelta(hours=2)
"""Beyond every back-off."""


class Poison(Exception):
    """What the bad job does to its batch."""


def orders(backend: Backend, count: int = 10, **options: Any) -> Queue:
    """A queue over a table of somebody else's, with a side-car."""
    if not sa.inspect(backend.engine).has_table("orders"):
        ORDERS.create(backend.engine)
        fill(backend, count)
    return beside(backend, "orders", **options)


def fill(backend: Backend, count: int, first: int = 1) -> None:
    rows = [{"id": n, "customer": f"c{n % 3}"} for n in range(first, first + count)]
    with backend.engine.begin() as connection:
        if rows:
            connection.execute(sa.insert(ORDERS), rows)


def beside(backend: Backend, table: Any, columns: Columns | None = None, **options: Any) -> Queue:
    make(backend.engine, side_car_tables(backend.engine, table, columns=columns))
    return backend.bare_queue(table, columns=columns, side_car=True, **options)


def keys(batch: Any) -> list[Any]:
    return [job.key for job in getattr(batch, "jobs", batch)]


def claims(backend: Backend) -> dict[int, str]:
    """The status of each key in the side-car, and of each that is in a claim row."""
    batches = [row["keys"] for row in backend.rows(BATCHES_TABLE)]
    held = [json.loads(keys) if isinstance(keys, str) else keys for keys in batches]
    said = {row["id"]: row["status"] for row in backend.rows("orders_claims")}
    return {**said, **{key: "claimed" for keys in held for key in keys}}


def spoil(queue: Queue, size: int = 100) -> Batch:
    """Claim, and let an exception that names no job leave the block."""
    batch = queue.claim(size)
    with contextlib.suppress(Poison), batch:
        raise Poison("it blew up")
    return batch


def do_all(queue: Queue) -> list[Any]:
    """Work until nothing is due; the keys, in their order."""
    done = []
    for batch in queue.batches(3, drain=True):
        with batch:
            done += [job.key for job in batch]
    return done


def claim_by_hand(queue: Queue, connection: sa.Connection, size: int, limit: int) -> list[Any]:
    algorithm = queue._consumer.plans.plan(None).strategy
    return keys(algorithm.claim(connection, queue.owner_id, ClaimRequest(size, limit)).jobs)


def locks_of(queue: Queue) -> Any:
    """How claims of a queue with a side-car find and lock rows."""
    algorithm: Any = queue._consumer.plans.plan(None).strategy
    return algorithm._locks._locks

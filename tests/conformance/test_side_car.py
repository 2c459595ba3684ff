"""A table that must not be altered: the claims on it stand in a table beside it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, SideCar, make, side_car_tables
from tests.backends import Backend

ORDERS = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("status", sa.String(10), nullable=False, server_default="new"),
    mysql_engine="InnoDB",
)


def orders(backend: Backend, count: int = 10, **options: Any) -> Queue:
    """A queue over a table of somebody else's, with a side-car."""
    ORDERS.create(backend.engine, checkfirst=True)
    fill(backend, count)
    return beside(backend, "orders", **options)


def fill(backend: Backend, count: int, first: int = 1) -> None:
    with backend.engine.begin() as connection:
        rows = [{"id": n, "customer": f"c{n % 3}"} for n in range(first, first + count)]
        connection.execute(sa.insert(ORDERS), rows)


def beside(backend: Backend, table: Any, columns: Columns | None = None, **options: Any) -> Queue:
    side_car = options.pop("side_car", SideCar())
    make(backend.engine, side_car_tables(backend.engine, table, side_car, columns=columns))
    return backend.bare_queue(table, side_car=side_car, columns=columns, **options)


def keys(batch: Any) -> list[Any]:
    return [job.key for job in getattr(batch, "jobs", batch)]


def claims(backend: Backend) -> dict[int, str]:
    return {row["id"]: row["status"] for row in backend.rows("orders_claims")}


BOTH = pytest.mark.parametrize("lock_source", [True, False], ids=["locked", "read"])


@BOTH
def test_rows_are_claimed_and_done_and_none_comes_back(backend: Backend, lock_source: bool) -> None:
    queue = orders(backend, side_car=SideCar(lock_source=lock_source))
    with queue.claim(4) as batch:
        assert keys(batch) == [1, 2, 3, 4]
        assert batch[0].customer == "c1"
        assert batch[0].status == "new"
        assert claims(backend) == dict.fromkeys(range(1, 5), "claimed")
        batch.done()
    assert claims(backend) == dict.fromkeys(range(1, 5), "done")
    assert keys(queue.claim(100)) == [5, 6, 7, 8, 9, 10]
    assert len(backend.rows("orders")) == 10

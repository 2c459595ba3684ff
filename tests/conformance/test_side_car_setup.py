"""A side-car: what is made for it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, make, side_car_tables
from claimjobs.errors import BadMap, TableMissing, UnfitTable
from claimjobs.table.ddl import ddl
from tests.backends import Backend
from tests.conformance.jobs import counted
from tests.conformance.orders import (
    ORDERS,
    beside,
    do_all,
    fill,
)


def description(backend: Backend, table: str) -> Any:
    """All that the database says of a table."""
    inspector = sa.inspect(backend.engine)
    asked = ("get_columns", "get_indexes", "get_pk_constraint", "get_foreign_keys", "get_unique_constraints")
    told = {name: str(getattr(inspector, name)(table)) for name in asked}
    return {**told, "rows": [dict(row) for row in backend.rows(table)]}


def test_nothing_is_written_into_the_table_and_nothing_of_it_changes(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    fill(backend, 8)
    before = description(backend, "orders")
    queue = beside(backend, "orders")
    with counted(backend.engine) as sent:
        with queue.claim(4) as batch:
            batch.done(batch[0])
            batch.fail(batch[1], "again", retry_in=0)
            batch.fail(batch[2], "never", retry=False)
        do_all(queue)
        queue.jobs.retry()
        queue.stats()
        queue.close()
    make(backend.engine, side_car_tables(backend.engine, "orders"), recreate=True)
    assert description(backend, "orders") == before
    writes = [one for one in sent if one.startswith(("INSERT", "UPDATE", "DELETE"))]
    assert writes
    assert not [one for one in writes if " orders " in one.split("SELECT")[0].split("WHERE")[0] + " "]


def test_what_is_made_are_the_claims_and_the_owners(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    tables = side_car_tables(backend.engine, "orders")
    assert make(backend.engine, tables).created == (
        "orders_claims",
        "claimjobs_owners",
        "claimjobs_queues",
        "claimjobs_batches",
    )
    text = ddl(backend.engine, tables)
    assert "CREATE TABLE orders_claims" in text
    assert "CREATE TABLE orders " not in text
    assert "REFERENCES" not in text


def test_a_side_car_that_is_missing_is_told_with_the_command_that_makes_it(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    backend.make("jobs")
    with pytest.raises(TableMissing, match="setup-tables --table orders --side-car"):
        backend.bare_queue("orders", side_car=True).claim()


def test_a_side_car_may_have_another_name(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    fill(backend, 2)
    named = "what_is_taken"
    make(backend.engine, side_car_tables(backend.engine, "orders", named))
    assert do_all(backend.bare_queue("orders", side_car=named)) == [1, 2]
    assert len(backend.rows("what_is_taken")) == 2


@pytest.mark.parametrize("name", ["aside.orders", "orders"])
def test_a_side_car_has_not_the_name_of_its_table_in_another_schema_either(backend: Backend, name: str) -> None:
    ORDERS.create(backend.engine)
    with pytest.raises(UnfitTable, match="choose another one, such as 'orders_claims'"):
        side_car_tables(backend.engine, "orders", name)
    with pytest.raises(UnfitTable, match="choose another one, such as 'orders_claims'"):
        backend.bare_queue("orders", side_car=name).claim()


def test_a_column_of_the_key_with_the_name_of_a_role_in_capitals(backend: Backend) -> None:
    """To MySQL `Status` is the name `status`."""
    status = backend.engine.dialect.identifier_preparer.quote("Status")
    backend.run(f"CREATE TABLE steps (id INT, {status} INT, PRIMARY KEY (id, {status}))")
    backend.run("INSERT INTO steps VALUES (1, 7)")
    assert do_all(beside(backend, "steps")) == [(1, 7)]
    assert [row["claim_status"] for row in backend.rows("steps_claims")] == ["done"]


def test_a_table_with_a_long_name_has_a_side_car_as_long_as_the_name_of_that_fits(backend: Backend) -> None:
    longest = backend.dialect.table_rules.longest - len("_claims")
    names = [letter * 10 + "t" * (longest - 10) for letter in "ab"]
    names += [f"{names[0]}{'u' * more}" for more in (1, 7)]
    for name in names:
        backend.run(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
        backend.insert(name, [{"id": 1}, {"id": 2}])
    for name in names[:2]:
        make(backend.engine, side_car_tables(backend.engine, name))
        assert do_all(backend.bare_queue(name, side_car=True)) == [1, 2]
    for name in names[2:]:
        with pytest.raises(UnfitTable, match=r"choose its name in Python, .*side_car='NAME'"):
            side_car_tables(backend.engine, name)
        named = f"short_{len(name)}"
        make(backend.engine, side_car_tables(backend.engine, name, named))
        assert do_all(backend.bare_queue(name, side_car=named)) == [1, 2]


@pytest.mark.parametrize("other", [{"hold": "transaction"}, {"claims": "rows"}], ids=str)
def test_a_side_car_has_one_way_to_claim(anywhere: Backend, other: Any) -> None:
    with pytest.raises(ValueError, match=f"with a side-car a lease holds each claim.*leave out .*{next(iter(other))}"):
        Queue(anywhere.engine, "orders", side_car=True, **other)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (Columns(status="state", states={"unclaimed": "new", "done": "shipped"}), "status, states"),
        (Columns(states={"unclaimed": "new"}), "states"),
        (Columns(attempts="tries", traceparent="trace"), "attempts, traceparent"),
    ],
    ids=["the column of the state", "states", "others"],
)
def test_what_a_map_says_of_states_is_refused_because_nobody_would_read_it(
    anywhere: Backend, columns: Columns, named: str
) -> None:
    """Orders that the map calls done were claimed."""
    ORDERS.create(anywhere.engine)
    message = f"{named} of the map would have no effect: leave that out, and give a `where`"
    with pytest.raises(BadMap, match=message):
        Queue(anywhere.engine, "orders", columns=columns, side_car=True).claim()
    with pytest.raises(BadMap, match=message):
        side_car_tables(anywhere.engine, "orders", columns=columns)

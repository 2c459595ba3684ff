"""Columns of `per_key`: which may be a key, and when two keys are the same."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs import PerKey, job_table, key_tables, make, side_car_tables
from claimjobs.errors import BadArgument, ClaimsDiffer, ColumnMissing, ColumnUnfit, KeyUnfit, TableMissing, UnfitTable
from tests.backends import Backend
from tests.conformance.test_per_key import MAILS, finish, mails, mails_with


class Parcel(enum.Enum):
    """Its names are stored."""

    SMALL = "up to 2 kg"
    LARGE = "up to 20 kg"


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (sa.String(40), ["a", "Ä;\"'", ""]),
        pytest.param(sa.CHAR(10), ["a", "b"], marks=pytest.mark.pair("Postgres pads it, and MySQL does not")),
        pytest.param(
            sa.Uuid(),
            [uuid.UUID(int=n << 90 | n) for n in (1, 2, 3)],
            marks=pytest.mark.pair("the driver reads a text"),
        ),
    ],
    ids=["text", "char", "uuid"],
)
def test_keys_of_other_types(backend: Backend, type_: Any, values: Sequence[Any]) -> None:
    table = mails_with(sa.Column("customer", type_, nullable=False))
    _one_of_each(backend, table, ["customer"], [{"customer": value} for value in values for _ in range(3)])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (sa.Enum(Parcel, native_enum=False, length=20), Parcel.LARGE),
        pytest.param(sa.Uuid(as_uuid=False), str(uuid.UUID(int=5)), marks=pytest.mark.pair("a driver may have UUIDs")),
    ],
    ids=["enum", "uuid as text"],
)
def test_claims_of_keys_of_other_types_are_explained(backend: Backend, type_: Any, value: Any) -> None:
    table = mails_with(sa.Column("customer", type_, nullable=False))
    backend.make(table)
    make(backend.engine, key_tables(backend.engine, table, ["customer"]))
    queue = backend.bare_queue(table, per_key=PerKey("customer", at_most=1, weights={value: 2}))
    queue.enqueue([{"customer": value}] * 2)
    assert {"key rows", "claimed", "find", "lock"} <= {phase.name for phase in queue.explain().phases}
    assert [len(queue.claim()) for _ in range(2)] == [1, 0]


def test_keys_of_two_columns(backend: Backend) -> None:
    table = mails_with(
        sa.Column("region", sa.String(10), nullable=False), sa.Column("customer", sa.Integer, nullable=False)
    )
    rows = [{"region": region, "customer": n} for region in ("eu", "us") for n in (1, 2) for _ in range(3)]
    _one_of_each(backend, table, ["region", "customer"], rows)


def _one_of_each(backend: Backend, table: sa.Table, columns: list[str], rows: list[dict[str, Any]]) -> None:
    backend.make(table)
    make(backend.engine, key_tables(backend.engine, table, columns))
    queue = backend.bare_queue(table, per_key=PerKey(columns, at_most=1))
    queue.enqueue(rows)
    kinds = {_values(row, columns) for row in rows}
    for _ in range(3):
        with queue.claim(100) as batch:
            assert sorted(_values(job, columns) for job in batch.jobs) == sorted(kinds)
            assert not queue.claim(100)
            batch.done()
    assert queue.stats().left == 0


def _values(row: Any, columns: list[str]) -> tuple[Any, ...]:
    """Without the spaces with which a CHAR is padded."""
    return tuple(row[name].rstrip() if isinstance(row[name], str) else row[name] for name in columns)


def test_columns_that_can_be_no_key_are_refused_and_an_index_is_named(backend: Backend) -> None:
    table = job_table(
        "mails",
        sa.MetaData(),
        sa.Column("customer", sa.Integer, nullable=False),
        sa.Column("maybe", sa.Integer),
        sa.Column("day", sa.Date, nullable=False, server_default="2026-01-01"),
        sa.Column("next_at", sa.Integer, nullable=False, server_default="7"),
        sa.Column("long", sa.Text, nullable=False, server_default=None if backend.family != "postgres" else "x"),
    )
    backend.make(table)
    for name, error, words in [
        ("nowhere", ColumnMissing, "nowhere"),
        ("status", BadArgument, "claimjobs writes"),
        ("maybe", ColumnUnfit, "NOT NULL"),
        ("long", ColumnUnfit, "255 characters"),
        ("day", ColumnUnfit, "whole numbers"),
        ("next_at", ColumnUnfit, "rename it"),
    ]:
        with pytest.raises(error, match=words):
            key_tables(backend.engine, table, [name])
        with pytest.raises(error, match=words):
            backend.bare_queue(table, per_key=PerKey(name)).claim()
    queue = backend.bare_queue(table, per_key=PerKey("customer"))
    with pytest.raises(
        TableMissing, match=r"'mails_keys'.*run `claimjobs setup-tables --table mails --per-key customer`"
    ):
        queue.claim()
    make(backend.engine, key_tables(backend.engine, table, ["customer"]))
    queue = backend.bare_queue(table, per_key=PerKey("customer"))
    with pytest.raises(KeyUnfit, match="CREATE INDEX") as refused:
        queue.claim()
    backend.run(str(refused.value).split("order: ")[1])
    queue.enqueue({"customer": 7, "long": "x"})
    assert len(queue.claim()) == 1


def test_consumers_must_agree_on_the_columns(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=1), [7])
    queue.claim()
    with pytest.raises(ClaimsDiffer, match="per_key"):
        backend.bare_queue(MAILS).claim()
    assert backend.bare_queue(MAILS).stats().claimed == backend.bare_queue(MAILS).backlog().claimed == 1  # only looks
    queue.enqueue([{"customer": 7}] * 2)
    larger = backend.bare_queue(MAILS, per_key=PerKey("customer", at_most=2))
    assert len(larger.claim(5)) == 1  # another limit is no other key, and the larger one is not exceeded


def test_keys_are_equal_as_the_database_compares_them(backend: Backend) -> None:
    """By the default collation of MySQL `Ada` is `ADA`, and so one key."""
    table = mails_with(sa.Column("customer", sa.String(10), nullable=False))
    backend.make(table)
    make(backend.engine, key_tables(backend.engine, table, ["customer"]))
    queue = backend.bare_queue(table, per_key=PerKey("customer", at_most=1))
    queue.enqueue([{"id": 1, "customer": "Ada"}, {"id": 2, "customer": "ADA"}, {"id": 3, "customer": "ada"}])
    with backend.engine.connect() as connection:
        keys = connection.scalar(sa.select(sa.func.count(sa.distinct(table.c.customer))))
    first = queue.claim(9)
    assert len(first) == keys
    assert len(queue.claim(9)) == 0
    finish(first)
    total = len(first)
    for batch in queue.batches(9, drain=True):
        with batch:
            assert len(batch) == 1
            assert keys > 1 or not queue.claim(9)
            total += 1
            batch.done()
    assert (total, backend.rows("mails_keys")) == (3, [])


@pytest.mark.requires("table collation")
def test_a_set_of_words_is_no_key(backend: Backend) -> None:
    table = mails_with(sa.Column("customer", mysql.SET("a", "b"), nullable=False))
    backend.make(table)
    with pytest.raises(ColumnUnfit, match="cannot be a key of per_key"):
        key_tables(backend.engine, table, ["customer"])


# --- a table of keys, or a side-car, that does not fit the jobs ------------------------------------------------


def altered(backend: Backend, type_: str) -> None:
    """The column `customer` of the jobs has another type."""
    how = "ALTER COLUMN customer TYPE {}" if backend.family == "postgres" else "MODIFY customer {} NOT NULL"
    backend.run(f"ALTER TABLE mails {how.format(type_)}")


@pytest.mark.parametrize(
    ("type_", "to"), [(sa.Integer(), "BIGINT"), (sa.String(5), "VARCHAR(50)"), (sa.Integer(), "VARCHAR(50)")], ids=str
)
def test_a_table_of_keys_that_cannot_hold_the_keys_is_told_with_the_next_step(
    backend: Backend, type_: Any, to: str
) -> None:
    table = mails_with(sa.Column("customer", type_, nullable=False))
    backend.make(table)
    make(backend.engine, key_tables(backend.engine, table, ["customer"]))
    altered(backend, to)
    for use in (
        lambda: key_tables(backend.engine, "mails", ["customer"]),
        backend.bare_queue("mails", per_key=PerKey("customer")).claim,
    ):
        with pytest.raises(UnfitTable, match="table 'mails_keys' has the column 'customer'") as refused:
            use()
    command = "`claimjobs setup-tables --table mails --per-key customer`"
    assert f"DROP TABLE mails_keys, and run {command}" in str(refused.value)
    backend.run("DROP TABLE mails_keys")
    make(backend.engine, key_tables(backend.engine, "mails", ["customer"]))
    backend.bare_queue("mails", per_key=PerKey("customer")).check()


def test_a_table_of_keys_may_hold_more_than_the_jobs_have(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer"), [7])
    altered(backend, "SMALLINT")
    assert len(backend.bare_queue("mails", per_key=PerKey("customer")).claim()) == len(queue.claim()) + 1


@pytest.mark.requires("table collation")
def test_a_table_of_keys_has_the_collation_of_the_jobs(backend: Backend) -> None:
    table = mails_with(sa.Column("customer", sa.String(40), nullable=False))
    backend.make(table)
    make(backend.engine, key_tables(backend.engine, table, ["customer"]))
    altered(backend, "VARCHAR(40) COLLATE utf8mb4_bin")
    with pytest.raises(UnfitTable, match=r"'mails_keys' .* and the jobs have it with VARCHAR.* COLLATE utf8mb4_bin"):
        key_tables(backend.engine, table, ["customer"])


@pytest.mark.parametrize(("before", "after"), [(["a"], ["b"]), (["a", "b"], ["b"]), (["a"], ["a", "b"])], ids=str)
def test_other_columns_need_another_table_of_keys(backend: Backend, before: list[str], after: list[str]) -> None:
    table = mails_with(sa.Column("a", sa.Integer, nullable=False), sa.Column("b", sa.Integer, nullable=False))
    backend.make(table)
    make(backend.engine, key_tables(backend.engine, table, before))
    for use in (
        lambda: key_tables(backend.engine, table, after),
        backend.bare_queue(table, per_key=PerKey(after)).claim,
    ):
        with pytest.raises(UnfitTable, match=r"'mails_keys' has the primary key \(.*\) and not \(.*\): .* DROP TABLE"):
            use()


def test_a_table_of_others_with_the_name_of_the_table_of_keys_is_not_altered_or_dropped(backend: Backend) -> None:
    backend.make(MAILS)
    backend.run("CREATE TABLE mails_keys (id INTEGER PRIMARY KEY, secret VARCHAR(50))")
    with pytest.raises(UnfitTable, match=r"table 'mails_keys' has the primary key .id.*did not make it.*: rename it"):
        key_tables(backend.engine, MAILS, ["customer"])


def test_a_side_car_that_cannot_hold_the_keys_is_told(backend: Backend) -> None:
    backend.run("CREATE TABLE mails (customer INTEGER NOT NULL PRIMARY KEY)")
    make(backend.engine, side_car_tables(backend.engine, "mails"))
    altered(backend, "BIGINT")
    for use in (
        lambda: side_car_tables(backend.engine, "mails"),
        backend.bare_queue("mails", side_car=True).claim,
    ):
        with pytest.raises(UnfitTable, match=r"table 'mails_claims' has the column 'customer'.*: stop all consumers"):
            use()

"""Many rows come in just as they would by an INSERT of each: their values, their defaults, their order."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs.errors import BadRow
from claimjobs.table.columns import Columns
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.typed_values import ARRAYS, MANY, VALUES, as_stored, queue_of, things

# --- values ------------------------------------------------------------------------------------------------


def same_as_an_insert(backend: Backend, type_: Any, value: Any) -> None:
    table = things(type_)
    queue = queue_of(backend, table)
    try:
        with backend.engine.begin() as connection:
            connection.execute(sa.insert(table), [{"value": value}])
        wanted = as_stored(backend, table)
    except sa.exc.StatementError:
        with pytest.raises(BadRow, match=r"^row 1: "):
            queue.enqueue({"value": value} for _ in range(MANY))
        return
    assert queue.enqueue({"value": value} for _ in range(MANY)) == MANY
    assert repr(as_stored(backend, table)) == repr(wanted * (MANY + 1))  # what is no number is not equal to itself


@pytest.mark.parametrize("what", VALUES)
def test_a_value_comes_in_as_an_insert_writes_it(backend: Backend, what: str) -> None:
    same_as_an_insert(backend, *VALUES[what])


@pytest.mark.parametrize("what", ARRAYS)
@pytest.mark.requires("arrays")
def test_a_value_that_only_some_databases_hold_comes_in_as_an_insert_writes_it(backend: Backend, what: str) -> None:
    same_as_an_insert(backend, *ARRAYS[what])


def test_null_and_what_is_left_out_are_two_things(backend: Backend) -> None:
    table = things(sa.Integer)
    queue = queue_of(backend, table)
    queue.enqueue([*({"value": 1} for _ in range(MANY)), *({"value": 2, "rest": None} for _ in range(MANY))])
    rows = [(value, rest) for value, _, rest in as_stored(backend, table)]
    assert rows == [(1, "default")] * MANY + [(2, None)] * MANY


def test_rows_without_any_column_are_all_defaults(backend: Backend) -> None:
    table = things(sa.Integer)
    assert queue_of(backend, table).enqueue({} for _ in range(MANY)) == MANY
    assert [rest for *_, rest in as_stored(backend, table)] == ["default"] * MANY


@pytest.mark.parametrize(
    ("default", "wanted"),
    [(7, 7), (lambda: 8, 8), (lambda context: context.get_current_parameters()["id"], None), (sa.text("4 + 5"), 9)],
    ids=["a value", "a function", "a function of the row", "an expression"],
)
def test_defaults_that_are_not_the_databases_are_filled_in(backend: Backend, default: Any, wanted: int | None) -> None:
    table = things(sa.Integer, default=default)
    assert queue_of(backend, table).enqueue({"id": n} for n in range(1, MANY + 1)) == MANY
    assert [value for value, *_ in as_stored(backend, table)] == [wanted or n for n in range(1, MANY + 1)]


def test_columns_go_by_their_names_in_the_database_which_may_be_anything(backend: Backend) -> None:
    table = sa.Table(
        "strange % names",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(half := '50% of "it" VALUES (%s)', sa.String(8), key="half"),
        sa.Column("Select", sa.String(8)),
    )
    queue = queue_of(backend, table)
    rows = [{"Select": f"s{n}", half: f"h{n}"} for n in range(MANY)]
    assert queue.enqueue(rows) == MANY
    with backend.engine.connect() as connection:
        there = connection.execute(sa.select(table.c.half, table.c.Select).order_by(table.c.id)).all()
    assert [tuple(row) for row in there] == [(row[half], row["Select"]) for row in rows]


def test_an_expression_is_no_value_for_many_rows_nor_for_few(backend: Backend) -> None:
    table = things(sa.DateTime())
    queue = queue_of(backend, table)
    for count in (2, MANY):
        with pytest.raises(BadRow, match=r"^row 1: "):
            queue.enqueue({"value": sa.func.now()} for _ in range(count))


@pytest.mark.requires("schemas")
def test_a_schema_that_is_translated_is_the_one_that_is_written_to(backend: Backend) -> None:
    backend.run("CREATE SCHEMA other")
    for schema in ("public", "other"):
        backend.run(f"CREATE TABLE {schema}.things (id serial PRIMARY KEY, value integer)")
    queue = backend.bare_queue("things", columns=Columns(), hold="transaction")
    with backend.engine.connect().execution_options(schema_translate_map={None: "other"}) as connection:
        assert queue.enqueue(({"value": 1} for _ in range(MANY)), connection) == MANY
        connection.commit()
    with backend.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM other.things")) == MANY


# --- their order, and how many go at once ------------------------------------------------------------------


def test_chunks_of_many_and_of_few_and_of_several_shapes_keep_their_order(backend: Backend) -> None:
    queue = backend.queue()
    rows = jobs(3 * MANY + 7)
    for number, row in enumerate(rows):
        if number // MANY == 1 or number % 97 == 0:
            row["priority"] = number
    assert queue.enqueue(row for row in rows) == len(rows)
    there = backend.rows()
    assert [(row["d"], row["priority"]) for row in there] == [(row["d"], row.get("priority", 0)) for row in rows]


def test_long_rows_come_in_although_no_statement_holds_them_all(backend: Backend) -> None:
    table = things(sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"))
    queue = queue_of(backend, table)
    assert queue.enqueue({"value": chr(0x2603 + n) * 10_000} for n in range(MANY)) == MANY
    assert [value for value, *_ in as_stored(backend, table)] == [chr(0x2603 + n) * 10_000 for n in range(MANY)]


@pytest.mark.requires("joined rows")
def test_many_rows_are_a_statement_for_each_thousand_or_for_each_megabyte(backend: Backend) -> None:
    queue = queue_of(backend, things(mysql.LONGTEXT()))
    queue.check()
    for value, wanted in (("short", 3), ("long" * 500, 6)):
        before = statements(backend)
        queue.enqueue({"value": value} for _ in range(3_000))
        assert statements(backend) - before == wanted


def statements(backend: Backend) -> int:
    """INSERTs that the server has run."""
    with backend.engine.connect() as connection:
        return int(connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Com_insert'").one()[1])


@pytest.mark.one_server("what a process keeps is kept by Python, whatever the server is")
def test_what_is_held_in_memory_does_not_grow_with_the_rows(database: Backend) -> None:
    queue = database.queue()
    peaks = [peak_of(lambda count=count: queue.enqueue(generated(count))) for count in (20_000, 100_000)]  # type: ignore[misc]
    assert peaks[1] < peaks[0] + 1_000_000


def generated(count: int) -> Iterator[dict[str, Any]]:
    return ({"d": f"{number:064}", "e": "x" * 64} for number in range(count))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that Python held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

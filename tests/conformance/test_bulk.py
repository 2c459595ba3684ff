"""Many rows come in faster than few, and just as they would by an INSERT of each."""

from __future__ import annotations

import enum
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from claimjobs import Queue, job_table
from claimjobs.enqueue.bulk_insert import FEW
from claimjobs.errors import BadRow
from claimjobs.table.columns import Columns
from tests.backends import Backend
from tests.conformance.jobs import jobs

MANY = FEW + 50
HALF_PAST_FIVE = timezone(timedelta(hours=5, minutes=30))
NOON = datetime(2024, 5, 6, 12, 30, 15, tzinfo=HALF_PAST_FIVE)


class Colour(enum.Enum):
    RED = "rot"


class Backwards(sa.TypeDecorator[str]):
    """A type that Python writes."""

    impl = sa.String(64)
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: sa.Dialect) -> str | None:
        return None if value is None else value[::-1]


class Louder(sa.TypeDecorator[str]):
    """A type that the database writes."""

    impl = sa.String(64)
    cache_ok = True

    def bind_expression(self, bindparam: sa.BindParameter[str]) -> sa.ColumnElement[str]:
        return sa.func.upper(bindparam)


INSTANT = sa.DateTime(timezone=True)
VALUES: dict[str, tuple[Any, Any]] = {
    "text": (sa.String(64), "plain"),
    "text that a copy marks": (sa.Text(), "tab\tnewline\nreturn\rbackslash\\ \\N \\. quote'\" per%cent %s é☃𝄞"),
    "the end of a copy": (sa.Text(), "\\."),
    "what a copy takes for NULL": (sa.Text(), "\\N"),
    "no text": (sa.String(64), ""),
    "NULL": (sa.String(64), None),
    "text with blanks at its end": (sa.String(5), "abc       "),
    "text for a CHAR": (sa.CHAR(5), "abc"),
    "text too long for a CHAR": (sa.CHAR(2), "abc"),
    "a truth as text": (sa.String(64), True),
    "a number as text": (sa.String(64), 7),
    "a float as text": (sa.String(64), 1e15),
    "an instant as text": (sa.String(64), NOON),
    "a number": (sa.Integer(), -7),
    "a large number": (sa.BigInteger(), -(2**63)),
    "text as a number": (sa.Integer(), "12"),
    "a truth as a number": (sa.Integer(), True),
    "a float as a number": (sa.Integer(), 2.5),
    "a decimal": (sa.Numeric(12, 3), Decimal("-123456789.125")),
    "a decimal to be rounded": (sa.Numeric(5, 1), Decimal("1.25")),
    "a float as a decimal": (sa.Numeric(30, 20), 0.1),
    "a number as a decimal": (sa.Numeric(12, 3), 7),
    "a float": (sa.Double(), 0.1 + 0.2),
    "a large float": (sa.Double(), 1e300),
    "a small float": (sa.REAL(), 0.1),
    "a number as a float": (sa.Double(), 3),
    "a truth": (sa.Boolean(), False),
    "bytes": (sa.LargeBinary(), bytes(range(256))),
    "a date": (sa.Date(), date(2024, 2, 29)),
    "an instant as a date": (sa.Date(), NOON),
    "an instant with its zone": (INSTANT, NOON),
    "an instant without a zone": (INSTANT, NOON.replace(tzinfo=None)),
    "an instant": (sa.DateTime(), NOON.replace(tzinfo=None)),
    "an instant whose zone is not wanted": (sa.DateTime(), NOON),
    "a time": (sa.Time(), time(23, 59, 59)),
    "a duration": (sa.Interval(), timedelta(days=3, seconds=4)),
    "json": (sa.JSON(), {"a": [1, 2.5, None, True, 'é"\\\n'], "b": {}}),
    "no json": (sa.JSON(), None),
    "json that is null": (sa.JSON(none_as_null=True), None),
    "a uuid": (sa.Uuid(), UUID(int=7)),
    "text as a uuid": (sa.Uuid(as_uuid=False), str(UUID(int=7))),
    "an enumeration": (sa.Enum(Colour, name="colour"), Colour.RED),
    "an enumeration of texts": (sa.Enum("rot", "blau", name="farbe"), "blau"),
    "a type of the user's": (Backwards(), "abc"),
    "a type that the database writes": (Louder(), "abc"),
}
ARRAYS: dict[str, tuple[Any, Any]] = {
    "numbers": (sa.ARRAY(sa.Integer), [1, None, 3]),
    "texts": (sa.ARRAY(sa.Text), ["a,b", '"', "\\", "NULL", "", None, "{}", "\t"]),
    "nothing": (sa.ARRAY(sa.Integer), []),
    "instants": (sa.ARRAY(sa.DateTime()), [NOON]),
    "rows of numbers": (sa.ARRAY(sa.Integer, dimensions=2), [[1, 2], [3, 4]]),
    "NULL": (sa.ARRAY(sa.Integer), None),
    "jsonb": (postgresql.JSONB(), {"a": 1.50}),
    "an address": (postgresql.INET(), "10.0.0.0/8"),
    "seconds only": (postgresql.TIMESTAMP(precision=0), NOON.replace(tzinfo=None, microsecond=600_000)),
    "not a number": (sa.Double(), float("nan")),
    "a decimal that is no number": (sa.Numeric(), Decimal("NaN")),
    "endless": (sa.Double(), float("-inf")),
}


def things(type_: Any, **options: Any) -> sa.Table:
    return sa.Table(
        "things",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("value", type_, **options),
        sa.Column("rest", sa.String(8), server_default="default"),
    )


def queue_of(backend: Backend, table: sa.Table, **options: Any) -> Queue:
    """A queue over a table that has only a key, and what there is to it."""
    table.metadata.create_all(backend.engine)
    return backend.bare_queue(table, columns=Columns(), hold="transaction", **{"on_done": "delete", **options})


def as_stored(backend: Backend, table: sa.Table) -> list[tuple[Any, ...]]:
    """Every value as the driver gives it, and the server's text of it, in the order of the keys."""
    text = sa.cast(table.c.value, sa.CHAR if backend.has("table collation") else sa.Text)
    with backend.engine.connect() as connection:
        plain = sa.select(sa.type_coerce(table.c.value, sa.types.NULLTYPE), text, table.c.rest).order_by(table.c.id)
        return [tuple(row) for row in connection.execute(plain)]


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
def test_a_value_that_only_some_databases_hold_comes_in_as_an_insert_writes_it(backend: Backend, what: str) -> None:
    backend.requires("arrays")
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


def test_columns_go_by_their_names_in_python_and_may_be_called_anything_in_the_database(backend: Backend) -> None:
    table = sa.Table(
        "strange % names",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column('50% of "it" VALUES (%s)', sa.String(8), key="half"),
        sa.Column("Select", sa.String(8)),
    )
    queue = queue_of(backend, table)
    rows = [{"Select": f"s{n}", "half": f"h{n}"} for n in range(MANY)]
    assert queue.enqueue(rows) == MANY
    with backend.engine.connect() as connection:
        there = connection.execute(sa.select(table.c.half, table.c.Select).order_by(table.c.id)).all()
    assert [tuple(row) for row in there] == [(row["half"], row["Select"]) for row in rows]


def test_an_expression_is_no_value_for_many_rows_nor_for_few(backend: Backend) -> None:
    table = things(sa.DateTime())
    queue = queue_of(backend, table)
    for count in (2, MANY):
        with pytest.raises(BadRow, match=r"^row 1: "):
            queue.enqueue({"value": sa.func.now()} for _ in range(count))


def test_a_schema_that_is_translated_is_the_one_that_is_written_to(backend: Backend) -> None:
    backend.requires("schemas")
    backend.run("CREATE SCHEMA other")
    for schema in ("public", "other"):
        backend.run(f"CREATE TABLE {schema}.things (id serial PRIMARY KEY, value integer)")
    queue = backend.bare_queue("things", columns=Columns(), hold="transaction")
    with backend.engine.connect().execution_options(schema_translate_map={None: "other"}) as connection:
        assert queue.enqueue(({"value": 1} for _ in range(MANY)), connection) == MANY
        connection.commit()
    with backend.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM other.things")) == MANY


# --- their order, and how many go at once ----------------------------------------------------------------------


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


# --- rows that do not fit --------------------------------------------------------------------------------------

PLACES = [2, 700, 1_350]
BAD: dict[str, dict[str, Any]] = {
    "too long": {"d": "x" * 65},
    "null": {"d": None},
    "no number": {"priority": "urgent"},
    "too large": {"priority": 2**40},
    "far too large": {"priority": 2**70},
    "a duplicate": {"id": 1},
    "no zone": {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    "half a character": {"e": "\ud800"},
}


@pytest.mark.parametrize("why", BAD)
def test_bad_rows_among_many_are_told_by_their_numbers_and_all_others_come_in(backend: Backend, why: str) -> None:
    queue = backend.queue()
    queue.enqueue({"id": 1, "d": "first", "e": ""})
    rows = [{"id": n + 10, "priority": 0, "run_at": NOON, **job} for n, job in enumerate(jobs(1_350))]
    wanted = [row["d"] for n, row in enumerate(rows, 1) if n not in PLACES]
    for place in PLACES:
        rows[place - 1].update(BAD[why])
    with pytest.raises(BadRow, match=r"^row 2: ") as error:
        queue.enqueue(rows)
    told: list[BadRow] = []
    with backend.engine.begin() as connection:
        assert queue.enqueue(rows, connection, on_bad=told.append) == len(rows) - len(PLACES)
    assert [bad.line for bad in told] == PLACES
    assert [bad.row for bad in told] == [rows[place - 1] for place in PLACES]
    assert told[0].reason == error.value.reason
    assert [row["d"] for row in backend.rows()] == ["first", *wanted]


def test_a_nul_that_a_text_cannot_hold_is_told_as_for_a_single_row(backend: Backend) -> None:
    queue = backend.queue()
    rows = jobs(MANY)
    rows[110]["e"] = "nul \0 nul"
    told: list[BadRow] = []
    came = queue.enqueue(rows, on_bad=told.append)
    alone: list[BadRow] = []
    queue.enqueue(rows[110], on_bad=alone.append)
    assert [bad.line for bad in told] == [111] * len(alone)
    assert [bad.reason for bad in told] == [bad.reason for bad in alone]
    assert came == MANY - len(alone)


def test_a_lock_that_is_not_to_be_had_in_time_is_no_rows_fault(backend: Backend) -> None:
    queue = backend.queue()
    rows = [{"id": n, **job} for n, job in enumerate(jobs(MANY), 1)]
    with backend.engine.connect() as other, backend.engine.connect() as mine:
        queue.enqueue(rows[-1], other)
        for setting in backend.dialect.sessions.settings(1.0):
            mine.exec_driver_sql(setting).close()
        with pytest.raises(sa.exc.DBAPIError) as error:
            queue.enqueue(rows, mine)
        assert backend.dialect.errors.transient_kind(error.value) == "lock timeout"
        assert not error.value.connection_invalidated
        mine.rollback()
        mine.invalidate()  # its setting must not stay in the pool
        other.rollback()
    assert queue.enqueue(rows) == MANY


def test_a_connection_that_breaks_meanwhile_is_told_and_not_used_again(backend: Backend) -> None:
    queue = backend.queue()
    rows = [{"id": n, **job} for n, job in enumerate(jobs(MANY), 1)]
    errors: list[Any] = []

    def enqueue(mine: sa.Connection) -> None:
        with pytest.raises(sa.exc.DBAPIError) as error:
            queue.enqueue(rows, mine)
        errors.append(error.value)

    with backend.engine.connect() as other, backend.engine.connect() as mine:
        session = mine.execute(sa.select(own_session(backend))).scalar_one()
        queue.enqueue(rows[-1], other)
        thread = threading.Thread(target=enqueue, args=[mine])
        thread.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the rows wait for a key")
        other.execute(backend.dialect.sessions.end_session(session))
        thread.join(30)
        assert errors[0].connection_invalidated
        assert mine.invalidated
        other.rollback()
    assert queue.enqueue(rows) == MANY


def own_session(backend: Backend) -> sa.ColumnElement[int]:
    return sa.func.connection_id() if backend.has("joined rows") else sa.func.pg_backend_pid()


def test_what_a_source_raises_while_many_rows_are_read_is_its_own(backend: Backend) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from jobs(MANY)
        raise KeyboardInterrupt

    queue = backend.queue()
    with backend.engine.begin() as connection:
        with pytest.raises(KeyboardInterrupt):
            queue.enqueue(rows(), connection)
        assert queue.enqueue(jobs(MANY), connection) == MANY
    assert len(backend.rows()) == MANY


# --- how they come in ------------------------------------------------------------------------------------------


def test_many_rows_are_a_statement_for_each_thousand_or_for_each_megabyte(backend: Backend) -> None:
    backend.requires("joined rows")
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


def watched(backend: Backend, table: str) -> Callable[[], list[str]]:
    """Notes how rows come into a table: a trigger sees the first word of the statement that fired it."""
    backend.run("CREATE TABLE seen (id serial PRIMARY KEY, how text)")
    backend.run(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
        "INSERT INTO seen (how) VALUES (split_part(current_query(), ' ', 1)); RETURN NULL; END $$"
    )
    backend.run(f"CREATE TRIGGER noting AFTER INSERT ON {table} EXECUTE FUNCTION note()")
    return lambda: [row["how"] for row in backend.rows("seen")]


def test_many_rows_are_copied_and_few_are_inserted(backend: Backend) -> None:
    backend.requires("copies")
    queue = backend.queue()
    how = watched(backend, "jobs")
    queue.enqueue(jobs(1_000 + MANY))
    assert how() == ["COPY"] * 2
    queue.enqueue(jobs(3))
    assert how()[2:] == ["INSERT"] * 3


COPIED = (
    "text",
    "NULL",
    "a number",
    "a decimal",
    "a float",
    "a truth",
    "bytes",
    "a date",
    "an instant with its zone",
    "an instant",
    "a time",
    "a duration",
    "json",
    "a uuid",
    "an enumeration",
    "an enumeration of texts",
    "a type of the user's",
)


@pytest.mark.parametrize("what", COPIED)
def test_values_that_mean_the_same_in_a_copy_are_copied(backend: Backend, what: str) -> None:
    backend.requires("copies")
    type_, value = VALUES[what]
    table = things(type_)
    queue = queue_of(backend, table)
    how = watched(backend, "things")
    queue.enqueue({"value": value} for _ in range(MANY))
    assert how() == ["COPY"]


def test_a_chunk_with_a_bad_row_is_copied_but_for_the_rows_around_it(backend: Backend) -> None:
    backend.requires("copies")
    queue = backend.queue()
    how = watched(backend, "jobs")
    rows = jobs(1_000)
    rows[500]["d"] = None
    told: list[BadRow] = []
    assert queue.enqueue(rows, on_bad=told.append) == 999
    assert [bad.line for bad in told] == [501]
    assert how().count("COPY") == 3
    assert how().count("INSERT") == 124


def plain(backend: Backend, table: str | sa.Table) -> Queue:
    return backend.bare_queue(table, columns=Columns(), hold="transaction")


NUMBERS = [{"value": n} for n in range(MANY)]
MANY_INSERTS = ["INSERT"] * MANY


def test_a_rule_is_followed(backend: Backend) -> None:
    backend.requires("copies")
    for table in ("things", "others"):
        backend.run(f"CREATE TABLE {table} (id serial PRIMARY KEY, value integer)")
    backend.run("CREATE RULE twice AS ON INSERT TO things DO ALSO INSERT INTO others (value) VALUES (NEW.value)")
    assert plain(backend, "things").enqueue(NUMBERS) == MANY
    assert [row["value"] for row in backend.rows("others")] == [row["value"] for row in NUMBERS]


def test_a_role_whose_rows_have_a_policy_is_held_to_it(backend: Backend) -> None:
    backend.requires("copies")
    backend.run("CREATE TABLE things (id serial PRIMARY KEY, value integer)")
    backend.run("ALTER TABLE things ENABLE ROW LEVEL SECURITY")
    backend.run("CREATE POLICY small ON things FOR INSERT WITH CHECK (value < 120)")
    backend.run("CREATE ROLE claimjobs_clerk")
    try:
        backend.run("GRANT USAGE ON SCHEMA public TO claimjobs_clerk")
        backend.run("GRANT ALL ON things, things_id_seq TO claimjobs_clerk")
        queue, how = plain(backend, "things"), watched(backend, "things")
        assert queue.enqueue(NUMBERS) == MANY
        with backend.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL ROLE claimjobs_clerk").close()
            assert queue.enqueue(NUMBERS[:110], connection) == 110
        refused = pytest.raises(BadRow, match=r"^row 121: .*violates row-level security")
        with refused, backend.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL ROLE claimjobs_clerk").close()
            queue.enqueue(NUMBERS, connection)
        assert how() == ["COPY", *["INSERT"] * 110]
    finally:
        backend.run("DROP OWNED BY claimjobs_clerk")
        backend.run("DROP ROLE claimjobs_clerk")


@pytest.mark.parametrize("generated", ["GENERATED ALWAYS AS IDENTITY", "GENERATED ALWAYS AS (id + 1) STORED"])
def test_a_column_that_the_table_fills_in_is_not_filled_in_for_it(backend: Backend, generated: str) -> None:
    backend.requires("copies")
    backend.run(f"CREATE TABLE things (id serial PRIMARY KEY, value integer {generated}, rest integer)")
    queue, how = plain(backend, "things"), watched(backend, "things")
    with pytest.raises(sa.exc.DBAPIError, match="cannot insert a non-DEFAULT value"):
        queue.enqueue(NUMBERS)
    assert queue.enqueue({"rest": n} for n in range(MANY)) == MANY
    assert how() == ["COPY"]


def test_a_column_that_is_not_what_it_was_declared_to_be_is_inserted_into(backend: Backend) -> None:
    backend.requires("copies")
    backend.run("CREATE TABLE things (id serial PRIMARY KEY, value bigint, rest text)")
    queue, how = plain(backend, things(sa.Integer)), watched(backend, "things")
    assert queue.enqueue(NUMBERS) == MANY
    assert how() == MANY_INSERTS
    with pytest.raises(BadRow, match="out of its range"):
        queue.enqueue({"value": 2**40} for _ in range(MANY))


def test_another_driver_inserts(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.requires("copies")
    queue = backend.queue()
    how = watched(backend, "jobs")
    monkeypatch.setattr(backend.engine.dialect, "driver", "another")
    queue.enqueue(jobs(MANY))
    assert how() == MANY_INSERTS


def test_an_interrupted_copy_is_told_as_an_interruption(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a copy under way: nothing else goes through that connection any more, a ROLLBACK neither."""
    backend.requires("copies")
    queue = backend.queue()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Copy, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.enqueue(jobs(MANY))
    assert backend.rows() == []
    assert queue.enqueue(jobs(MANY)) == MANY


def test_unique_rows_are_inserted(backend: Backend) -> None:
    backend.requires("copies")
    queue = backend.queue(job_table("visits", sa.MetaData(), sa.Column("day", sa.Integer), unique="day"))
    how = watched(backend, "visits")
    assert queue.enqueue(({"day": n // 2} for n in range(2 * MANY)), unique="day") == MANY
    assert "COPY" not in how()

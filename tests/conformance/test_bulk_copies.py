"""Many rows are sent as data where that does what an INSERT does; where it does not, they are inserted."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table
from claimjobs.errors import BadRow
from claimjobs.table.columns import Columns
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.typed_values import ARRAYS, MANY, VALUES, queue_of, things

NUMBERS = [{"value": n} for n in range(MANY)]
MANY_INSERTS = ["INSERT"] * MANY


def watched(backend: Backend, table: str) -> Callable[[], list[str]]:
    """Notes how rows come into a table: a trigger sees the first word of the statement that fired it."""
    backend.run("CREATE TABLE seen (id serial PRIMARY KEY, how text)")
    backend.run(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
        "INSERT INTO seen (how) VALUES (split_part(current_query(), ' ', 1)); RETURN NULL; END $$"
    )
    backend.run(f"CREATE TRIGGER noting AFTER INSERT ON {table} EXECUTE FUNCTION note()")
    return lambda: [row["how"] for row in backend.rows("seen")]


def plain(backend: Backend, table: str | sa.Table) -> Queue:
    return backend.bare_queue(table, columns=Columns(), hold="transaction")


# --- what is copied ----------------------------------------------------------------------------------------


@pytest.mark.requires("copies")
def test_many_rows_are_copied_and_few_are_inserted(backend: Backend) -> None:
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
    "a large number",
    "a decimal",
    "a number as a decimal",
    "a float",
    "a truth",
    "a date",
    "an instant with its zone",
    "jsonb",
    "a uuid",
    "a type of the user's",
)
INSERTED = (
    "a truth as a number",
    "text as a uuid",
    "a small float",
    "an instant as a date",
    "bytes",
    "an instant",
    "a time",
    "a duration",
    "json",
    "an enumeration",
    "an enumeration of texts",
    "a type that the database writes",
    "numbers",
    "an address",
    "seconds only",
)


@pytest.mark.parametrize("what", [*COPIED, *INSERTED])
@pytest.mark.requires("copies")
def test_values_of_plain_types_are_copied_and_others_are_inserted(backend: Backend, what: str) -> None:
    type_, value = {**ARRAYS, **VALUES}[what]
    table = things(type_)
    queue = queue_of(backend, table)
    how = watched(backend, "things")
    queue.enqueue({"value": value} for _ in range(MANY))
    assert how() == (["COPY"] if what in COPIED else MANY_INSERTS)


@pytest.mark.requires("copies")
def test_a_column_that_is_declared_without_a_type_is_inserted_into(backend: Backend) -> None:
    backend.run("CREATE TABLE things (id serial PRIMARY KEY, value integer, rest text)")
    queue, how = plain(backend, things(None)), watched(backend, "things")
    assert queue.enqueue(NUMBERS) == MANY
    assert how() == MANY_INSERTS


@pytest.mark.requires("copies")
def test_a_chunk_with_a_bad_row_is_copied_but_for_the_rows_around_it(backend: Backend) -> None:
    queue = backend.queue()
    how = watched(backend, "jobs")
    rows = jobs(1_000)
    rows[500]["d"] = None
    told: list[BadRow] = []
    assert queue.enqueue(rows, on_bad=told.append) == 999
    assert [bad.line for bad in told] == [501]
    assert how().count("COPY") == 3
    assert how().count("INSERT") == 124


@pytest.mark.requires("copies")
def test_an_interrupted_copy_is_told_as_an_interruption(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a copy under way: nothing else goes through that connection any more, a ROLLBACK neither."""
    queue = backend.queue()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Copy, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.enqueue(jobs(MANY))
    assert backend.rows() == []
    assert queue.enqueue(jobs(MANY)) == MANY


# --- what is inserted --------------------------------------------------------------------------------------


@pytest.mark.requires("copies")
def test_a_rule_is_followed(backend: Backend) -> None:
    for table in ("things", "others"):
        backend.run(f"CREATE TABLE {table} (id serial PRIMARY KEY, value integer)")
    backend.run("CREATE RULE twice AS ON INSERT TO things DO ALSO INSERT INTO others (value) VALUES (NEW.value)")
    assert plain(backend, "things").enqueue(NUMBERS) == MANY
    assert [row["value"] for row in backend.rows("others")] == [row["value"] for row in NUMBERS]


@pytest.mark.requires("copies")
def test_a_role_whose_rows_have_a_policy_is_held_to_it(backend: Backend) -> None:
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
@pytest.mark.requires("copies")
def test_a_column_that_the_table_fills_in_is_not_filled_in_for_it(backend: Backend, generated: str) -> None:
    backend.run(f"CREATE TABLE things (id serial PRIMARY KEY, value integer {generated}, rest integer)")
    queue, how = plain(backend, "things"), watched(backend, "things")
    with pytest.raises(sa.exc.DBAPIError, match="cannot insert a non-DEFAULT value"):
        queue.enqueue(NUMBERS)
    assert queue.enqueue({"rest": n} for n in range(MANY)) == MANY
    assert how() == ["COPY"]


@pytest.mark.requires("copies")
def test_a_column_that_is_not_what_it_was_declared_to_be_is_inserted_into(backend: Backend) -> None:
    backend.run("CREATE TABLE things (id serial PRIMARY KEY, value bigint, rest text)")
    queue, how = plain(backend, things(sa.Integer)), watched(backend, "things")
    assert queue.enqueue(NUMBERS) == MANY
    assert how() == MANY_INSERTS
    with pytest.raises(BadRow, match="out of its range"):
        queue.enqueue({"value": 2**40} for _ in range(MANY))


@pytest.mark.requires("copies")
def test_another_driver_inserts(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = backend.queue()
    how = watched(backend, "jobs")
    monkeypatch.setattr(backend.engine.dialect, "driver", "another")
    queue.enqueue(jobs(MANY))
    assert how() == MANY_INSERTS


@pytest.mark.requires("copies")
def test_unique_rows_are_inserted(backend: Backend) -> None:
    queue = backend.queue(job_table("visits", sa.MetaData(), sa.Column("day", sa.Integer), unique="day"))
    how = watched(backend, "visits")
    assert queue.enqueue(({"day": n // 2} for n in range(2 * MANY)), unique="day") == MANY
    assert "COPY" not in how()


@pytest.mark.requires("copies")
def test_a_key_of_any_whole_numbers_is_copied(backend: Backend) -> None:
    backend.run("CREATE TABLE things (id integer PRIMARY KEY, value integer, rest text)")
    queue, how = plain(backend, "things"), watched(backend, "things")
    assert queue.enqueue({"id": n, "value": n} for n in range(MANY)) == MANY
    assert how() == ["COPY"]

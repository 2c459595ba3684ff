"""Many rows of which some do not fit, or which are interrupted: what is told, and what comes in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.errors import BadRow
from claimjobs.table.definitions import job_table
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.typed_values import MANY, NOON

# --- rows that do not fit ----------------------------------------------------------------------------------


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


def sa_table(unique: Any) -> sa.Table:
    columns = (sa.Column("d", sa.String(64), nullable=False), sa.Column("e", sa.String(64), nullable=False))
    return job_table("jobs", sa.MetaData(), *columns, unique=unique)


def refuse_inserts(backend: Backend, condition: str) -> None:
    """A trigger raises an error that no list has for a row of which this is true."""
    if backend.family == "postgres":
        backend.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
            f"IF {condition} THEN RAISE EXCEPTION 'not this one' USING ERRCODE = 'XX777'; END IF; RETURN NEW; END$$"
        )
        backend.run("CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    else:
        backend.run(
            f"CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW BEGIN IF {condition} THEN "
            "SIGNAL SQLSTATE '42501' SET MYSQL_ERRNO = 4999, MESSAGE_TEXT = 'not this one'; END IF; END"
        )


@pytest.mark.parametrize("unique", [(), ("d",)], ids=["", "unique"])
def test_a_row_that_a_trigger_refuses_by_an_error_of_its_own_is_bad_alone(backend: Backend, unique: Any) -> None:
    queue = backend.queue(sa_table(unique))
    refuse_inserts(backend, "NEW.d IN ('0000', '0007')")
    told: list[BadRow] = []
    assert queue.enqueue(jobs(MANY), on_bad=told.append, unique=unique) == MANY - 2
    assert [(bad.line, "not this one" in bad.reason) for bad in told] == [(1, True), (8, True)]
    with pytest.raises(BadRow, match=r"^row 2: .*not this one"):
        queue.enqueue([{"d": "good", "e": ""}, {"d": "0007", "e": ""}])


@pytest.mark.parametrize("count", [1, 3, MANY])
def test_what_refuses_every_row_is_about_none(backend: Backend, count: int) -> None:
    queue = backend.queue()
    refuse_inserts(backend, "NEW.d IS NOT NULL")
    told: list[BadRow] = []
    with pytest.raises(sa.exc.DBAPIError, match="not this one"):
        queue.enqueue(jobs(count), on_bad=told.append)
    assert not told
    assert not backend.rows()


# --- what is no fault of a row -----------------------------------------------------------------------------


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


def test_a_server_that_is_slow_for_a_moment_is_no_rows_fault(backend: Backend) -> None:
    if backend.family == "mysql":
        pytest.skip("this server limits no statement that writes")
    queue = backend.queue()
    told: list[BadRow] = []
    limit = "SET statement_timeout = 300" if backend.family == "postgres" else "SET max_statement_time = 0.3"
    rows = [{"id": n, **job} for n, job in enumerate(jobs(1_100), 1)]
    with backend.engine.connect() as other, backend.engine.connect() as mine:
        queue.enqueue(rows[-1], other)  # the second chunk waits for its key, when the first one is in
        mine.exec_driver_sql(limit).close()
        with pytest.raises(sa.exc.DBAPIError) as error:
            queue.enqueue(rows, mine, on_bad=told.append)
        assert backend.dialect.errors.transient_kind(error.value) == "statement timeout"
        assert not told
        mine.rollback()
        mine.invalidate()  # its setting must not stay in the pool
        other.rollback()
    assert queue.enqueue(rows) == len(rows)


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
        thread.join(120)
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

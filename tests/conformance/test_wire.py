"""What is sent past SQLAlchemy is what SQLAlchemy would send; and where anybody would notice, SQLAlchemy sends it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, job_table, make, tables_for
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.errors import BadArgument, SettleFailed
from claimjobs.options import Liveness
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import hold_of, still

JOBS = article_table()
NEW = 3
"""So many batches until the statements of a loop have been sent once, most of them."""
NO_HEARTBEAT = Liveness(lease=3600.0)
"""Nor any statement that is sent once in a heartbeat."""


@contextmanager
def asked() -> Iterator[list[Any]]:
    """What SQLAlchemy is asked to send in the block, by this thread: a heart beats beside it."""
    statements: list[Any] = []
    patch = pytest.MonkeyPatch()
    execute, me = sa.Connection.execute, threading.current_thread()

    def noted(connection: sa.Connection, statement: Any, *given: Any, **options: Any) -> Any:
        if threading.current_thread() is me:
            statements.append(statement)
        return execute(connection, statement, *given, **options)

    patch.setattr(sa.Connection, "execute", noted)
    try:
        yield statements
    finally:
        patch.undo()


def drained(queue: Queue, size: int = 1) -> list[str]:
    """What is in it, in the order of the claims."""
    return taken(queue.batches(size, drain=True))


def taken(batches: Iterable[Batch]) -> list[str]:
    """The jobs of these batches, in the order of the claims. All are done."""
    found: list[str] = []
    for batch in batches:
        with batch:
            found += names(batch)
            batch.done()
    return found


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_in_a_loop_sqlalchemy_is_asked_once_for_each_statement(backend: Backend, hold: Any) -> None:
    if not backend.has("lock of what is found"):
        pytest.skip(f"on {backend.name} keys go through SQLAlchemy to the client and back")
    queue = backend.queue(hold=hold, liveness=NO_HEARTBEAT)
    queue.enqueue(jobs(40))
    with asked() as statements:
        found = taken(islice(queue.batches(1), 30))  # an empty claim counts the candidates through SQLAlchemy
    assert [statement for statement in statements if statements.count(statement) > 1] == []
    assert found == [job["d"] for job in jobs(30)]


@pytest.mark.parametrize("event", ["before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute"])
def test_whoever_listens_hears_each_statement_from_then_on(backend: Backend, event: str) -> None:
    engine = backend.new_engine()
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(9))
    heard: list[None] = []
    batches = queue.batches(1, drain=True)
    for _ in range(NEW):
        with next(batches) as batch:
            batch.done()
    sa.event.listen(engine, event, lambda *_: heard.append(None))
    for batch in batches:
        before = len(heard)
        with batch:
            batch.done()
        assert len(heard) > before


def test_what_an_engine_logs_is_logged_for_each(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    queue = backend.queue(bind=backend.new_engine(echo=True))
    queue.enqueue(jobs(9))
    caplog.set_level(logging.INFO, "sqlalchemy.engine")
    for batch in queue.batches(1, drain=True):
        caplog.clear()
        with batch:
            batch.done()
        assert [message for message in caplog.messages if "jobs" in message]


def test_sqlalchemy_sends_what_an_engine_may_have_it_change(backend: Backend) -> None:
    queue = backend.queue(bind=backend.engine.execution_options(schema_translate_map={"another": "schema"}))
    queue.enqueue(jobs(6))
    for batch in queue.batches(1, drain=True):
        with asked() as statements, batch:
            batch.done()
        assert statements


@pytest.mark.parametrize("schema", [None, "a_tenant"])
def test_a_schema_that_the_engine_would_change_is_refused(backend: Backend, schema: str | None) -> None:
    table = job_table("translated", sa.MetaData(schema=schema))
    engine = backend.engine.execution_options(schema_translate_map={schema: "another"})
    for first_use in (backend.bare_queue(table, bind=engine).claim, lambda: make(engine, tables_for(table))):
        with pytest.raises(BadArgument, match=r"gives table '.*translated' another schema: name that one"):
            first_use()


def test_a_column_that_sqlalchemy_fills_with_each_update(backend: Backend) -> None:
    versions = count(1)
    table = job_table(
        "versioned",
        sa.MetaData(),
        sa.Column("d", sa.String(64)),
        sa.Column("version", sa.Integer, server_default="0", onupdate=lambda: next(versions)),
    )
    queue = backend.queue(table)
    queue.enqueue({"d": f"{number}"} for number in range(6))
    found = []
    for batch in queue.batches(1, drain=True):
        with batch:
            found += [row["version"] for row in backend.rows(table) if row["status"] == "claimed"]
            batch.done()
    assert found == sorted(found)
    assert len(set(found)) == 6


def test_a_value_that_is_asked_for_each_time(backend: Backend) -> None:
    wanted = [""]
    letter = sa.bindparam("letter", callable_=lambda: wanted[0], type_=sa.String)
    queue = backend.queue(where=JOBS.c.e == letter)
    queue.enqueue({"d": letter, "e": letter} for letter in "fedcba")
    for wanted[0] in "abcdef":
        with queue.claim() as batch:
            assert names(batch) == wanted
            batch.done()


@pytest.mark.parametrize("name", ["50% (off): it's", "a b"])
def test_a_predicate_on_a_column_with_an_odd_name(backend: Backend, name: str) -> None:
    table = job_table("oddly", sa.MetaData(), sa.Column("d", sa.String(64)), sa.Column(name, sa.String(64)))
    queue = backend.queue(table, where=table.c[name].in_(["1%", "%s"]) & (table.c[name] != "50%"))
    queue.enqueue({"d": f"{number}", name: "1%" if number % 2 else "50%"} for number in range(8))
    assert drained(queue) == list("1357")


def test_values_of_a_predicate_are_sent_as_its_types_have_them(backend: Backend) -> None:
    class Doubled(sa.TypeDecorator[int]):
        impl = sa.Integer
        cache_ok = True

        def process_bind_param(self, value: int | None, _dialect: sa.Dialect) -> int | None:
            return None if value is None else 2 * value

        def process_result_value(self, value: int | None, _dialect: sa.Dialect) -> int:
            return -1 if value is None else value // 2

    table = job_table("doubled", sa.MetaData(), sa.Column("d", sa.String(64)), sa.Column("number", Doubled))
    queue = backend.queue(table, where=(table.c.number >= 3) | table.c.number.is_(None))
    queue.enqueue({"d": f"{number}", "number": number or None} for number in range(7))
    found = []
    for batch in queue.batches(1, drain=True):
        with batch:
            found += [(job.d, job.number) for job in batch]
    assert found == [("0", -1), ("3", 3), ("4", 4), ("5", 5), ("6", 6)]


def test_the_cause_of_an_error_is_sqlalchemys(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(9))
    batches = queue.batches(1)
    for _ in range(NEW):
        with next(batches) as batch:
            batch.done()
    batch = next(batches)
    backend.run("ALTER TABLE jobs RENAME COLUMN owner_id TO gone")
    batch.done()
    with pytest.raises(SettleFailed) as raised:
        batch.settle()
    assert isinstance(raised.value.__cause__, sa.exc.DBAPIError)
    assert "jobs" in str(raised.value.__cause__.statement)
    backend.run("ALTER TABLE jobs RENAME COLUMN gone TO owner_id")


def plan_of_a_claim(queue: Queue) -> str:
    """How the server runs the claim that this session has prepared."""
    named = sa.text("SELECT name FROM pg_prepared_statements WHERE statement LIKE '%claimjobs_locked%'")

    def explained(connection: sa.Connection) -> str:
        name = connection.scalar(named)
        return str(connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE {name} ({queue.owner_id})").scalar_one())

    return hold_of(queue)._connector.transaction(explained)


@pytest.mark.requires("one statement")
def test_a_claim_is_planned_once_and_anew_when_there_may_be_more_rows(backend: Backend) -> None:
    """A plan that was made for a few rows reads and sorts all rows."""
    queue = still(backend.queue())
    backend.analyze()
    for _ in range(16):
        assert not queue.claim(1)
    assert "Seq Scan" in plan_of_a_claim(queue)
    queue.enqueue(jobs(5_000))
    assert "Seq Scan" in plan_of_a_claim(queue)
    hold_of(queue).read_pause()
    assert "Seq Scan" not in plan_of_a_claim(queue)


def test_a_program_that_claims_batches_of_ever_other_sizes_keeps_few_texts(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claimjobs.database.compiled_statement.MOST_TEXTS", 3)
    kept: list[int] = []
    text_for = CompiledStatement.text_for

    def counting(statement: CompiledStatement, *given: Any) -> Any:
        text = text_for(statement, *given)
        kept.append(len(statement._texts))
        return text

    monkeypatch.setattr(CompiledStatement, "text_for", counting)
    queue = backend.queue()
    queue.enqueue(jobs(60))
    for size in range(1, 9):
        with queue.claim(size) as batch:
            assert len(batch) == size
            batch.done()
    assert max(kept) <= 3

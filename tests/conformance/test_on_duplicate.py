"""`enqueue(unique=..., on_duplicate=...)`: what becomes of a job that is in the table already."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from claimjobs import Queue, job_table, make, side_car_tables
from claimjobs.errors import BadArgument, BadRow, ColumnMissing, SettingUnfit, UnfitTable
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.conformance.connections import answer_lost
from tests.conformance.owners import declare_dead
from tests.conformance.test_callers_transaction import async_urls

TABLE = job_table(
    "jobs",
    sa.MetaData(),
    sa.Column("d", sa.String(20), nullable=False),
    sa.Column("e", sa.String(20)),
    sa.Column("run_again", sa.Boolean, nullable=False, server_default=sa.false()),
    unique="d",
)
HOLDS = pytest.mark.parametrize(
    "kind",
    [{}, pytest.param({"claims": "batches"}, marks=pytest.mark.pair("the row of a claimed job says unclaimed"))],
    ids=["rows", "batches"],
)


def queue_of(backend: Backend, **options: Any) -> Queue:
    return backend.queue(TABLE, **options)


def event(queue: Queue, *names: str, how: Any = "again", **columns: Any) -> int:
    return queue.enqueue([{"d": name, **columns} for name in names], unique="d", on_duplicate=how)


def rows(backend: Backend) -> dict[str, Any]:
    return {row["d"]: row for row in backend.rows(TABLE)}


@HOLDS
def test_an_event_that_comes_while_its_job_is_in_hand_lets_it_run_once_more(
    backend: Backend, kind: dict[str, Any]
) -> None:
    queue = queue_of(backend, **kind)
    assert event(queue, "a", "b", "c") == 3
    with queue.claim(2) as batch:
        assert event(queue, "a", "c", "d") == 2, "one is marked, one waits already, one is new"
        batch.done()
    assert len(batch.lost) == 0
    assert set(rows(backend)) == {"a", "c", "d"}
    assert queue.report.done == 2
    handled = []
    for again in queue.batches(drain=True):
        with again:
            handled += [job.d for job in again]
    assert sorted(handled) == ["a", "c", "d"], "once more, and not for ever"
    assert backend.rows(TABLE) == []


def test_the_transaction_of_an_event_may_have_another_driver_than_the_queue(backend: Backend) -> None:
    queue, refused = queue_of(backend), list[BadRow]()

    async def event_by(url: sa.URL, how: Any, *names: str, **columns: Any) -> int:
        given = [{"d": name, **columns} for name in names]
        async with AsyncSession(create_async_engine(url, poolclass=sa.NullPool)) as session, session.begin():
            return await queue.aenqueue(given, session, unique="d", on_duplicate=how, on_bad=refused.append)

    for url in async_urls(backend):
        assert event(queue, "a", "b") == 2
        with queue.claim(1) as batch:
            assert asyncio.run(event_by(url, "again", "a", "b", "c")) == 2, "one is marked, one is new"
            batch.done()
        assert asyncio.run(event_by(url, "replace", "a", "b", e="new")) == 2
        assert asyncio.run(event_by(url, "postpone", "c", run_at=queue.now() + timedelta(days=1))) == 1
        assert {name: row["e"] for name, row in rows(backend).items()} == {"a": "new", "b": "new", "c": None}
        assert [job.d for job in queue.claim()] == ["a", "b"]
        queue.close()
        backend.run("DELETE FROM jobs")
    assert not refused


@HOLDS
def test_an_event_is_not_lost_with_the_answer_to_the_settle_of_its_job(backend: Backend, kind: dict[str, Any]) -> None:
    """The first try has renewed the job. The second one must not find it in a claim that nobody got."""
    engine = backend.new_engine()
    queue = queue_of(backend, bind=engine, **kind)
    event(queue, "a", "b")
    with closing(iter(queue.batches(2))) as loop:
        batch = next(loop)
        event(queue, "a")
        with answer_lost(engine, backend.dialect, True, lambda: None), batch:
            batch.done()
    assert batch.lost == ()
    assert set(rows(backend)) == {"a"}


@HOLDS
def test_a_job_that_dies_or_is_done_runs_again_with_all_its_attempts(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, on_done="keep", **kind)
    event(queue, "a", "b", "c", "d")
    with queue.claim() as batch:
        assert event(queue, "a", "b") == 2
        batch.done(*batch.jobs[::2])
        for job in batch.jobs[1::2]:
            batch.fail(job, "wrong", retry=False)
    found = rows(backend)
    assert [found[name]["status"] for name in "abcd"] == ["unclaimed", "unclaimed", "done", "dead"]
    assert (found["b"]["attempts"], bool(found["b"]["run_again"]), found["b"]["last_error"]) == (0, False, None)
    assert event(queue, "c", "d") == 2
    found = rows(backend)
    assert {(row["status"], row["attempts"], row["owner_id"]) for row in found.values()} == {("unclaimed", 0, None)}
    with queue.claim() as batch:
        assert len(batch) == 4


@HOLDS
def test_an_event_in_a_transaction_with_an_older_snapshot_is_not_lost(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, **kind)
    event(queue, "a")
    with backend.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(sa.select(TABLE)).all()
        batch = queue.claim()
        try:
            queue.enqueue({"d": "a"}, connection, unique="d", on_duplicate="again")
            connection.commit()
        except sa.exc.OperationalError:  # Postgres could not serialize: the caller is told, and begins again
            connection.rollback()
            event(queue, "a")
    batch.done()
    batch.settle()
    assert [row["status"] for row in backend.rows(TABLE)] == ["unclaimed"]


@pytest.mark.parametrize("how", ["replace", "postpone"])
def test_a_job_that_was_claimed_after_the_callers_snapshot_is_not_changed(database: Backend, how: str) -> None:
    """With a claim per batch only its claim row says that, which the snapshot does not show."""
    queue = queue_of(database, claims="batches")
    event(queue, "a", how="skip", e="old")
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(sa.select(TABLE)).all()
        with queue.claim() as batch:
            row = {"d": "a", "e": "new", "run_at": queue.now()}
            with pytest.raises(SettingUnfit, match="set that level, or give no connection"):
                queue.enqueue(row, connection, unique="d", on_duplicate=how)  # type: ignore[arg-type]
            connection.rollback()
            assert rows(database)["a"]["e"] == "old"
            batch.release()


def test_a_dead_job_that_is_retried_runs_once(database: Backend) -> None:
    queue = queue_of(database)
    event(queue, "a")
    with queue.claim() as batch:
        event(queue, "a")
        queue.cancel([batch[0].key])
    assert queue.jobs.retry() == 1
    with queue.claim() as batch:
        batch.done()
    assert not rows(database)


def test_a_retry_counts_as_the_next_run(backend: Backend) -> None:
    queue = queue_of(backend)
    event(queue, "a")
    with queue.claim() as batch:
        event(queue, "a")
        batch.fail(batch[0], "wrong", retry_in=0)
    with queue.claim() as batch:
        assert (batch[0].d, batch[0].attempts) == ("a", 1)
        batch.done()
    assert backend.rows(TABLE) == []


def test_the_mark_outlives_its_owner(backend: Backend) -> None:
    queue, other = queue_of(backend), backend.queue(TABLE)
    event(queue, "a")
    batch = queue.claim()
    event(other, "a")
    declare_dead(backend, queue.owner_id)
    other.reclaim()
    batch.done()
    batch.settle()
    assert len(batch.lost) == 1
    assert [row["status"] for row in backend.rows(TABLE)] == ["unclaimed"]


def test_a_chosen_end_is_not_asked_for_a_job_that_runs_again(backend: Backend) -> None:
    asked = list[str]()

    def choose(_: sa.Connection, jobs: Any) -> Any:
        asked.extend(job.d for job in jobs)
        return "delete"

    queue = queue_of(backend, on_done=choose)
    event(queue, "a", "b")
    with queue.claim() as batch:
        event(queue, "a")
        batch.done()
    assert asked == ["b"]
    assert list(rows(backend)) == ["a"]


@HOLDS
def test_a_job_that_waits_is_replaced_or_postponed_and_no_other(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, on_done="keep", **kind)
    event(queue, "a", "b", "c", e="old")
    with queue.claim(2) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "wrong", retry_in=3_600)
    held = queue.claim(1)
    assert event(queue, "a", "b", "c", "d", how="replace", e="new") == 2, "b waits, and d is new"
    found = rows(backend)
    assert [found[name]["e"] for name in "abcd"] == ["old", "new", "old", "new"]
    assert (found["b"]["attempts"], found["b"]["last_error"]) == (0, None)
    assert found["b"]["run_at"] <= queue.now()
    later = queue.now() + timedelta(hours=2)
    assert event(queue, "a", "b", "c", "d", how="postpone", run_at=later) == 2
    held.done()
    held.settle()
    assert [found[name]["e"] for name in "abcd"] == ["old", "new", "old", "new"]
    assert len(queue.claim()) == 0


def test_of_several_rows_with_one_key_the_last_replaces(backend: Backend) -> None:
    queue = queue_of(backend)
    given = [{"d": "a", "e": "1"}, {"d": "a", "e": "2"}, {"d": "b"}, {"d": "a", "e": "3"}]
    assert queue.enqueue(given, unique="d", on_duplicate="replace") == 3
    assert {name: row["e"] for name, row in rows(backend).items()} == {"a": "3", "b": None}


def test_many_are_changed_at_once(backend: Backend) -> None:
    queue = queue_of(backend)
    names = [f"{number}" for number in range(2_500)]
    assert event(queue, *names[::2]) == 1_250
    assert event(queue, *names, how="replace", e="new") == 2_500
    assert {row["e"] for row in backend.rows(TABLE)} == {"new"}


def test_a_row_whose_key_is_null_is_a_new_job_each_time(backend: Backend) -> None:
    notes = job_table("notes", sa.MetaData(), sa.Column("d", sa.String(20)), sa.Column("e", sa.String(20)), unique="d")
    queue = backend.queue(notes)
    queue.enqueue({"d": "a", "e": "old"})
    given: list[dict[str, Any]] = [{"d": None, "e": "first"}, {"d": "a", "e": "new"}, {"d": None, "e": "second"}]
    assert queue.enqueue(given, unique="d", on_duplicate="replace") == 3
    assert sorted(row["e"] for row in backend.rows(notes)) == ["first", "new", "second"]


def test_an_index_in_which_null_equals_null_is_refused(backend: Backend) -> None:
    """No job is found by NULL: the row would be left out, and the job not changed."""
    backend.requires("equal nulls")
    once = sa.Index("once", "d", unique=True, postgresql_nulls_not_distinct=True)
    queue = backend.queue(job_table("jobs", sa.MetaData(), sa.Column("d", sa.String(20)), once))
    given: Any = {"unique": "d"}
    assert [queue.enqueue([{"d": None}] * 2, **given), queue.enqueue({"d": None}, **given)] == [1, 0]
    with pytest.raises(UnfitTable, match=r"NULLS NOT DISTINCT.*: make these columns NOT NULL"):
        queue.enqueue({"d": None}, on_duplicate="replace", **given)


def test_many_rows_are_found_as_the_database_compares_them(backend: Backend) -> None:
    """It pads what is shorter. Python sees two texts."""
    codes = job_table("codes", sa.MetaData(), sa.Column("d", sa.CHAR(6)), sa.Column("e", sa.String(20)), unique="d")
    queue, bad = backend.queue(codes), list[BadRow]()
    queue.enqueue({"d": name, "e": "old"} for name in "abc")
    given = [{"d": name, "e": f"new {name}"} for name in "abcd"]
    assert queue.enqueue(given, unique="d", on_duplicate="replace", on_bad=bad.append) == 4
    assert bad == []
    assert {row["d"].strip(): row["e"] for row in backend.rows(codes)} == {name: f"new {name}" for name in "abcd"}


def test_it_is_part_of_the_callers_transaction(backend: Backend) -> None:
    queue = queue_of(backend)
    event(queue, "a", e="old")
    with backend.engine.connect() as connection:
        queue.enqueue({"d": "a", "e": "new"}, connection, unique="d", on_duplicate="replace")
        connection.rollback()
        assert rows(backend)["a"]["e"] == "old"
        queue.enqueue({"d": "a", "e": "new"}, connection, unique="d", on_duplicate="replace")
        connection.commit()
    assert rows(backend)["a"]["e"] == "new"


def test_a_replacement_may_have_nothing_to_write(backend: Backend) -> None:
    status = sa.Column("status", sa.String(16), nullable=False, server_default="unclaimed")
    state = status, sa.Column("owner_id", sa.Integer)
    number = sa.Column("id", sa.Integer, primary_key=True)
    bare = sa.Table("bare", sa.MetaData(), number, sa.Column("d", sa.String(20), unique=True), *state)
    backend.make(bare)
    queue = backend.queue(bare, on_done="delete")
    assert event(queue, "a", "b", how="replace") == 2
    before = backend.rows(bare)
    assert (event(queue, "a", how="replace"), event(queue, "a", "b", how="replace")) == (1, 2)
    assert backend.rows(bare) == before, "no column of them was given another value"


@pytest.mark.parametrize("how", ["again", "replace"])
def test_an_open_transaction_is_waited_for(backend: Backend, how: str) -> None:
    queue = queue_of(backend, hold="transaction")
    event(queue, "a", how=how)
    with queue.claim() as batch:
        thread = threading.Thread(target=lambda: event(queue, "a", how=how))
        thread.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "it waits for the handler's transaction")
        batch.done()
    thread.join(120)
    assert [row["status"] for row in backend.rows(TABLE)] == ["unclaimed"], "it is a new one"


@pytest.mark.parametrize(("how", "left"), [("again", ["a", "b"]), ("replace", ["b"]), ("postpone", ["b"])])
def test_a_handler_that_enqueues_its_own_job_in_its_transaction(backend: Backend, how: str, left: list[str]) -> None:
    """The row of its job says that it waits."""
    queue, other = queue_of(backend, hold="transaction"), backend.bare_queue(TABLE)
    event(queue, "a", "b", e="old")
    given = [{"d": name, "e": "new", "run_at": queue.now()} for name in "ab"]
    changed = {"again": 1, "replace": 1, "postpone": 1}[how]
    for enqueue in (queue.enqueue, other.enqueue):
        with queue.claim(1, "d = 'a'") as batch:
            assert enqueue(given, batch.connection, unique="d", on_duplicate=how) == changed  # type: ignore[arg-type]
            batch.done()
        assert list(rows(backend)) == left
        event(queue, "a", how="skip", e="old")
    assert rows(backend)["b"]["e"] == ("new" if how == "replace" else "old")


def test_a_mark_is_undone_with_what_its_handler_wrote(backend: Backend) -> None:
    queue = queue_of(backend, hold="transaction")
    event(queue, "a")
    with queue.claim() as batch:
        for job in batch:
            assert queue.enqueue({"d": "a"}, batch.connection, unique="d", on_duplicate="again") == 1
            batch.fail(job, "wrong", retry_in=0)
    assert not rows(backend)["a"]["run_again"]
    with queue.claim() as batch:
        batch.done()
    assert backend.rows(TABLE) == []


def test_a_row_that_may_not_be_written_is_bad_alone(backend: Backend) -> None:
    queue, bad = queue_of(backend), list[BadRow]()
    event(queue, "a", "b", "c", e="old")
    backend.run("ALTER TABLE jobs ADD CONSTRAINT never CHECK (d <> 'b' OR e <> 'new')")
    given = [{"d": name, "e": "new"} for name in "abcd"]
    assert queue.enqueue(given, unique="d", on_duplicate="replace", on_bad=bad.append) == 3
    assert [(error.line, "never" in str(error)) for error in bad] == [(2, True)]
    assert [rows(backend)[name]["e"] for name in "abcd"] == ["new", "old", "new", "new"]


def test_what_cannot_be_done_is_refused_before_anything_is_written(anywhere: Backend) -> None:
    queue = queue_of(anywhere)
    for how, unique in (("again", ()), ("never", "d")):
        with pytest.raises(BadArgument, match=f"on_duplicate='{how}'.*choose one of skip, replace, postpone, again"):
            queue.enqueue({"d": "a"}, unique=unique, on_duplicate=how)  # type: ignore[arg-type]
    with pytest.raises(BadRow, match="'run_at' is missing"):
        event(queue, "a", how="postpone")
    with pytest.raises(BadRow, match="only claimjobs writes it"):
        event(queue, "a", run_again=True)
    assert anywhere.rows(TABLE) == []


def test_a_table_without_the_column_says_how_to_add_it(anywhere: Backend) -> None:
    plain = job_table("plain", sa.MetaData(), sa.Column("d", sa.String(20)), unique="d")
    queue = anywhere.queue(plain)
    step = "ALTER TABLE plain ADD COLUMN run_again BOOLEAN NOT NULL DEFAULT FALSE"
    with pytest.raises(ColumnMissing, match=f"{step} .*; then replace all consumers, last the producers$"):
        queue.enqueue({"d": "a"}, unique="d", on_duplicate="again")
    anywhere.run(step)
    again = anywhere.bare_queue("plain")
    assert event(again, "a") == 1


def test_a_side_car_keeps_the_states_elsewhere(anywhere: Backend) -> None:
    anywhere.make(article_table())
    make(anywhere.engine, side_car_tables(anywhere.engine, "jobs"))
    anywhere.run("CREATE UNIQUE INDEX once ON jobs (d)")
    with pytest.raises(BadArgument, match="kept in a side-car: leave out"):
        event(anywhere.bare_queue("jobs", side_car=True), "a", e="x")

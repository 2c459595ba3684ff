"""What becomes of done jobs: deleted, kept, or what a function of the user's says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Job, job_table
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.errors import BadArgument, DoneUndecided
from claimjobs.log_events import COMMENTS_LOST
from claimjobs.options import HOLDS
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.jobs import jobs, names

ARCHIVE = sa.Table(
    "archive", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("d", sa.String(64))
)


@pytest.fixture
def archive(backend: Backend) -> None:
    ARCHIVE.create(backend.engine)


def into_archive(connection: sa.Connection, done: Sequence[Job]) -> None:
    connection.execute(sa.insert(ARCHIVE), [{"id": job.id, "d": job.d} for job in done])


def archived(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows(ARCHIVE)]


@pytest.mark.usefixtures("archive")
def test_done_jobs_are_archived_and_deleted_in_one_commit(backend: Backend) -> None:
    queue = backend.queue(on_done=into_archive)
    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        batch.done(*batch.jobs[:2])
        batch.fail(batch[2], "broken", retry_in=60)
    assert archived(backend) == ["0000", "0001"]
    assert [row["d"] for row in backend.rows()] == ["0002", "0003"]


@pytest.mark.usefixtures("archive")
def test_jobs_that_are_lost_are_not_archived(backend: Backend) -> None:
    queue = backend.queue(on_done=into_archive)
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        backend.run("UPDATE jobs SET owner_id = 1 WHERE d = '0001'")
        batch.done()
    assert names(batch.lost) == ["0001"]
    assert archived(backend) == ["0000", "0002"]
    assert [row["d"] for row in backend.rows()] == ["0001"]


def test_a_function_may_keep_them(backend: Backend) -> None:
    seen: list[str] = []

    def keep(connection: sa.Connection, done: Sequence[Job]) -> Any:
        assert connection.in_transaction()
        seen.extend(names(done))
        return "keep"

    queue = backend.queue(on_done=keep)
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        batch.done(batch[1])
    assert seen == ["0001"]
    assert [row["status"] for row in backend.rows()] == ["unclaimed", "done"]


@pytest.mark.usefixtures("archive")
def test_a_function_that_fails_leaves_everything_as_it_was(backend: Backend) -> None:
    """The batch is not settled, and can be settled again."""
    calls: list[int] = []

    def fails_once(connection: sa.Connection, done: Sequence[Job]) -> None:
        into_archive(connection, done)
        calls.append(len(done))
        if len(calls) == 1:
            raise ZeroDivisionError

    queue = backend.queue(on_done=fails_once)
    queue.enqueue(jobs(2))
    batch = queue.claim()
    batch.done()
    with pytest.raises(ZeroDivisionError):
        batch.settle()
    assert (archived(backend), len(backend.rows()), batch.settled) == ([], 2, False)
    batch.settle()
    assert (archived(backend), backend.rows()) == (["0000", "0001"], [])


async def archives_later(connection: sa.Connection, done: Sequence[Job]) -> None:
    """A call runs nothing of it."""


def is_generator(connection: sa.Connection, done: Sequence[Job]) -> Any:
    yield


@pytest.mark.parametrize("function", [archives_later, is_generator])
@pytest.mark.parametrize("name", ["on_done", "where"])
def test_a_function_that_runs_nothing_when_called_is_refused(backend: Backend, name: str, function: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is an? .* of which a call runs nothing: give a plain function"):
        backend.queue(**{name: function})


def test_an_on_hang_that_runs_nothing_when_called_is_refused(anywhere: Backend) -> None:
    queue = anywhere.queue()
    with pytest.raises(ValueError, match="on_hang is an async def function"):
        queue.on_hang = archives_later  # type: ignore[assignment]


def calls_it_later(*words: Any) -> Any:
    return archives_later(*words)


@pytest.mark.parametrize("on_done", [lambda *_: "kept", lambda *_: True, calls_it_later])
def test_an_answer_that_says_nothing_deletes_no_job(backend: Backend, on_done: Any) -> None:
    queue = backend.queue(on_done=on_done)
    queue.enqueue(jobs(2))
    with pytest.raises(BadArgument, match="return 'delete', 'keep' or None"), queue.claim() as batch:
        batch.done()
    assert len(backend.rows()) == 2


def test_a_word_that_means_nothing_is_refused(backend: Backend) -> None:
    with pytest.raises(ValueError, match="on_done='kept': give one of 'delete', 'keep'"):
        backend.queue(on_done="kept")


# --- a table that claimjobs did not make -----------------------------------------------------------------------------


def foreign(backend: Backend, *columns: sa.Column[Any], rows: int = 3) -> sa.Table:
    """A table of the user's own, with rows in it; the table of owners is there."""
    key = sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)
    table = sa.Table("tasks", sa.MetaData(), key, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")
    table.create(backend.engine)
    backend.make()
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(table), [{"id": n} for n in range(1, rows + 1)])
    return table


def owner() -> sa.Column[Any]:
    return sa.Column("owner_id", sa.Integer)


@pytest.mark.parametrize("hold", HOLDS)
def test_rows_of_a_foreign_table_are_not_deleted_unless_that_is_said(backend: Backend, hold: Any) -> None:
    foreign(backend, owner())
    queue = backend.bare_queue("tasks", columns=Columns(status=None), hold=hold)
    for use in (queue.check, queue.claim, lambda: next(queue.batches(drain=True))):
        with pytest.raises(DoneUndecided, match=r"did not make table 'tasks'.* on_done='delete' .*'keep', "):
            use()
    assert [row["owner_id"] for row in backend.rows("tasks")] == [None] * 3
    said = backend.bare_queue("tasks", columns=Columns(status=None), hold=hold, on_done="delete")
    with said.claim(2) as batch:
        batch.done()
    assert [row["id"] for row in backend.rows("tasks")] == [3]


def test_who_only_enqueues_or_reclaims_need_not_say_it(backend: Backend) -> None:
    foreign(backend, owner())
    queue = backend.bare_queue("tasks", columns=Columns(status=None))
    assert queue.enqueue([{"id": 4}]) == 1
    backend.run("UPDATE tasks SET owner_id = 10000001 WHERE id < 3")
    assert queue.reclaim() == 2
    assert queue.stats().unclaimed == 4


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("named", ["by their own names", "by a map"])
def test_done_rows_of_a_foreign_table_are_kept_where_they_can_be(backend: Backend, hold: Any, named: str) -> None:
    map_ = Columns(status="state", states={"unclaimed": "new", "claimed": "at work", "done": "over"})
    new = "unclaimed" if named == "by their own names" else "new"
    foreign(
        backend,
        owner(),
        sa.Column("status" if named == "by their own names" else "state", sa.String(20), server_default=new),
    )
    columns = None if named == "by their own names" else map_
    queue = backend.bare_queue("tasks", columns=columns, hold=hold)
    with queue.claim(2) as batch:
        batch.done()
    assert (queue.stats().unclaimed, queue.stats().done) == (1, 2)
    assert (
        queue.done_jobs
        == f"Done jobs of table 'tasks' are kept with {'status' if columns is None else 'state'} "
        + ("'done'." if columns is None else "'over'.")
    )


@pytest.mark.parametrize("hold", HOLDS)
def test_a_boolean_status_of_a_foreign_table_is_not_written_unless_that_is_said(backend: Backend, hold: Any) -> None:
    foreign(backend, owner(), sa.Column("status", sa.Boolean, nullable=False, server_default=sa.true()))
    columns = Columns(owner_id="owner_id")
    with pytest.raises(DoneUndecided), backend.bare_queue("tasks", columns=columns, hold=hold).claim() as batch:
        batch.done()
    assert [bool(row["status"]) for row in backend.rows("tasks")] == [True] * 3
    states = Columns(owner_id="owner_id", states={"unclaimed": True, "claimed": False, "done": False})
    said = backend.bare_queue("tasks", columns=columns, hold=hold, on_done="keep")
    for number, queue in enumerate((said, backend.bare_queue("tasks", columns=states, hold=hold)), start=1):
        with queue.claim(1) as batch:
            batch.done()
        assert sum(not row["status"] for row in backend.rows("tasks")) == number


@pytest.mark.parametrize("locking", [None, AdvisoryLocks()], ids=["rows", "advisory"])
def test_a_status_that_the_handler_writes_stays(backend: Backend, locking: Any) -> None:
    foreign(backend, sa.Column("status", sa.String(20), server_default="unclaimed"))
    queue = backend.bare_queue("tasks", hold="transaction", locking=locking, on_done="keep")
    with queue.claim() as batch:
        for job in batch:
            if job["id"] == 2:
                batch.connection.execute(sa.text("UPDATE tasks SET status = 'rejected' WHERE id = 2"))
    assert [row["status"] for row in backend.rows("tasks")] == ["done", "rejected", "done"]


def test_a_table_that_claimjobs_made_loses_its_done_rows(backend: Backend) -> None:
    assert backend.queue().done_jobs == "Done jobs are deleted from table 'jobs'."
    assert backend.queue(on_done="keep").done_jobs == "Done jobs of table 'jobs' are kept with status 'done'."


@pytest.mark.each_value("tables", "a dump of one table is restored beside owners that were made anew")
@pytest.mark.parametrize(
    "tables", [["jobs"], ["jobs", "claimjobs_owners", "claimjobs_queues", "claimjobs_batches"]], ids=["jobs", "all"]
)
def test_the_loss_of_all_comments_is_told_and_its_next_step_helps(
    backend: Backend, caplog: pytest.LogCaptureFixture, tables: list[str]
) -> None:
    """A dump without comments: nothing says any more that claimjobs made the table."""
    backend.make()
    for table in tables:
        to = f"COMMENT ON TABLE {table} IS NULL" if backend.family == "postgres" else f"ALTER TABLE {table} COMMENT ''"
        backend.run(to)
    queue = backend.bare_queue()
    assert queue.done_jobs == "Done jobs of table 'jobs' are kept with status 'done'."
    [record] = [record for record in caplog.records if record.__dict__.get("event") == COMMENTS_LOST]
    fix = record.__dict__["fix"]
    assert (record.levelname, fix in record.getMessage()) == ("WARNING", True)
    assert fix in claimjobs("status", "--url", backend.url).out
    backend.run(fix)
    again = backend.bare_queue()
    assert again.done_jobs == "Done jobs are deleted from table 'jobs'."
    assert fix not in claimjobs("status", "--url", backend.url).out


def test_a_users_table_with_all_columns_is_not_taken_for_one_that_lost_its_comment(backend: Backend) -> None:
    """Its owner has added them, as `setup-tables` prints them: with the states as texts."""
    table = job_table("tasks", sa.MetaData())
    table.c.status.type, table.comment = sa.String(16), None
    backend.make(table)
    backend.run("COMMENT ON TABLE tasks IS NULL" if backend.family == "postgres" else "ALTER TABLE tasks COMMENT ''")
    queue = backend.bare_queue("tasks")
    assert queue.done_jobs == "Done jobs of table 'tasks' are kept with status 'done'."
    assert "comment" not in claimjobs("status", "--url", backend.url, "--table", "tasks").out


def test_a_function_that_says_nothing_deletes_no_row_of_a_foreign_table(backend: Backend) -> None:
    foreign(backend, owner())
    queue = backend.bare_queue("tasks", columns=Columns(status=None), hold="transaction", on_done=lambda *_: None)
    with pytest.raises(DoneUndecided), queue.claim() as batch:
        batch.done()
    assert len(backend.rows("tasks")) == 3


def test_what_a_function_without_a_default_may_choose_is_explained(backend: Backend) -> None:
    foreign(backend, owner())
    queue = backend.bare_queue("tasks", columns=Columns(status=None), hold="transaction", on_done=lambda *_: "delete")
    explained = queue.explain()
    [settle] = [phase.sql for phase in explained.phases if phase.name == "settle"]
    assert settle.startswith("DELETE FROM")

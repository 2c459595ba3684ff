"""Claims that an open transaction holds: what is written through it and the completion are one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Session

from claimjobs import Batch, Columns, Queue
from claimjobs.errors import BatchRolledBack, BatchSettled, ColumnMissing, NoOpenTransaction, StateMissing, TooLate
from claimjobs.table.definitions import OWNER_TABLE, article_table
from claimjobs.workers.consumer import consume
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names

JOBS = article_table()
EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("name", sa.String(20)), mysql_engine="InnoDB")


@pytest.fixture
def queue(backend: Backend) -> Queue:
    """Jobs are held by transactions; their effects go into a table without any constraint."""
    EFFECTS.create(backend.engine)
    return backend.queue(JOBS, hold="transaction")


def write(batch: Batch, name: str) -> None:
    batch.connection.execute(sa.insert(EFFECTS), {"name": name})


def effects(backend: Backend) -> list[str]:
    with backend.engine.connect() as connection:
        return sorted(connection.scalars(sa.select(EFFECTS.c.name)))


def left(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


def raise_at(batch: Batch, name: str, column: str = "d") -> None:
    """Work through a batch up to this job."""
    with batch:
        for job in batch:
            write(batch, job[column])
            if job[column] == name:
                raise ZeroDivisionError


def raise_after_all(batch: Batch, error: BaseException) -> None:
    """Work on a batch as a whole, say that its first job is done, and go wrong."""
    with batch:
        batch.connection.execute(sa.insert(EFFECTS), [{"name": job.d} for job in batch.jobs])
        batch.done(batch[0])
        raise error


# --- holding -----------------------------------------------------------------------------------------------


def test_the_locks_are_the_claim(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(5))
    with queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        assert backend.locked() == 2
        assert {row["status"] for row in backend.rows()} == {"unclaimed"}
        other = backend.queue(JOBS, hold="transaction")
        with other.claim(10) as rest:
            assert names(rest) == ["0002", "0003", "0004"]
            assert backend.locked() == 5
    assert backend.locked() == 0


def test_nobody_is_registered(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        assert queue.owner_id == 0
        assert backend.rows(OWNER_TABLE) == []
        batch.done()


def test_a_consumer_by_lease_and_one_by_transaction_share_a_table(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(4))
    leased = backend.queue(JOBS)
    with leased.claim(2) as mine, queue.claim(4) as yours:
        assert names(mine) + names(yours) == ["0000", "0001", "0002", "0003"]
        mine.done()
        yours.done()
    assert left(backend) == []


def test_several_batches_are_open_at_once(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(4))
    first, second = queue.claim(2), queue.claim(2)
    second.done()
    second.settle()
    assert left(backend) == ["0000", "0001"]
    first.done()
    first.settle()
    assert left(backend) == []


def test_an_empty_claim_leaves_no_transaction_open(backend: Backend, queue: Queue) -> None:
    assert not queue.claim()
    queue.enqueue(jobs(1))
    assert names(queue.claim()) == ["0000"]


def test_closing_the_queue_frees_what_is_held(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    batch = queue.claim()
    write(batch, "never")
    queue.close()
    assert backend.locked() == 0
    assert (left(backend), effects(backend)) == (["0000", "0001", "0002"], [])


def test_the_session_is_as_the_engine_makes_it(backend: Backend) -> None:
    """The handler's statements run in it: no time limit of ours."""
    queue = backend.queue(JOBS, hold="transaction")
    queue.enqueue(jobs(1))
    setting = "SHOW lock_timeout" if backend.family == "postgres" else "SELECT @@innodb_lock_wait_timeout"
    with backend.engine.connect() as connection:
        usual = connection.scalar(sa.text(setting))
    with queue.claim() as batch:
        assert batch.connection.scalar(sa.text(setting)) == usual


# --- one transaction ---------------------------------------------------------------------------------------


def test_effects_and_completion_commit_together(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
        assert (len(left(backend)), effects(backend)) == (3, [])
    assert (left(backend), effects(backend)) == ([], ["0000", "0001", "0002"])
    assert queue.report.done == 3


def test_a_whole_batch_too(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        batch.connection.execute(sa.insert(EFFECTS), [{"name": job.d} for job in batch.jobs])
        batch.done()
    assert (left(backend), effects(backend)) == ([], ["0000", "0001", "0002"])


def test_done_jobs_can_be_kept(backend: Backend) -> None:
    queue = backend.queue(JOBS, hold="transaction", on_done="keep")
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        batch.done()
    assert [row["status"] for row in backend.rows()] == ["done", "done"]


def test_a_failing_job_is_undone_alone(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
            if job.d == "0001":
                batch.fail(job, "broken", retry_in=60)
    assert effects(backend) == ["0000", "0002"]
    [row] = backend.rows()
    assert (row["d"], row["attempts"], row["last_error"], row["status"]) == ("0001", 1, "broken", "unclaimed")


def test_a_connection_known_by_another_name_is_undone_too(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        connection = batch.connection
        for job in batch:
            connection.execute(sa.insert(EFFECTS), {"name": job.d})
            if job.d == "0001":
                batch.release(job)
    assert (effects(backend), left(backend)) == (["0000", "0002"], ["0001"])


def test_what_is_written_after_a_failure_stays(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
            if job.d == "0000":
                batch.fail(job, "broken", retry=False)
                write(batch, "told")
    assert effects(backend) == ["0001", "told"]
    assert queue.stats().dead == 1


def test_a_statement_that_the_database_refuses_spoils_its_job_alone(backend: Backend, queue: Queue) -> None:
    """Postgres runs nothing more in a transaction with an error, up to the savepoint."""
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
            if job.d == "0001":
                try:
                    batch.connection.execute(sa.text("INSERT INTO no_such_table VALUES (1)"))
                except sa.exc.DBAPIError as error:
                    batch.fail(job, error, retry_in=60)
    assert (effects(backend), left(backend)) == (["0000", "0002"], ["0001"])


def test_an_exception_undoes_the_job_in_work_and_commits_those_before_it(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(4))
    with pytest.raises(ZeroDivisionError):
        raise_at(queue.claim(), "0002")
    assert (effects(backend), left(backend)) == (["0000", "0001"], ["0002", "0003"])
    assert [row["suspect"] for row in backend.rows()] == [2, 2]


def test_a_break_undoes_the_job_in_work(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
            if job.d == "0001":
                break
    assert (effects(backend), left(backend)) == (["0000"], ["0001", "0002"])


def test_an_exception_outside_of_any_jobs_work_undoes_all(backend: Backend, queue: Queue) -> None:
    """Nobody knows whose effects they were."""
    queue.enqueue(jobs(3))
    with pytest.raises(ZeroDivisionError):
        raise_after_all(queue.claim(), ZeroDivisionError())
    assert (effects(backend), len(left(backend))) == ([], 3)
    assert {row["suspect"] for row in backend.rows()} == {3}


def test_nothing_is_written_for_jobs_of_which_nothing_was_said(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        write(batch, "half done")
    assert (effects(backend), len(left(backend))) == ([], 2)


class TakenAway(BaseException):
    """What no `except Exception` stops."""


def test_a_batch_that_is_taken_back_has_no_effects(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with pytest.raises(TakenAway):
        raise_after_all(queue.claim(), TakenAway())
    assert (effects(backend), len(left(backend))) == ([], 2)


def test_an_orm_session_on_the_connection(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            with Session(batch.connection, join_transaction_mode="create_savepoint") as session:
                session.execute(sa.insert(EFFECTS), {"name": job.d})
                session.commit()
            if job.d == "0001":
                batch.fail(job, "no", retry_in=60)
    assert (effects(backend), left(backend)) == (["0000", "0002"], ["0001"])


# --- trouble -----------------------------------------------------------------------------------------------


def test_a_session_that_ends_takes_everything_back(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    batch = queue.claim()
    for job in batch:
        write(batch, job.d)
    backend.end_sessions()
    with pytest.raises(BatchRolledBack, match="connection lost"):
        batch.settle()
    assert (effects(backend), len(left(backend))) == ([], 3)
    assert queue.report.transients == {"connection lost": 1}
    with queue.claim() as again:
        assert len(again) == 3
        again.done()
    assert left(backend) == []


@pytest.mark.parametrize("in_work", [True, False], ids=["in a job's work", "outside of it"])
def test_what_is_written_after_the_server_has_rolled_back_is_not_committed(
    backend: Backend, queue: Queue, in_work: bool
) -> None:
    """As after a deadlock on some servers, told to a handler that does not listen: its locks are gone, too."""
    queue.enqueue(jobs(2))
    batch = queue.claim()
    if in_work:
        next(iter(batch))
    batch.connection.exec_driver_sql("ROLLBACK").close()
    write(batch, "late")
    assert len(queue.claim()) == 2
    batch.done()
    with pytest.raises(BatchRolledBack):
        batch.settle()
    assert (effects(backend), left(backend)) == ([], ["0000", "0001"])
    queue.close()


def test_a_job_that_fails_after_the_connection_was_lost_takes_the_batch_with_it(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    batch = queue.claim()
    job = next(iter(batch))
    write(batch, job.d)
    backend.end_sessions()
    with pytest.raises(sa.exc.DBAPIError):
        write(batch, job.d)
    batch.fail(job, "no connection")
    with pytest.raises(BatchRolledBack, match="connection lost"):
        assert batch.connection
    with pytest.raises(BatchRolledBack):
        batch.settle()
    assert batch.settled
    assert [row["attempts"] for row in backend.rows()] == [0, 0, 0]
    assert effects(backend) == []


def test_a_transaction_that_the_handler_ended_is_told(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(1))
    batch = queue.claim()
    batch.connection.rollback()
    batch.done()
    with pytest.raises(NoOpenTransaction, match="leave commit to `with batch`"):
        batch.settle()
    assert left(backend) == ["0000"]


def test_a_batch_by_lease_has_no_connection(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(1))
    with queue.claim() as batch, pytest.raises(NoOpenTransaction, match="hold='transaction'"):
        assert batch.connection


def test_a_hold_that_does_not_exist(backend: Backend) -> None:
    with pytest.raises(ValueError, match="hold='forever': give one of 'lease', 'transaction'"):
        Queue(backend.engine, hold="forever")  # type: ignore[arg-type]


# --- the cost ----------------------------------------------------------------------------------------------


def test_a_handler_that_writes_elsewhere_pays_for_no_savepoint(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(100))
    queue.claim(1).settle()
    with counted(backend.engine) as sent:
        with queue.claim() as batch:
            for _ in batch:
                pass
        phases = ["SELECT"] if backend.has("lock of what is found") else ["SELECT", "SELECT"]
        assert [sql.split()[0] for sql in sent] == [*phases, "DELETE", "COMMIT"]


# --- tables without much -----------------------------------------------------------------------------------


@contextmanager
def plain(backend: Backend) -> Iterator[sa.Table]:
    table = sa.Table(
        "plain",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("body", sa.String(10)),
        mysql_engine="InnoDB",
    )
    table.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(table), [{"id": n, "body": f"{n}"} for n in range(1, 7)])
    yield table


def test_a_key_is_enough(backend: Backend) -> None:
    """No table of ours, no column of ours: the rows that are there are the jobs."""
    with plain(backend):
        queue = backend.bare_queue("plain", hold="transaction", on_done="delete")
        with queue.claim(2, where=sa.text("body <> '2'")) as batch:
            assert [job.id for job in batch] == [1, 3]
        assert [row["id"] for row in backend.rows("plain")] == [2, 4, 5, 6]
        assert queue.stats().left == 4
        with queue.claim(2) as batch:
            with pytest.raises(ColumnMissing, match="attempts"):
                batch.fail(batch[0], "broken")
            with pytest.raises(ColumnMissing, match="status"):
                batch.fail(batch[0], "broken", retry=False)
        assert len(backend.rows("plain")) == 4


def test_a_job_that_raises_is_undone_and_free_again_where_nothing_can_be_noted(backend: Backend) -> None:
    EFFECTS.create(backend.engine)
    with plain(backend):
        queue = backend.bare_queue("plain", hold="transaction", on_done="delete")
        with pytest.raises(ZeroDivisionError):
            raise_at(queue.claim(), "3", column="body")
    assert effects(backend) == ["1", "2"]
    assert [row["id"] for row in backend.rows("plain")] == [3, 4, 5, 6]


def test_keeping_needs_a_state_for_it(backend: Backend) -> None:
    with plain(backend), pytest.raises(ColumnMissing, match="status"):
        backend.bare_queue("plain", hold="transaction", on_done="keep").claim()


def test_a_boolean_and_nothing_else(backend: Backend) -> None:
    """As in "Queues in SQL": `available` is all there is."""
    items = sa.Table(
        "items",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("available", sa.Boolean, nullable=False, server_default=sa.true()),
        mysql_engine="InnoDB",
    )
    items.create(backend.engine)
    queue = backend.bare_queue("items", columns=Columns(status="available"), hold="transaction", on_done="keep")
    queue.enqueue([{"id": n} for n in range(1, 4)])
    with queue.claim(2) as batch:
        batch.done()
    assert [bool(row["available"]) for row in backend.rows("items")] == [False, False, True]
    assert (queue.stats().unclaimed, queue.stats().done) == (1, 2)
    with queue.claim() as batch:
        with pytest.raises(StateMissing, match=r"'dead'.* name one, as in Columns\(states="):
            batch.fail(batch[0], "broken", retry=False)
        batch.done()
    assert not queue.claim()


def test_a_function_says_what_becomes_of_done_jobs(backend: Backend) -> None:
    EFFECTS.create(backend.engine)
    seen: list[Any] = []

    def archive(connection: sa.Connection, done: Any) -> None:
        seen.extend(job.d for job in done)
        connection.execute(sa.insert(EFFECTS), [{"name": job.d} for job in done])

    queue = backend.queue(JOBS, hold="transaction", on_done=archive)
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        batch.done(batch[0], batch[2])
    assert (effects(backend), left(backend), seen) == (["0000", "0002"], ["0001"], ["0000", "0002"])


def test_a_row_that_points_at_a_held_job_can_be_written(backend: Backend) -> None:
    """Its foreign key waits for whoever could change the job's key: a claim cannot."""
    backend.requires("locks that spare keys")
    queue = backend.queue(JOBS, hold="transaction")
    backend.run("CREATE TABLE notes (job INTEGER REFERENCES jobs)")
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        with backend.engine.begin() as connection:
            connection.execute(sa.text(backend.dialect.sessions.settings(1.0)[0]))
            connection.execute(sa.text("INSERT INTO notes VALUES (:job)"), {"job": batch[0].id})
        batch.release()


# --- what a second reader found ----------------------------------------------------------------------------


def test_a_session_of_the_batch_is_flushed_and_undone_job_by_job(backend: Backend, queue: Queue) -> None:
    """Without a flush of the user's own: what is pending belongs to the job in work."""

    class Base(DeclarativeBase):
        pass

    class Effect(Base):
        __table__ = sa.Table("effects", Base.metadata, sa.Column("name", sa.String(20), primary_key=True))

    queue.enqueue(jobs(4))
    with queue.claim() as batch:
        session = batch.session()
        for job in batch:
            session.add(Effect(name=job.d))
            if job.d == "0001":
                batch.fail(job, "broken", retry_in=60)
            if job.d == "0002":
                session.commit()
    assert (effects(backend), left(backend)) == (["0000", "0002", "0003"], ["0001"])


def test_a_session_that_is_kept_writes_into_no_other_batch(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with queue.claim(1) as batch:
        kept = batch.session()
        kept.execute(sa.insert(EFFECTS), {"name": "mine"})
        batch.done()
    with queue.claim(1) as other:
        with pytest.raises(sa.exc.UnboundExecutionError):
            kept.execute(sa.insert(EFFECTS), {"name": "not mine"})
        other.done()
    assert effects(backend) == ["mine"]


def test_a_failure_that_the_table_cannot_hold_is_told_in_one_line(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """And undone, and free again; what was done before it is done."""
    EFFECTS.create(backend.engine)
    with plain(backend):
        queue = backend.bare_queue("plain", hold="transaction", on_done="delete")

        def work(batch: Batch) -> None:
            for job in batch:
                write(batch, job.body)
                if job.id == 3:
                    queue.stop()
                    batch.fail(job, "broken")

        consume(queue, work)
    assert effects(backend) == ["1", "2"]
    [record] = [record for record in caplog.records if record.name == "claimjobs.consumer"]
    assert "table 'plain' has no column 'attempts'" in record.message
    assert record.exc_info is None


def test_a_done_job_can_still_fail_while_the_loop_is_at_it(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
            batch.done(job)
            if job.d == "0001":
                batch.fail(job, "could not tell anyone", retry_in=60)
    assert (effects(backend), left(backend)) == (["0000", "0002"], ["0001"])


def test_it_is_too_late_once_the_loop_has_moved_on(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        first, second = batch.jobs
        for job in batch:
            write(batch, job.d)
            if job is second:
                with pytest.raises(TooLate, match="job 1 were kept when the loop moved on"):
                    batch.fail(first, "late")
                with pytest.raises(TooLate):
                    batch.release(first)
    assert (effects(backend), left(backend)) == (["0000", "0001"], [])


def test_an_exception_after_the_loop_undoes_all(backend: Backend, queue: Queue) -> None:
    """Also where the connection was first used within a job."""

    def work(batch: Batch) -> None:
        with batch:
            for job in batch:
                write(batch, job.d)
            write(batch, "summary")
            raise ZeroDivisionError

    queue.enqueue(jobs(2))
    with pytest.raises(ZeroDivisionError):
        work(queue.claim())
    assert (effects(backend), len(left(backend))) == ([], 2)


def test_a_batch_that_is_over_reaches_no_other_ones_transaction(backend: Backend) -> None:
    """Its connection may serve another batch by now."""
    EFFECTS.create(backend.engine)

    def fails(*_: Any) -> None:
        raise ValueError

    queue = backend.queue(JOBS, hold="transaction", on_done=fails)
    queue.enqueue(jobs(4))
    over = queue.claim(2)
    over.done()
    with pytest.raises(ValueError):  # noqa: PT011 - it is the test's own
        over.settle()
    other = queue.claim(2)
    write(other, "half")
    with pytest.raises(BatchSettled):
        over.settle()
    with pytest.raises(NoOpenTransaction):
        assert over.connection
    assert effects(backend) == []
    queue.close()
    assert (effects(backend), len(left(backend))) == ([], 4)


def test_a_connection_that_the_handler_closes_ends_the_batch_and_not_the_queue(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    batch = queue.claim(1)
    with batch.connection:
        pass
    batch.done()
    with pytest.raises((BatchRolledBack, NoOpenTransaction, sa.exc.InvalidRequestError)):
        batch.settle()
    with queue.claim() as again:
        assert len(again) == 2
        again.done()
    assert left(backend) == []


def test_a_failure_waits_from_when_it_happened(backend: Backend, queue: Queue) -> None:
    """Not from the claim, at which the transaction began."""
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.connection.execute(sa.text("SELECT pg_sleep(2)" if backend.family == "postgres" else "SELECT sleep(2)"))
        batch.fail(batch[0], "broken", retry_in=1)
    assert not queue.claim()


FORKS = """
import os, sys
from claimjobs import Queue
from claimjobs.errors import CrossedFork

queue = Queue({url!r}, hold="transaction")
batch = queue.claim()
assert len(batch) == 2
batch.done(batch[0])
child = os.fork()
if not child:
    for use in (lambda: batch.connection, lambda: batch.__exit__(None, None, None), queue.claim):
        try:
            use()
        except CrossedFork:
            pass
        else:
            os._exit(9)
    sys.exit(5)  # through the finalizers
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
batch.settle()
assert queue.stats().left == 1
print("unharmed")
"""


def test_a_batch_that_a_fork_took_along_is_its_parents(database: Backend) -> None:
    database.queue().enqueue(jobs(2))
    program = FORKS.format(url=database.url)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "unharmed\n", ended.stderr

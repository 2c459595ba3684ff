"""Claims that an open transaction holds: what is written through it and the completion are one."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Session

from claimjobs import Batch, Queue
from claimjobs.batch.open_transaction import BatchTransaction
from claimjobs.errors import BatchMisused
from claimjobs.table.definitions import OWNER_TABLE
from tests.backends import Backend
from tests.conformance.connections import joined
from tests.conformance.effects import (
    EFFECTS,
    JOBS,
    Effect,
    effects,
    left,
    queue_with_effects,
    raise_after_all,
    raise_at,
    write,
)
from tests.conformance.jobs import counted, jobs, names


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return queue_with_effects(backend)


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


def test_several_threads_claim_at_once(backend: Backend, queue: Queue) -> None:
    """Each batch has a transaction of its own, and no job is in two of them."""
    queue.enqueue(jobs(40))
    together, found = threading.Barrier(4), [list[str]() for _ in range(4)]

    def work(mine: list[str]) -> None:
        together.wait(120)
        while (batch := queue.claim(2)) or batch.contended:
            with batch:
                mine.extend(names(batch))
                batch.done()

    with contextlib.ExitStack() as threads:
        for mine in found:
            threads.enter_context(joined(partial(work, mine))).start()
    assert sorted(itertools.chain(*found)) == [job["d"] for job in jobs(40)]
    assert backend.rows() == []


def test_an_empty_claim_leaves_no_transaction_open(backend: Backend, queue: Queue) -> None:
    assert not queue.claim()
    queue.enqueue(jobs(1))
    assert names(queue.claim()) == ["0000"]


def test_two_threads_that_find_a_dropped_batch_get_a_transaction_each(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.forgets_batches = True
    queue = backend.queue(JOBS, hold="transaction")
    queue.enqueue(jobs(3))
    dropped = queue.claim(1)
    both, is_dropped = threading.Barrier(2), vars(BatchTransaction)["is_dropped"].fget

    def found_by_both(transaction: BatchTransaction) -> bool:
        found = bool(is_dropped(transaction))
        if found:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1.0)
        return found

    monkeypatch.setattr(BatchTransaction, "is_dropped", property(found_by_both))
    del dropped
    gc.collect()
    batches = list[Batch]()
    with contextlib.ExitStack() as threads:
        for _ in range(2):
            threads.enter_context(joined(lambda: batches.append(queue.claim(1)))).start()
    assert backend.locked() == 2
    for batch in batches:
        batch.done()
        batch.settle()
    assert len(left(backend)) == 1


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


@pytest.mark.requires("locks that spare keys")
def test_a_row_that_points_at_a_held_job_can_be_written(backend: Backend) -> None:
    """Its foreign key waits for whoever could change the job's key: a claim cannot."""
    queue = backend.queue(JOBS, hold="transaction")
    backend.run("CREATE TABLE notes (job BIGINT REFERENCES jobs)")
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        with backend.engine.begin() as connection:
            connection.execute(sa.text(backend.dialect.sessions.settings(1.0)[0]))
            connection.execute(sa.text("INSERT INTO notes VALUES (:job)"), {"job": batch[0].id})
        batch.release()


def test_a_hold_that_does_not_exist(backend: Backend) -> None:
    with pytest.raises(ValueError, match="hold='forever': give one of 'lease', 'transaction'"):
        Queue(backend.engine, hold="forever")  # type: ignore[arg-type]


def test_a_handler_that_writes_elsewhere_pays_for_no_savepoint(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(100))
    queue.claim(1).settle()
    with counted(backend.engine) as sent:
        with queue.claim() as batch:
            for _ in batch:
                pass
        phases = ["SELECT"] if backend.has("lock of what is found") else ["SELECT", "SELECT"]
        assert [sql.split()[0] for sql in sent] == [*phases, "DELETE", "COMMIT"]


def test_only_a_job_that_writes_has_a_savepoint_and_it_replaces_the_one_before(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(6))
    with queue.claim() as batch:
        kept = batch.connection
        assert kept.execute(sa.select(EFFECTS)).all() == []
        with counted(backend.engine) as sent:
            for job in batch:
                if job.d in ("0001", "0003", "0004"):
                    kept.execute(sa.insert(EFFECTS), {"name": job.d})
                if job.d in ("0002", "0003"):
                    batch.fail(job, "wrong", retry=False)
        one_by_one = [sql.split()[0] for sql in sent]
        assert one_by_one == ["INSERT", "INSERT", "ROLLBACK", "INSERT"], "those of the jobs go through the driver"
    assert effects(backend) == ["0001", "0004"]
    assert [row["status"] for row in backend.rows()] == ["dead", "dead"]


def test_an_error_that_the_handler_swallows_lets_no_write_out_of_the_transaction(
    backend: Backend, queue: Queue
) -> None:
    """Postgres refuses all that follows; MySQL goes on."""
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        kept = batch.connection
        for job in batch:
            with contextlib.suppress(sa.exc.DBAPIError):
                kept.execute(sa.text("SELECT nothing" if job.d == "0000" else "SELECT 1"))
                kept.execute(sa.insert(EFFECTS), {"name": job.d})
    for batch in queue.batches(drain="retries"):
        with batch:
            for job in batch:
                write(batch, job.d)
    assert sorted({*effects(backend), "0000"}) == ["0000", "0001", "0002"]
    assert len(effects(backend)) == len(set(effects(backend))), "none of them twice"
    assert backend.rows() == []


def test_what_a_session_had_not_flushed_for_a_failed_job_is_not_written_for_the_next(
    backend: Backend, queue: Queue
) -> None:
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        session = batch.session()
        for job in batch:
            session.add(Effect(name=job.d))
            if job.d == "0001":
                batch.fail(job, "wrong", retry=False)
    assert effects(backend) == ["0000", "0002"]


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


def test_nothing_is_written_for_jobs_of_which_nothing_was_said(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        write(batch, "half done")
    assert (effects(backend), len(left(backend))) == ([], 2)


# --- what is undone of a batch -----------------------------------------------------------------------------


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


class TakenAway(BaseException):
    """What no `except Exception` stops."""


def test_a_batch_that_is_taken_back_has_no_effects(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(2))
    with pytest.raises(TakenAway):
        raise_after_all(queue.claim(), TakenAway())
    assert (effects(backend), len(left(backend))) == ([], 2)


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
                with pytest.raises(BatchMisused, match="job 1 were kept when the loop moved on"):
                    batch.fail(first, "late")
                with pytest.raises(BatchMisused):
                    batch.release(first)
    assert (effects(backend), left(backend)) == (["0000", "0001"], [])


def test_a_failure_waits_from_when_it_happened(backend: Backend, queue: Queue) -> None:
    """Not from the claim, at which the transaction began."""
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.connection.execute(sa.text("SELECT pg_sleep(2)" if backend.family == "postgres" else "SELECT sleep(2)"))
        batch.fail(batch[0], "broken", retry_in=1)
    assert not queue.claim()


# --- sessions of the ORM -----------------------------------------------------------------------------------


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

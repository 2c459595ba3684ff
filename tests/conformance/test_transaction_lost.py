"""The transaction that holds a batch is lost, or ended by somebody else: nothing of the batch is kept."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.errors import BatchMisused, BatchRolledBack, NoOpenTransaction
from tests.backends import Backend
from tests.conformance.effects import EFFECTS, JOBS, Effect, effects, left, queue_with_effects, write
from tests.conformance.jobs import jobs


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return queue_with_effects(backend)


def test_a_batch_says_that_it_holds_its_jobs_until_it_is_over(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(3))
    first, second = queue.claim(1), queue.claim(1)
    assert first.holds(first[0])
    first.connection.rollback()  # which a handler must not do
    assert not first.holds(first[0])
    with pytest.raises(NoOpenTransaction):
        first.settle()
    queue.stop(timeout=0)
    backend.wait_for(lambda: not second.holds(second[0]), "the deadline of the stop is over")
    with pytest.raises(BatchRolledBack):
        second.settle()


# --- the server or the connection ends it ------------------------------------------------------------------


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


@pytest.mark.parametrize("writer", ["session", "kept connection"])
def test_after_such_a_rollback_a_handler_that_goes_on_commits_nothing_and_the_next_claim_works(
    backend: Backend, queue: Queue, writer: str
) -> None:
    queue.enqueue(jobs(3))
    batch = queue.claim()
    kept, session = batch.connection, batch.session()
    for job in batch:
        try:
            if writer == "session":
                session.add(Effect(job.d))
                session.flush()
            else:
                kept.execute(sa.insert(EFFECTS), {"name": job.d})
            kept.exec_driver_sql("ROLLBACK").close()
            assert job.d != "0000"
        except Exception as error:
            batch.fail(job, error)
        session.add(Effect("late"))
    with pytest.raises(BatchRolledBack):
        batch.settle()
    assert (effects(backend), len(left(backend))) == ([], 3)
    with queue.claim() as again:
        again.done()
    assert left(backend) == []


def test_what_a_handler_sends_after_its_batch_is_over_is_not_committed_and_the_next_claim_works(
    backend: Backend, queue: Queue
) -> None:
    queue.enqueue(jobs(2))
    with queue.claim(1) as batch:
        kept = batch.connection
        batch.done()
    kept.execute(sa.insert(EFFECTS), {"name": "late"})
    with queue.claim(1) as again:
        again.done()
    assert (effects(backend), left(backend)) == ([], [])


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


# --- the handler ends it -----------------------------------------------------------------------------------


def test_a_transaction_that_the_handler_ended_is_told(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(1))
    batch = queue.claim()
    batch.connection.rollback()
    batch.done()
    with pytest.raises(NoOpenTransaction, match="leave commit to `with batch`"):
        batch.settle()
    assert left(backend) == ["0000"]


def test_a_queue_that_is_closed_before_its_batch_says_so(backend: Backend, queue: Queue) -> None:
    queue.enqueue(jobs(1))
    batch = queue.claim()
    queue.close()
    batch.done()
    with pytest.raises(NoOpenTransaction) as raised:
        batch.settle()
    assert "`with batch`, then close" in str(raised.value)
    assert "hold=" not in str(raised.value)
    assert left(backend) == ["0000"]


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


def test_after_a_batch_whose_handler_committed_the_next_one_has_its_own_transaction(
    backend: Backend, queue: Queue
) -> None:
    queue.enqueue(jobs(2))
    batch = queue.claim(1)
    session = batch.session()
    session.execute(sa.insert(EFFECTS), {"name": "kept"})
    session.connection().commit()
    with pytest.raises((NoOpenTransaction, BatchRolledBack, sa.exc.InvalidRequestError)), batch:
        batch.done()
    with queue.claim() as again:
        for job in again:
            write(again, job.d)
    assert sorted(effects(backend)) == ["0000", "0001", "kept"]
    assert left(backend) == []


# --- there is none, or it is not this batch's --------------------------------------------------------------


def test_a_batch_by_lease_has_no_connection(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(1))
    with queue.claim() as batch, pytest.raises(NoOpenTransaction, match="hold='transaction'"):
        assert batch.connection
    with queue.claim() as batch, pytest.raises(NoOpenTransaction, match="hold='transaction'"):
        assert batch.session()


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
    with pytest.raises(BatchMisused):
        over.settle()
    with pytest.raises(NoOpenTransaction):
        assert over.connection
    assert effects(backend) == []
    queue.close()
    assert (effects(backend), len(left(backend))) == ([], 4)


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
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ended.stdout == "unharmed\n", ended.stderr

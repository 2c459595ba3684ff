"""`claimjobs.testing.run`: what is due is worked off in this process, and each job's result is told."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncSession

from claimjobs import Batch, Done, Fail, Job, PerKey, Retry, RetryLater, job_table
from claimjobs.errors import BadArgument, BadHandler, NothingDone
from claimjobs.testing import Clock, JobResult, run
from tests.backends import Backend
from tests.conformance.test_per_key import mails

MAILS = job_table(
    "mails", sa.MetaData(), sa.Column("address", sa.String(40), nullable=False), sa.Column("result", sa.String(40))
)
ADDRESSES = ("ada", "bob", "cid")


SLOW = Retry(attempts=3, base=60)
"""No failed job is due again while a test runs."""


def some(*addresses: str) -> list[dict[str, str]]:
    return [{"address": address} for address in addresses or ADDRESSES]


def send(job: Job) -> None:
    if job.address == "bob":
        raise OSError("mailbox full")
    if job.address == "cid":
        raise Fail("no such address", retry=False)


def send_and_note(job: Job) -> Done:
    send(job)
    return Done(result=f"sent to {job.address}")


def test_each_job_has_the_result_that_the_command_gives_it(backend: Backend) -> None:
    queue = backend.queue(MAILS, on_done="keep", retry=SLOW)
    queue.enqueue(some())
    results = {result.job.address: result for result in run(queue, send_and_note)}
    assert {name: (result.state, result.error) for name, result in results.items()} == {
        "ada": ("done", None),
        "bob": ("retry", "OSError: mailbox full"),
        "cid": ("dead", "Fail: no such address"),
    }
    assert results["bob"].retry_in == pytest.approx(45, abs=15)
    assert [row["result"] for row in backend.rows("mails") if row["status"] == "done"] == ["sent to ada"]
    assert backend.queue(MAILS).stats().owners == ()


async def send_at_once(job: Job) -> None:
    await asyncio.sleep(0)
    send(job)


def test_an_async_handler_is_awaited(backend: Backend) -> None:
    queue = backend.queue(MAILS, retry=SLOW)
    queue.enqueue(some())
    states = {result.job.address: result.state for result in run(queue, send_at_once)}
    assert states == {"ada": "done", "bob": "retry", "cid": "dead"}


def send_all(batch: Batch) -> None:
    batch.done(batch[0])
    batch.release(batch[1])


def test_a_handler_of_a_batch_is_given_batches(backend: Backend) -> None:
    queue = backend.queue(MAILS, where=MAILS.c.address != "bob")
    queue.enqueue(some("ada", "cid"))
    found = run(queue, lambda batch: batch.done(), size=1)
    assert [(result.job.address, result.state) for result in found] == [("ada", "done"), ("cid", "done")]


def test_a_job_that_a_rate_holds_back_is_not_due(backend: Backend) -> None:
    queue, clock = mails(backend, PerKey("customer", rate="1/h"), [7, 7]), Clock()
    assert [len(run(queue, accept, clock=clock)) for _ in range(2)] == [1, 0]
    clock.move(hours=1)
    assert len(run(queue, accept, clock=clock)) == 1


def accept(job: Job) -> None:
    assert job.customer == 7


def send_twice(job: Job, again: bool) -> None:
    send(job)
    if again:
        send(job)


def test_a_handler_that_no_job_can_call_is_refused_before_a_claim(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    queue.enqueue(some("ada"))
    with pytest.raises(BadHandler, match="is called with"):
        run(queue, send_twice)
    assert queue.stats().unclaimed == 1


def test_a_clock_moves_the_time_of_retries_and_of_delayed_jobs(backend: Backend) -> None:
    queue, clock = backend.queue(MAILS, retry=SLOW), Clock()
    queue.enqueue([{"address": "bob"}, {"address": "ada", "run_at": queue.now() + timedelta(days=1)}])
    assert [result.state for result in run(queue, send, clock=clock)] == ["retry"]
    assert run(queue, send, clock=clock) == []
    clock.move(minutes=5)
    assert [result.job.attempts for result in run(queue, send, clock=clock)] == [1]
    clock.move(days=1)
    found = run(queue, send, clock=clock)
    assert sorted((result.job.address, result.state) for result in found) == [("ada", "done"), ("bob", "dead")]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_with_a_clock_a_job_that_the_handler_enqueues_is_handled_too(backend: Backend, in_transaction: bool) -> None:
    queue = backend.queue(MAILS)
    with backend.new_engine().connect() as connection, connection.begin():
        given = connection if in_transaction else None

        def next_one(job: Job) -> None:
            if job.address == "ada":
                queue.enqueue(some("bob"), given)

        queue.enqueue(some("ada"), given)
        found = run(queue, next_one, connection=given, clock=Clock())
        assert [(result.job.address, result.state) for result in found] == [("ada", "done"), ("bob", "done")]


def test_in_a_transaction_a_job_that_is_due_again_at_once_is_handled_again(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    with backend.new_engine().connect() as connection, connection.begin():
        queue.enqueue(some("ada"), connection)
        assert [result.state for result in run(queue, later, connection=connection)] == ["retry", "retry", "done"]


def later(job: Job) -> None:
    if job.attempts < 2:
        raise RetryLater(0)


def test_a_job_that_is_due_again_at_once_is_handled_again(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    queue.enqueue(some("ada"))
    assert [result.state for result in run(queue, later, clock=Clock())] == ["retry", "retry", "done"]


@pytest.mark.parametrize("is_session", [False, True])
def test_rows_of_a_transaction_that_is_rolled_back_are_worked_in_it(backend: Backend, is_session: bool) -> None:
    queue = backend.queue(MAILS, retry=SLOW)
    queue.enqueue(some("dan"))
    with backend.new_engine().connect() as connection:
        given: Any = sa.orm.Session(connection) if is_session else connection
        if not is_session:
            connection.begin()
        queue.enqueue(some(), given)
        states = {result.job.address: result.state for result in run(queue, send, connection=given)}
        assert states == {"ada": "done", "bob": "retry", "cid": "dead", "dan": "done"}
        left = connection.execute(sa.select(MAILS.c.address, MAILS.c.status)).all()
        assert sorted(map(tuple, left)) == [("bob", "unclaimed"), ("cid", "dead")]
        given.rollback()
    assert [(row["address"], row["status"]) for row in backend.rows("mails")] == [("dan", "unclaimed")]


@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_the_savepoint_of_a_test_suite_stays(backend: Backend, end: str) -> None:
    queue = backend.queue(MAILS, hold="transaction")
    with backend.new_engine().connect() as connection, connection.begin():
        queue.enqueue(some("dan"), connection)
        with sa.orm.Session(connection, join_transaction_mode="create_savepoint") as session:
            queue.enqueue(some("ada"), session)
            assert [result.state for result in run(queue, count, connection=session)] == ["done", "done"]
            getattr(session, end)()
        left = connection.scalars(sa.select(MAILS.c.address)).all()
        assert left == (["dan"] if end == "rollback" else [])


def count(job: Job, connection: sa.Connection) -> None:
    connection.execute(sa.select(sa.func.count()).select_from(MAILS))


def into_the_archive(job: Job, connection: sa.Connection) -> None:
    connection.execute(sa.insert(MAILS).values(address=f"copy of {job.address}", status="done"))
    if job.address == "bob":
        raise OSError("no space")


def test_a_handler_with_a_connection_writes_in_the_transaction_of_the_test(backend: Backend) -> None:
    queue = backend.queue(MAILS, hold="transaction")
    with backend.new_engine().connect() as connection, connection.begin() as transaction:
        queue.enqueue(some("ada", "bob"), connection)
        found = run(queue, into_the_archive, connection=connection, clock=Clock())
        assert [(result.job.address, result.state) for result in found] == [("ada", "done"), ("bob", "retry")]
        addresses = connection.scalars(sa.select(MAILS.c.address).order_by(MAILS.c.id)).all()
        assert addresses == ["bob", "copy of ada"]
        transaction.rollback()
    assert backend.rows("mails") == []


def interrupted(_job: Job) -> None:
    raise KeyboardInterrupt


def not_to_be_called(job: Job) -> None:
    pytest.fail(f"it was called for {job.address}")


async def not_to_be_awaited(job: Job) -> None:
    not_to_be_called(job)


@pytest.mark.parametrize("handler", [interrupted, not_to_be_called, not_to_be_awaited])
def test_what_ends_a_test_is_no_failure_of_a_job(backend: Backend, handler: Any) -> None:
    queue = backend.queue(MAILS)
    queue.enqueue(some("ada", "bob", "eve"))
    with pytest.raises((KeyboardInterrupt, pytest.fail.Exception)):
        run(queue, handler)
    assert queue.stats().owners == ()
    assert [(row["status"], row["attempts"]) for row in backend.rows("mails")] == [("unclaimed", 0)] * 3
    assert [result.state for result in run(queue, lambda job: None)] == ["done"] * 3


def test_a_stopped_queue_is_worked_off(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    queue.enqueue(some("ada"))
    queue.stop()
    assert [result.state for result in run(queue, send)] == ["done"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_job_that_the_handler_releases_is_not_handled_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """Also of a handler that releases more batches in a row than those after which a drain ends."""
    monkeypatch.setattr("claimjobs.workers.consumer.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("claimjobs.workers.consumer.VAIN_BATCHES", 2)
    queue = backend.queue(MAILS)
    with backend.new_engine().connect() as connection, connection.begin():
        given = connection if in_transaction else None
        queue.enqueue(some("ada", "bob", "bob", "bob", "bob", "eve"), given)
        found = run(queue, release_bob, connection=given, size=1)
        assert [result.state for result in found] == ["done", *["released"] * 4, "done"]
        assert [result.state for result in run(queue, release_bob, connection=given)] == ["released"] * 4


def release_bob(batch: Batch) -> None:
    for job in batch:
        if job.address == "bob":
            batch.release(job)


def test_a_paused_queue_is_not_waited_for(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    queue.pause("maintenance")
    with pytest.raises(BadArgument, match=r"'mails' is paused.*call its `resume` before `run`"):
        run(queue, send)


def test_what_cannot_be_is_refused(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    with backend.new_engine().connect() as connection:
        with pytest.raises(BadArgument, match="no open transaction: call its `begin`"):
            run(queue, send, connection=connection)
        with pytest.raises(BadArgument, match=r"AsyncSession has none: give a Connection.* of `queue.engine`"):
            run(queue, send, connection=AsyncSession())  # type: ignore[arg-type]
        connection.begin()
        with pytest.raises(BadHandler, match=r"'send_at_once' is async.*leave out `connection`"):
            run(queue, send_at_once, connection=connection)
        limited = backend.bare_queue(MAILS, per_key=PerKey("address", at_most=1))
        with pytest.raises(BadArgument, match=r"per_key needs hold='lease'.*leave out `connection`"):
            run(limited, send, connection=connection)
    with pytest.raises(BadHandler, match=r"may be for batches or for jobs.* give the command `--per"):
        run(queue, lambda row: None)


def test_an_async_test_calls_it_in_a_thread(backend: Backend) -> None:
    queue = backend.queue(MAILS)
    queue.enqueue(some("ada"))

    async def test() -> list[JobResult]:
        with pytest.raises(
            BadHandler, match=r"'send_at_once' is async.*`await asyncio.to_thread\(run, queue, handler\)`"
        ):
            run(queue, send_at_once)
        return await asyncio.to_thread(run, queue, send_at_once)

    assert [result.state for result in asyncio.run(test())] == ["done"]


def test_a_job_that_a_session_has_not_written_yet_is_due(backend: Backend) -> None:
    class Base(sa.orm.DeclarativeBase):
        pass

    class Mail(Base):
        __table__ = MAILS

    queue = backend.queue(MAILS)
    with sa.orm.Session(backend.engine) as session:
        session.add(Mail(address="ada"))
        assert [result.state for result in run(queue, send, connection=session)] == ["done"]
        session.rollback()


def test_a_handler_that_decides_nothing_is_told(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.workers.consumer.FIRST_PAUSE", 0.001)
    queue = backend.queue(MAILS)
    queue.enqueue(some("ada"))
    with pytest.raises(NothingDone, match="returned without an outcome for any job"):
        run(queue, lambda batch: None)

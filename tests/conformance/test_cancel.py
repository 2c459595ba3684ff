"""Jobs in any state are listed and shown, and those that wait or are claimed are cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Job, Queue, make, side_car_tables
from claimjobs.errors import BadArgument, BatchMisused, RowsRefused
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import dead_jobs, jobs
from tests.conformance.owners import hold_of
from tests.conformance.test_refusals import constrain
from tests.conformance.test_work import EXECUTORS, until, working

QUICK = Liveness(lease=2.0)
KINDS = pytest.mark.parametrize(
    "kind",
    [
        {},
        pytest.param({"claims": "batches"}, marks=pytest.mark.pair("the claim is a row of its own")),
        pytest.param({"side_car": True}, marks=pytest.mark.pair("the state is in a second table")),
    ],
    ids=["rows", "batches", "side-car"],
)


def queue_of(backend: Backend, kind: dict[str, Any], count: int = 6) -> Queue:
    """Jobs 1, 2, ...: it keeps those that are done."""
    backend.make()
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.queue(on_done="keep", liveness=QUICK, **kind)
    queue.enqueue({"id": number, **row} for number, row in enumerate(jobs(count), 1))
    return queue


def states(queue: Queue) -> dict[Any, str | None]:
    return {entry.job.key: entry.state for entry in queue.jobs.list()}


def held_job(queue: Queue, key: int) -> Job | None:
    held = hold_of(queue).held.of_owner(queue.owner_id)
    return next((job for each in held for job in each.claimed.jobs if job.key == key), None)


def is_lost(queue: Queue, key: int) -> bool:
    job = held_job(queue, key)
    return job is not None and job.is_lost


@KINDS
def test_jobs_are_listed_in_each_state(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, kind)
    with queue.claim(3) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "wrong", retry=False)
        batch.fail(batch[2], "not yet", retry_in=3_600)
    held = queue.claim(2)
    assert states(queue) == {1: "done", 2: "dead", 3: "unclaimed", 4: "claimed", 5: "claimed", 6: "unclaimed"}
    for state, keys in {"done": [1], "dead": [2], "claimed": [4, 5], "unclaimed": [3, 6]}.items():
        assert [entry.job.key for entry in queue.jobs.list(state=state)] == keys
    assert [entry.job.key for entry in queue.jobs.list("d > '0001'", state="unclaimed", limit=1)] == [3]
    assert {entry.record is entry.job for entry in queue.jobs.list()} == {"side_car" not in kind}, "a row is read once"
    one, two, three = queue.jobs.show([2, 6, 3, 99])
    assert (one.columns["last_error"], one.columns["attempts"], one.job.d) == ("wrong", 1, "0001")
    assert (two.columns["last_error"], two.columns["attempts"]) == ("not yet", 1)
    assert (one.columns["status"], one.columns["id"]) == ("dead", 2), "a side-car's own is shown"
    assert (three.job.key, three.state) == (6, "unclaimed")
    held.settle()
    with pytest.raises(BadArgument, match="choose one of unclaimed"):
        next(queue.jobs.list(state="gone"))


@KINDS
def test_a_job_that_had_failed_has_the_reason_as_its_last_error(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, kind)
    with queue.claim(1) as batch:
        batch.fail(batch[0], "bad payload", retry_in=600)
        key = batch[0].key
    assert queue.cancel([key], "poison") == [key]
    assert [job.last_error for job in dead_jobs(queue)] == ["cancelled: poison"]


@KINDS
def test_what_waits_or_is_claimed_is_cancelled_and_nothing_else(backend: Backend, kind: dict[str, Any]) -> None:
    queue, other = queue_of(backend, kind), backend.bare_queue(on_done="keep", **kind)
    with queue.claim(2) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "wrong", retry=False)
    batch = queue.claim(2)
    assert sorted(other.cancel([1, 2, 3, 5, 99], "not wanted")) == [3, 5]
    assert states(queue) == {1: "done", 2: "dead", 3: "dead", 4: "claimed", 5: "dead", 6: "unclaimed"}
    batch.done()
    batch.settle()
    assert [job.key for job in batch.lost] == [3]
    assert states(queue)[3] == "dead"
    assert [job.last_error for job in dead_jobs(queue)] == ["wrong", "cancelled: not wanted", "cancelled: not wanted"]
    assert other.cancel([3, 5]) == []
    assert other.jobs.retry([3, 5]) == 2
    with other.claim() as batch:  # from the head: the cursor of the first one is behind job 4
        assert sorted(job.key for job in batch.jobs) == [3, 5, 6]
        batch.done()


@KINDS
def test_a_handler_sees_it_after_a_heartbeat_and_begins_no_cancelled_job(
    backend: Backend, kind: dict[str, Any]
) -> None:
    queue = queue_of(backend, kind)
    with queue.claim(3) as batch:
        handled = []
        for job in batch:
            handled.append(job.key)
            assert batch.holds(job)
            if job.key == 1:
                queue.cancel([1, 3])
                backend.wait_for(lambda: batch[0].cancelled and batch[2].cancelled, "a heartbeat has told it")
                assert [batch.holds(each) for each in batch.jobs] == [False, True, False]
        assert handled == [1, 2]
    assert [job.key for job in batch.lost] == [1, 3]
    with pytest.raises(BatchMisused):
        batch.holds(batch[0])


@EXECUTORS
def test_a_job_of_the_pool_is_given_up_when_it_is_cancelled(backend: Backend, executor: str) -> None:
    queue, gate, begun = queue_of(backend, {}, 9), threading.Event(), list[int]()
    ended = list[int]()

    def body(job: Job) -> Iterator[None]:
        begun.append(job.key)
        try:
            if job.key < 3:
                yield from until(gate)
        finally:
            ended.append(job.key)

    with working(queue, executor, body, concurrency=2, size=2):
        backend.wait_for(lambda: set(begun) == {1, 2}, "all places are taken")
        backend.wait_for(lambda: held_job(queue, 4), "the next ones wait in the pool")
        queue.cancel([4])
        backend.wait_for(lambda: is_lost(queue, 4), "a heartbeat has told it of a job that waits")
        queue.cancel([1, 2])
        backend.wait_for(lambda: set(states(queue).values()) == {"done", "dead"}, "its place is another job's")
        assert 4 not in begun
        assert executor == "threads" or {1, 2} <= set(ended)
        gate.set()
    assert [key for key, state in states(queue).items() if state == "dead"] == [1, 2, 4]
    assert queue.report.done == 6


def test_what_an_open_transaction_holds_is_not_cancelled(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.admin.stored_jobs.CANCEL_RETRY_SECONDS", 0.2)
    queue = queue_of(backend, {"hold": "transaction"}, 2)
    with queue.claim(1) as batch:
        assert queue.cancel([1, 2]) == [2]
        batch.done()
    assert states(queue) == {1: "done", 2: "dead"}


def test_what_a_stranger_has_locked_is_not_cancelled_and_stays_its_owners(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claimjobs.admin.stored_jobs.CANCEL_RETRY_SECONDS", 0.2)
    queue = queue_of(backend, {"claims": "batches"}, 2)
    batch = queue.claim(2)
    with backend.engine.connect() as other, other.begin():
        other.exec_driver_sql("SELECT id FROM jobs WHERE id = 1 FOR UPDATE").all()
        assert queue.cancel([1, 2]) == [2]
    batch.done()
    batch.settle()
    assert [job.key for job in batch.lost] == [2]
    assert states(queue) == {1: "done", 2: "dead"}


@pytest.mark.parametrize("kind", [{"side_car": True}, {"claims": "batches"}], ids=["side-car", "batches"])
def test_a_job_that_a_claim_is_about_to_record_is_not_cancelled(
    backend: Backend, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has locked the row of its job, and looked at what became of it before."""
    monkeypatch.setattr("claimjobs.admin.stored_jobs.CANCEL_RETRY_SECONDS", 0)
    queue, other = queue_of(backend, kind, 2), backend.bare_queue(on_done="keep", **kind)
    seen = list[Any]()

    def cancel_first(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "INSERT INTO" in statement and "claimjobs_batches" in statement and not seen:
            seen.append(None)
            seen.extend(other.cancel([1, 2]))

    sa.event.listen(queue.engine, "before_cursor_execute", cancel_first)
    with queue.claim(1) as batch:
        assert [job.key for job in batch.jobs] == [1]
        assert seen == [None, 2], "it tells the caller that it was not cancelled"
        batch.done()
    sa.event.remove(queue.engine, "before_cursor_execute", cancel_first)
    assert states(queue) == {1: "done", 2: "dead"}


def test_a_settle_that_is_not_committed_is_waited_for(backend: Backend) -> None:
    queue = queue_of(backend, {}, 1)
    with backend.engine.connect() as other, other.begin():
        other.exec_driver_sql("UPDATE jobs SET d = 'x' WHERE id = 1")
        cancelled = list[Any]()
        thread = threading.Thread(target=lambda: cancelled.extend(queue.cancel([1])))
        thread.start()
        time.sleep(0.2)
        assert not cancelled
        other.commit()
        thread.join(60)
    assert cancelled == [1]


def test_a_row_that_a_trigger_protects_is_told_and_the_others_are_cancelled(backend: Backend) -> None:
    queue = queue_of(backend, {}, 3)
    constrain(backend, "0001", "dead")
    with pytest.raises(RowsRefused, match="cancelling a job"):
        queue.cancel([1, 2, 3])
    assert states(queue) == {1: "dead", 2: "unclaimed", 3: "dead"}


def test_a_job_that_was_given_to_others_is_not_held(backend: Backend) -> None:
    queue = queue_of(backend, {}, 2)
    batch = queue.claim(2)
    backend.run("UPDATE jobs SET owner_id = 17 WHERE id = 2")
    backend.wait_for(lambda: batch[1].cancelled, "a heartbeat has told it")
    assert batch.holds(batch[0])
    hold_of(queue).release_held()
    assert not batch.holds(batch[0])
    batch.settle()


@KINDS
def test_a_job_that_its_owner_claims_again_is_lost_to_the_first_batch(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, kind, 2)
    first = queue.claim(2)
    queue.cancel([1])
    assert queue.jobs.retry([1]) == 1
    second = queue.claim(1)
    assert [job.key for job in second.jobs] == [1]
    assert [first.holds(job) for job in first.jobs] == [False, True]
    assert second.holds(second[0])
    first.done()
    first.settle()
    assert [job.key for job in first.lost] == [1]
    assert states(queue) == {1: "claimed", 2: "done"}
    second.fail(second[0], "wrong", retry=False)
    second.settle()
    assert (second.lost, states(queue)) == ((), {1: "dead", 2: "done"})
    assert (queue.report.done, queue.report.dead, queue.report.lost) == (1, 1, 1)


@KINDS
def test_a_batch_all_of_whose_jobs_were_claimed_again_settles_nothing(backend: Backend, kind: dict[str, Any]) -> None:
    queue = queue_of(backend, kind, 1)
    loop = queue.batches(1, drain=True)
    first = next(loop)
    queue.cancel([1])
    queue.jobs.retry([1])
    second = queue.claim(1)
    with first:
        first.done()
    assert [job.key for job in first.lost] == [1]
    assert states(queue) == {1: "claimed"}
    with second:
        second.done()
    assert (second.lost, states(queue)) == ((), {1: "done"})
    loop.close()


def test_the_hang_of_a_handler_takes_no_job_that_its_owner_has_claimed_again(backend: Backend) -> None:
    queue = queue_of(backend, {}, 2)
    first = queue.claim(2)
    queue.cancel([1])
    queue.jobs.retry([1])
    second = queue.claim(1)
    hold = hold_of(queue)
    hanging = hold.held.of_owner(queue.owner_id)[0]
    hanging.progressed_at = time.monotonic() - 2 * Liveness.max_batch_time
    hold.maintain()
    assert [first.holds(job) for job in first.jobs] == [False, False]
    second.done()
    second.settle()
    assert second.lost == ()
    assert states(queue)[1] == "done"


@KINDS
@EXECUTORS
def test_a_job_that_a_pool_claims_again_has_the_outcome_of_its_second_handler(
    backend: Backend, kind: dict[str, Any], executor: str
) -> None:
    queue, gates = queue_of(backend, kind, 1), [threading.Event(), threading.Event()]
    begun, ended = list[Job](), list[Job]()

    def body(job: Job) -> Iterator[None]:
        begun.append(job)
        mine = len(begun)
        try:
            yield from until(gates[mine - 1])
        finally:
            ended.append(job)
        if mine == 1:
            raise RuntimeError("the outcome of the first handler")

    with working(queue, executor, body, concurrency=4, size=2):
        backend.wait_for(lambda: len(begun) == 1, "its handler runs")
        queue.cancel([1])
        queue.jobs.retry([1])
        backend.wait_for(lambda: len(begun) == 2, "it is claimed again")
        gates[0].set()
        backend.wait_for(lambda: begun[0] in ended, "the first handler has ended")
        backend.wait_for(lambda: queue.report.lost == 1, "its outcome was refused")
        assert states(queue) == {1: "claimed"}
        gates[1].set()
        backend.wait_for(lambda: states(queue) == {1: "done"}, "the second outcome is written")
    assert queue.report.retried == 0

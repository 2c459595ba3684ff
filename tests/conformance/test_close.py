"""`Queue.close` beside a claim of another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from claimjobs import Job, Queue
from claimjobs.errors import NoOpenTransaction
from claimjobs.options import Liveness
from tests.backends import DEADLINE, Backend
from tests.conformance.jobs import jobs
from tests.conformance.test_work import EXECUTORS, until, working

HOLDS = pytest.mark.parametrize(
    "kind",
    [
        {},
        pytest.param({"claims": "batches"}, marks=pytest.mark.pair("the claim is a row of its own")),
        pytest.param({"hold": "transaction"}, marks=pytest.mark.pair("the claim is an open transaction")),
    ],
    ids=["rows", "batches", "transaction"],
)


def queue_of(backend: Backend, kind: dict[str, Any]) -> Queue:
    queue = backend.queue(on_done="keep", **kind)
    queue.enqueue(jobs(3))
    return queue


@HOLDS
def test_a_claim_that_comes_too_late_claims_nothing_and_opens_no_connection(
    backend: Backend, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, begun, closed = queue_of(backend, kind), threading.Event(), threading.Event()
    hold = queue._consumer.hold
    claim = hold.claim

    def late(*args: Any) -> Any:
        begun.set()
        assert closed.wait(DEADLINE)
        return claim(*args)

    monkeypatch.setattr(hold, "claim", late)
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(queue.claim, 2)
        assert begun.wait(DEADLINE)
        queue.close()
        closed.set()
        batch = future.result(DEADLINE)
        assert (len(batch), batch.contended) == (0, True), "no drain takes that for the end of the queue"
    assert backend.locked() == 0
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}
    assert queue.stats().owners == ()
    with queue.claim() as batch:
        batch.done()
    assert queue.report.done == 3, "the Queue can be used again"


@HOLDS
@pytest.mark.parametrize("where", ["while it waits for a claim", "while it closes"])
def test_a_close_that_is_interrupted_leaves_no_owner_and_the_queue_can_be_used_again(
    backend: Backend, kind: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(backend, kind)
    hold, batch = queue._consumer.hold, queue.claim(2)
    close = hold._close

    def interrupt(*_: Any, **__: Any) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return False  # the heartbeat's thread

    def closed_and_interrupted() -> None:
        close()
        raise KeyboardInterrupt

    if where == "while it closes":
        monkeypatch.setattr(hold, "_close", closed_and_interrupted)
    else:
        monkeypatch.setattr(hold, "_one_at_a_time", Mock(acquire=interrupt))
    with pytest.raises(KeyboardInterrupt):
        queue.close()
    assert (len(batch), backend.locked(), queue.stats().owners) == (2, 0, ())
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}
    with queue.claim() as again:
        again.done()
    assert queue.report.done == 3


@HOLDS
def test_a_claim_that_has_begun_is_waited_for_and_released(
    backend: Backend, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, claimed, go = queue_of(backend, kind), threading.Event(), threading.Event()
    hold = queue._consumer.hold
    once = hold._claim_once

    def slow(*args: Any) -> Any:
        found = once(*args)
        claimed.set()
        assert go.wait(DEADLINE)
        return found

    monkeypatch.setattr(hold, "_claim_once", slow)
    with ThreadPoolExecutor(2) as threads:
        future = threads.submit(queue.claim, 2)
        assert claimed.wait(DEADLINE)
        closing = threads.submit(queue.close)
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        go.set()
        batch = future.result(DEADLINE)
        closing.result(DEADLINE)
    assert backend.locked() == 0
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}
    assert queue.stats().owners == ()
    batch.done()
    if "hold" in kind:
        with pytest.raises(NoOpenTransaction):
            batch.settle()
    else:
        batch.settle()
        assert batch.lost == batch.jobs
    assert {row["status"] for row in backend.rows()} == {"unclaimed"}


@EXECUTORS
def test_a_pool_goes_on_after_a_close_and_does_again_what_was_in_hand(backend: Backend, executor: str) -> None:
    queue, gate, begun = queue_of(backend, {}), threading.Event(), list[str]()

    def body(job: Job) -> Iterator[None]:
        begun.append(job.d)
        if len(begun) == 1:
            yield from until(gate)

    with working(queue, executor, body, concurrency=1, size=3):
        backend.wait_for(lambda: begun, "a handler runs")
        queue.close()
        gate.set()
        backend.wait_for(lambda: {row["status"] for row in backend.rows()} == {"done"}, "all are done")
    assert begun.count(begun[0]) == 2
    assert (queue.report.done, queue.report.lost) == (3, 3), "the close has released those that waited, too"


def test_a_row_that_another_session_has_locked_keeps_no_other_claimed(database: Backend) -> None:
    queue = database.queue(liveness=Liveness(lease=2))
    queue.enqueue(jobs(5))
    batch = queue.claim()
    with database.engine.connect() as stranger:
        stranger.execute(sa.text("SELECT id FROM jobs WHERE id = :id FOR UPDATE"), {"id": batch[2].key}).all()
        queue.close()
        assert [row["status"] for row in database.rows()] == [*["unclaimed"] * 2, "claimed", *["unclaimed"] * 2]
    assert len(batch) == 5
    database.may_leave_owners = True

"""A batch that is open keeps alive what holds its jobs, though its Queue is forgotten; a settled one does not."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from claimjobs import Batch, Queue, make, side_car_tables
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import hold_of

WAYS: dict[str, dict[str, Any]] = {
    "lease": {},
    "transaction": {"hold": "transaction"},
    "side-car": {"side_car": True, "on_done": "delete"},
    "advisory locks": {"hold": "transaction", "locking": AdvisoryLocks()},
}


def forgetful(backend: Backend, **options: Any) -> Queue:
    """A Queue that nobody but the caller knows."""
    backend.forgets_batches = True
    queue = backend.queue(**options)
    backend._queues.remove(queue)
    return queue


@pytest.fixture
def filled(backend: Backend) -> Backend:
    backend.make()
    backend.queue().enqueue(jobs(4))
    return backend


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_a_queue_that_nobody_keeps_is_still_ours(filled: Backend, way: str) -> None:
    if "side_car" in WAYS[way]:
        make(filled.engine, side_car_tables(filled.engine, "jobs"))
    with forgetful(filled, **WAYS[way]).claim(3) as batch:
        gc.collect()
        with filled.queue(**WAYS[way]).claim(3) as other:
            assert names(other) == ["0003"]
        batch.done()
    assert batch.lost == ()
    assert [row["d"] for row in filled.rows()] == ["0003"]


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_batch_of_a_loop_that_nobody_keeps_is_still_ours(filled: Backend, hold: str) -> None:
    def first() -> Batch:
        return next(forgetful(filled, hold=hold).batches(1))

    with first() as batch:
        gc.collect()
        batch.done()
    assert batch.lost == ()
    assert [row["d"] for row in filled.rows()] == ["0001", "0002", "0003"]
    assert {row["status"] for row in filled.rows()} == {"unclaimed"}


def test_a_settled_batch_keeps_no_queue(filled: Backend) -> None:
    with forgetful(filled).claim(1) as batch:
        batch.done()
    gc.collect()
    assert batch.settled
    assert filled.rows("claimjobs_owners") == []


@pytest.mark.parametrize("where", ["a claim", "a heartbeat"])
def test_a_forgotten_loop_is_ended_in_the_middle_of_anything(backend: Backend, where: str) -> None:
    """By the garbage collector, in any thread. What its settle has claimed is released all the same."""
    queue = backend.queue(liveness=Liveness(lease=2.0))
    queue.enqueue(jobs(3))
    loop = queue.batches(1)
    with next(loop) as batch:
        batch.done()
    cycle: dict[str, Any] = {"loop": loop}
    cycle["itself"], forgotten = cycle, weakref.ref(loop)
    hold: Any = hold_of(queue)
    owner, name = (hold, "_claim_once") if where == "a claim" else (hold.owner.row, "_is_alive")
    send = getattr(owner, name)

    def send_later(*given: Any) -> Any:
        gc.collect()
        return send(*given)

    gc.disable()
    try:
        setattr(owner, name, send_later)
        del loop, cycle
        claim = threading.Thread(target=queue.claim, args=(1,), daemon=True)
        if where == "a claim":
            claim.start()
            claim.join(20)
        backend.wait_for(lambda: forgotten() is None, "it is collected")
    finally:
        gc.enable()
    backend.wait_for(lambda: backend.rows()[0]["status"] == "unclaimed", "what it had claimed is released", 20.0)
    assert not claim.is_alive()

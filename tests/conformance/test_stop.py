"""`queue.stop(timeout=)`: what a queue still holds at its deadline is released; its handler runs on, and is refused."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from claimjobs import Batch, Job, Queue
from claimjobs.errors import BatchRolledBack
from claimjobs.options import HoldKind
from claimjobs.signals import Cancelled, cancel_here
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import hold_of
from tests.conformance.test_work import EXECUTORS, done, handler_of

HOLDS: tuple[HoldKind, ...] = ("lease", "transaction")


def claimable(backend: Backend) -> list[str]:
    """The jobs that another consumer gets now. It gives them back."""
    with backend.queue() as other:
        batch = other.claim(1_000)
        found = names(batch)
        batch.settle()
    return found


def free(backend: Backend, count: int) -> None:
    backend.wait_for(lambda: len(claimable(backend)) == count, f"{count} jobs are free")


def refused(queue: Queue, batch: Batch) -> bool:
    """Whether no outcome of a batch is written any more."""
    batch.done()
    if queue.settings.by_lease:
        batch.settle()
        return names(batch.lost) == names(batch)
    with pytest.raises(BatchRolledBack):
        batch.settle()
    return True


@pytest.mark.parametrize("hold", HOLDS)
def test_an_open_batch_is_released_at_the_deadline_and_its_outcomes_are_refused(
    backend: Backend, hold: HoldKind
) -> None:
    queue = backend.queue(hold=hold)
    queue.enqueue(jobs(3))
    batch = queue.claim(2)
    queue.stop(timeout=0)
    free(backend, 3)
    assert len(queue.claim(1)) == 0
    assert refused(queue, batch)
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [("unclaimed", 0, 0)] * 3
    assert queue.report.done == 0


@pytest.mark.parametrize("hold", HOLDS)
def test_a_loop_in_a_thread_ends_and_holds_nothing(backend: Backend, hold: HoldKind) -> None:
    """Also while the handler of the first batch still runs."""
    queue = backend.queue(hold=hold)
    queue.enqueue(jobs(50))
    begun, gate, lost = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        for batch in queue.batches(5):
            begun.set()
            gate.wait(120)
            if refused(queue, batch):
                lost.extend(names(batch))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(120)
        queue.stop(timeout=0)
        free(backend, 50)
    finally:
        gate.set()
        thread.join(120)
    assert not thread.is_alive()
    assert lost == [row["d"] for row in jobs(5)]
    free(backend, 50)


def test_a_batch_that_is_settled_in_time_is_done(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(7))
    for batch in queue.batches(3):
        with batch:
            queue.stop(timeout=30)
            batch.done()
    assert Counter(row["status"] for row in backend.rows()) == {"unclaimed": 4}
    assert (queue.report.done, queue.report.released) == (3, 0)


def told(first: float | None, second: float | None) -> Callable[[Queue], None]:
    def tell(queue: Queue) -> None:
        queue.stop(first)
        queue.stop(second)

    return tell


@pytest.mark.parametrize("tell", [told(0.05, 3600), told(3600, 0.05), told(None, 0.05), told(0.05, None)])
def test_of_several_deadlines_the_earliest_counts(anywhere: Backend, tell: Callable[[Queue], None]) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(2))
    with queue.claim(2) as batch:
        tell(queue)
        free(anywhere, 2)
    assert len(batch.lost) == 2


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, math.inf])
def test_a_timeout_that_is_none_is_refused_and_stops_nothing(anywhere: Backend, timeout: float) -> None:
    queue = anywhere.queue()
    with pytest.raises(ValueError, match="timeout="):
        queue.stop(timeout)
    assert not queue.stopping


def test_without_a_timeout_nothing_is_released(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(2))
    with queue.claim(1) as batch:
        queue.stop()
        batch.done()
    assert (batch.lost, len(queue.claim(1))) == ((), 1)


def test_a_settle_that_is_being_made_is_finished(backend: Backend) -> None:
    """The deadline waits for it: a commit is never left in doubt."""
    settling, gate = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        settling.set()
        gate.wait(120)

    queue = backend.queue(hold="transaction", on_done=wait)
    queue.enqueue(jobs(2))
    batch = queue.claim(2)
    batch.done()
    settle = threading.Thread(target=batch.settle)
    settle.start()
    try:
        assert settling.wait(120)
        queue.stop(timeout=0)
        backend.wait_for(lambda: queue._control.expired, "the deadline is over")
    finally:
        gate.set()
        settle.join(120)
    assert (backend.rows(), queue.report.done) == ([], 2)


def test_what_was_claimed_with_a_settle_at_the_deadline_is_released(backend: Backend) -> None:
    """`stop` came after the settle had begun."""
    queue = backend.queue()
    queue.enqueue(jobs(6))
    batches = queue.batches(3)
    batch = next(batches)
    batch.done()
    hold: Any = hold_of(queue)
    take_along = hold._settle_and_claim

    def late(*arguments: Any) -> Any:
        queue._control.expire()
        return take_along(*arguments)

    hold._settle_and_claim = late
    batch.__exit__(None, None, None)
    assert [row["status"] for row in backend.rows()] == ["unclaimed"] * 3
    assert list(batches) == []


@pytest.mark.parametrize("hold", HOLDS)
def test_a_claim_that_is_being_made_at_the_deadline_returns_nothing(backend: Backend, hold: HoldKind) -> None:
    """Its jobs are released. A handler would work on jobs that others have."""
    queue = backend.queue(hold=hold)
    queue.enqueue(jobs(3))
    made: Any = queue._consumer.hold
    claim = made._claim_until_over

    def late(*given: Any) -> Any:
        claimed = claim(*given)
        queue.stop(timeout=0)
        backend.wait_for(lambda: queue._control.expired, "the deadline is over")
        return claimed

    made._claim_until_over = late
    assert len(queue.claim(3)) == 0
    free(backend, 3)


def test_the_jobs_of_a_process_that_is_about_to_be_killed_are_released_uncharged(backend: Backend) -> None:
    queue, supervisor = backend.queue(), backend.queue()
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    me = queue.owner_id
    assert supervisor.release_owner(me) == 1
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [("unclaimed", 0, 0)]
    assert me not in [owner.id for owner in supervisor.stats().owners]
    assert refused(queue, batch)
    assert supervisor.release_owner(me) == 0


def test_who_waits_for_the_last_jobs_lets_their_threads_have_the_processor(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(1))

    def handler(_: Job) -> None:
        queue.stop()
        threading.Event().wait(2.0)

    assert queue.owner_id
    before = time.thread_time()
    queue.work(handler, concurrency=1)
    assert time.thread_time() - before < 0.2, "it uses little of these two seconds"


@EXECUTORS
def test_who_is_cancelled_at_the_end_of_a_settle_releases_what_that_has_claimed(
    backend: Backend, executor: str
) -> None:
    """`Cancelled` waits for the commit."""
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(9))
    hold: Any = hold_of(queue)
    settle, claimed = hold.settle, list[int]()

    def interrupted(batch: Any, outcomes: Any, next_claim: Any = None) -> Any:
        lost = settle(batch, outcomes, next_claim)
        if next_claim is not None and not claimed:
            claimed.append(len(next_claim.claimed.jobs))
            raise Cancelled
        return lost

    hold.settle = interrupted
    with pytest.raises(Cancelled):
        queue.work(handler_of(executor, lambda _: None), concurrency=1, size=2)
    assert claimed == [2]
    assert done(backend)["claimed"] == 0


class Interrupted:
    """A lock after whose acquisition the main thread is cancelled at once, as by a signal at that moment."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, timeout: float = -1) -> bool:
        got = bool(self._lock.acquire(timeout=timeout))
        if threading.current_thread() is threading.main_thread():
            cancel_here()
        return got

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.__enter__()
        if threading.current_thread() is threading.main_thread():
            cancel_here()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)


@pytest.mark.parametrize("way", ["claim", "end of a loop"])
def test_who_is_cancelled_with_a_lock_in_hand_gives_it_back(backend: Backend, way: str) -> None:
    """Else the settles of the other jobs in hand would wait for it for ever, and so would a release."""
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(4))
    hold: Any = hold_of(queue)
    loop = queue.batches(1)
    with next(loop) as batch:
        batch.done()
    lock, hold._one_at_a_time = hold._one_at_a_time, Interrupted(hold._one_at_a_time)
    with pytest.raises(Cancelled):
        queue.claim(1) if way == "claim" else loop.close()
    hold._one_at_a_time = lock
    assert lock.acquire(timeout=10)  # a heartbeat has it for a moment
    lock.release()
    assert len(queue.claim(1)) == 1
    assert done(backend)["claimed"] == (2 if way == "claim" else 1), "with what the last settle has claimed"


def test_who_is_cancelled_while_it_closes_a_connection_leaves_it_to_others(backend: Backend) -> None:
    connector: Any = backend.queue()._access.connector().__enter__()
    lock, connector._lock = connector._lock, Interrupted(connector._lock)
    with pytest.raises(Cancelled):
        connector.close()
    assert not lock._queue

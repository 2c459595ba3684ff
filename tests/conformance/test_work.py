"""`queue.work`: many jobs at once in one process, in threads or in tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from claimjobs import Fail, Job, Queue, Retry, RetryLater, make, side_car_tables
from claimjobs.errors import BadArgument, BadHandler, NothingDone
from claimjobs.options import Liveness
from claimjobs.signals import Cancelled
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import declare_dead, hold_of

DEADLINE = 120.0
QUICK = Liveness(lease=2.0)
EXECUTORS = pytest.mark.parametrize(
    "executor", ["threads", pytest.param("tasks", marks=pytest.mark.pair("an async def runs in an event loop"))]
)

Body = Callable[[Job], Any]
"""What a handler does; an iterator is done step by step, and may be cancelled between two."""


def handler_of(executor: str, body: Body) -> Callable[[Job], Any]:
    """The same handler for each executor."""

    def plain(job: Job) -> None:
        for _ in body(job) or ():
            time.sleep(0.002)

    async def awaited(job: Job) -> None:
        for _ in body(job) or ():
            await asyncio.sleep(0.002)

    return awaited if executor == "tasks" else plain


def until(event: threading.Event) -> Iterator[None]:
    """The steps of a handler that waits for an event."""
    ends = time.monotonic() + DEADLINE
    while not event.is_set() and time.monotonic() < ends:
        yield


@contextmanager
def working(queue: Queue, executor: str, body: Body, **options: Any) -> Iterator[Future[None]]:
    """A thread that works while the block lasts, and is stopped at its end."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(queue.work, handler_of(executor, body), **{"poll": 0.05, **options})
        try:
            yield future
        finally:
            queue.stop()
            future.result(DEADLINE)


def done(backend: Backend) -> Counter[Any]:
    return Counter(row["status"] for row in backend.rows())


@EXECUTORS
@pytest.mark.parametrize(
    "kind",
    [
        {},
        pytest.param({"claims": "batches"}, marks=pytest.mark.pair("jobs are taken out of a claim row")),
        pytest.param({"side_car": True}, marks=pytest.mark.pair("outcomes are written in a second table")),
    ],
    ids=["rows", "batches", "side-car"],
)
def test_each_job_is_handled_once_and_no_more_at_once_than_was_said(
    backend: Backend, executor: str, kind: dict[str, Any]
) -> None:
    backend.make()
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.queue(on_done="delete", **kind)
    queue.enqueue(jobs(157))
    handled, now, most = Counter[str](), set[str](), [0]

    def body(job: Job) -> Iterator[None]:
        now.add(job.d)
        most.append(len(now))
        yield
        handled[job.d] += 1
        now.discard(job.d)

    queue.work(handler_of(executor, body), concurrency=7, size=20, drain=True)
    assert handled == Counter(row["d"] for row in jobs(157))
    assert 1 < max(most) <= 7
    assert backend.rows() == []
    assert (queue.report.done, queue.report.lost, queue.report.released) == (157, 0, 0)
    assert not hold_of(queue).held


TENANT = contextvars.ContextVar("TENANT", default="nobody")


@EXECUTORS
def test_each_job_begins_with_the_context_variables_of_the_caller(anywhere: Backend, executor: str) -> None:
    queue, seen = anywhere.queue(), list[str]()
    queue.enqueue(jobs(5))

    def body(job: Job) -> None:
        seen.append(TENANT.get())
        TENANT.set(job.d)

    token = TENANT.set("ours")
    queue.work(handler_of(executor, body), concurrency=2, drain=True)
    TENANT.reset(token)
    assert seen == ["ours"] * 5


@EXECUTORS
def test_a_slow_job_delays_no_other(backend: Backend, executor: str) -> None:
    queue, gate = backend.queue(on_done="keep"), threading.Event()
    queue.enqueue(jobs(60))

    def body(job: Job) -> Iterator[None]:
        if job.d == "0003":
            yield from until(gate)

    with working(queue, executor, body, concurrency=3, size=5):
        backend.wait_for(lambda: done(backend) == {"done": 59, "claimed": 1}, "all others are settled")
        gate.set()
        backend.wait_for(lambda: done(backend) == {"done": 60}, "it is settled, too")


@EXECUTORS
def test_what_is_held_is_bounded_and_what_was_not_begun_is_released_at_the_end(backend: Backend, executor: str) -> None:
    queue, gate, begun = backend.queue(on_done="keep"), threading.Event(), list[str]()
    queue.enqueue(jobs(60))

    def body(job: Job) -> Iterator[None]:
        begun.append(job.d)
        yield from until(gate)

    with working(queue, executor, body, concurrency=3, size=5) as future:
        backend.wait_for(lambda: len(begun) == 3 and done(backend)["claimed"] == 10, "two claims are held")
        queue.stop()
        backend.wait_for(lambda: done(backend)["claimed"] == 3, "what was not begun is released")
        assert not future.done()
        gate.set()
    assert done(backend) == {"done": 3, "unclaimed": 57}
    assert sorted(begun) == ["0000", "0001", "0002"]
    assert {row["attempts"] for row in backend.rows()} == {0}


@EXECUTORS
def test_a_job_that_raises_fails_alone_and_says_how(backend: Backend, executor: str) -> None:
    told: dict[str, list[Any]] = {"retry": [], "dead": []}
    queue = backend.queue(
        retry=Retry(attempts=3, base=60),  # no job is due again before a slow drain has ended
        on_done="keep",
        on_retry=lambda job, error: told["retry"].append((job.d, str(error))),
        on_dead=lambda job, error: told["dead"].append((job.d, str(error))),
    )
    queue.enqueue(jobs(8))
    raises: dict[str, BaseException] = {
        "0001": ValueError("wrong"),
        "0002": RetryLater(3_600, "429"),
        "0003": Fail("no such address", retry=False),
        "0004": SystemExit(3),
        "0005": asyncio.CancelledError(),
        "0006": RetryLater(float("nan")),
    }

    def body(job: Job) -> None:
        if job.d in raises:
            raise raises[job.d]

    queue.work(handler_of(executor, body), concurrency=4, drain=True)
    rows = {row["d"]: row for row in backend.rows()}
    assert {name for name, row in rows.items() if row["status"] == "done"} == {"0000", "0007"}
    assert [name for name, row in rows.items() if row["status"] == "dead"] == ["0003"]
    assert {rows[name]["attempts"] for name in raises} == {1}
    assert "ValueError: wrong" in rows["0001"]["last_error"]
    wait = rows["0002"]["run_at"] - rows["0001"]["run_at"]
    assert timedelta(minutes=50) < wait < timedelta(hours=1)
    assert told["dead"] == [("0003", "no such address")]
    assert sorted(name for name, _ in told["retry"]) == ["0001", "0002", "0004", "0005", "0006"]
    assert queue.report.suspects == 0


@EXECUTORS
def test_after_the_timeout_of_a_stop_the_jobs_are_released_and_tasks_are_cancelled(
    backend: Backend, executor: str
) -> None:
    queue, gate, begun, cancelled = backend.queue(on_done="keep"), threading.Event(), list[str](), list[str]()
    queue.enqueue(jobs(9))

    def body(job: Job) -> Iterator[None]:
        begun.append(job.d)
        try:
            yield from until(gate)
        except GeneratorExit:
            cancelled.append(job.d)
            raise

    with working(queue, executor, body, concurrency=2, size=3) as future:
        backend.wait_for(lambda: done(backend)["claimed"] == 6, "two claims are held")
        backend.wait_for(lambda: len(begun) == 2, "two jobs have begun")
        queue.stop(timeout=0)
        future.result(DEADLINE)
        assert done(backend) == {"unclaimed": 9}
    gate.set()
    assert {row["attempts"] for row in backend.rows()} == {0}
    assert queue.report.done == 0
    if executor == "tasks":
        assert sorted(cancelled) == ["0000", "0001"]


@EXECUTORS
def test_a_job_that_hangs_is_given_to_others_and_the_others_go_on(backend: Backend, executor: str) -> None:
    queue = backend.queue(liveness=Liveness(lease=2.0, max_batch_time=1.0), on_done="keep")
    gate, hangs = threading.Event(), list[None]()
    queue.on_hang = lambda: hangs.append(None)
    queue.enqueue(jobs(40))

    def body(job: Job) -> Iterator[None]:
        if job.d in ("0001", "0002") and not job.attempts:
            yield from until(gate)

    with working(queue, executor, body, concurrency=2, size=4):
        backend.wait_for(lambda: done(backend)["done"] == 40, "the two were given to others, and so were all places")
        gate.set()
    assert {row["d"]: row["attempts"] for row in backend.rows() if row["attempts"]} == {"0001": 1, "0002": 1}
    assert len(hangs) == 2


@EXECUTORS
def test_while_the_queue_is_paused_nothing_is_begun(backend: Backend, executor: str) -> None:
    queue, operator = backend.queue(liveness=QUICK, on_done="keep"), backend.queue()
    gate, begun = threading.Event(), list[str]()
    queue.enqueue(jobs(20))

    def body(job: Job) -> Iterator[None]:
        begun.append(job.d)
        yield from until(gate)

    with working(queue, executor, body, concurrency=2, size=3):
        backend.wait_for(lambda: len(begun) == 2, "two have begun")
        operator.pause()
        backend.wait_for(lambda: done(backend)["claimed"] == 2, "what was not begun is released")
        gate.set()
        backend.wait_for(lambda: done(backend) == {"done": 2, "unclaimed": 18}, "those two are done, and no other")
        operator.resume()
        backend.wait_for(lambda: done(backend) == {"done": 20}, "it goes on")


@EXECUTORS
def test_an_outcome_of_an_owner_that_was_declared_dead_is_not_written(
    backend: Backend, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, other, gate = backend.queue(on_done="keep"), backend.queue(on_done="keep"), threading.Event()
    queue.enqueue(jobs(6))
    with working(queue, executor, lambda _: until(gate), concurrency=2, size=2):
        backend.wait_for(lambda: done(backend)["claimed"] == 6, "all are claimed")
        declare_dead(backend, queue.owner_id)
        other.reclaim()
        with other.claim(6) as batch:
            assert len(batch) == 3, "suspects: half of them at most"
            gate.set()
            backend.wait_for(lambda: "lost to another owner" in caplog.text, "it was told")
            batch.done()
        assert len(batch.lost) == 0
        backend.wait_for(lambda: done(backend) == {"done": 6}, "it claims the others under a new id")
    assert queue.report.done == 3


@EXECUTORS
def test_a_drain_waits_for_what_is_in_hand_and_for_retries_if_that_is_said(backend: Backend, executor: str) -> None:
    queue = backend.queue(retry=Retry(attempts=9, base=0.2, cap=0.2), on_done="keep")
    queue.enqueue(jobs(5))

    def body(job: Job) -> None:
        if job.d == "0002" and job.attempts < 2:
            raise ValueError

    queue.work(handler_of(executor, body), concurrency=3, drain="retries", poll=0.05)
    assert done(backend) == {"done": 5}
    assert queue.report.retried == 2


@EXECUTORS
def test_a_table_that_stores_no_failure_ends_a_drain(backend: Backend, executor: str) -> None:
    backend.make()
    backend.run("ALTER TABLE jobs DROP COLUMN attempts")
    queue = backend.bare_queue(on_done="delete")
    queue.enqueue(jobs(2))

    def body(job: Job) -> None:
        if job.d == "0001":
            raise ValueError("wrong")

    if executor == "tasks":
        queue.drain()
    with pytest.raises(NothingDone, match="attempts"):
        queue.work(handler_of(executor, body), concurrency=2, poll=0.02, drain=executor == "threads")
    assert [row["status"] for row in backend.rows()] == ["unclaimed"]


@EXECUTORS
def test_who_is_cancelled_releases_everything_at_once(backend: Backend, executor: str) -> None:
    """As by a second signal: `Cancelled` is raised in the thread that waits."""
    queue, gate = backend.queue(on_done="keep"), threading.Event()
    queue.enqueue(jobs(9))
    woken = queue._control.woken

    def interrupted(seconds: float) -> bool:
        if done(backend)["claimed"] == 6:
            raise Cancelled
        return woken(seconds)

    queue._control.woken = interrupted  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        queue.work(handler_of(executor, lambda _: until(gate)), concurrency=2, size=3)
    assert done(backend) == {"unclaimed": 9}
    gate.set()
    assert {row["attempts"] for row in backend.rows()} == {0}


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "3"])
def test_a_number_that_cannot_be_meant_is_refused(anywhere: Backend, concurrency: Any) -> None:
    with pytest.raises(BadArgument, match=r"concurrency=.*: give a whole number from 1"):
        anywhere.queue().work(print, concurrency=concurrency)


def test_a_transaction_handles_one_job_after_the_other(anywhere: Backend) -> None:
    with pytest.raises(BadArgument, match="handles one job after the other: loop over `batches`"):
        anywhere.queue(hold="transaction").work(print)
    with pytest.raises(BadArgument, match="block the event loop"):
        asyncio.run(anext(anywhere.queue(hold="transaction").abatches()))


def test_what_is_no_handler_is_refused(anywhere: Backend) -> None:
    def generates(job: Job) -> Iterator[Job]:
        yield job

    async def inside() -> None:
        anywhere.queue().work(print)

    for handler, says in ((generates, "is a generator function"), (3, "is no function but int")):
        with pytest.raises(BadHandler, match=says):
            anywhere.queue().work(handler)  # type: ignore[arg-type]
    with pytest.raises(BadHandler, match=r"asyncio.to_thread\(queue.work, ...\)` within `stop_on_signals\(queue\)`"):
        asyncio.run(inside())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_that_returns_a_coroutine_fails_its_job(anywhere: Backend, is_async: bool) -> None:
    async def later() -> None: ...

    async def forgets_to_await(_: Job) -> Any:
        return later()

    queue = anywhere.queue()
    queue.enqueue(jobs(1))
    queue.work(forgets_to_await if is_async else lambda _: later(), drain=True)
    assert "returned a coroutine, which nothing runs" in anywhere.rows()[0]["last_error"]


def test_a_task_of_a_handlers_own_that_exits_fails_its_job_alone(anywhere: Backend) -> None:
    """asyncio lets such an error out of the loop."""

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(job: Job) -> None:
        if job.d == "0001":
            await asyncio.gather(leave(), asyncio.sleep(0))
        await asyncio.sleep(0.01)

    queue = anywhere.queue(on_done="keep", retry=Retry(attempts=1))
    queue.enqueue(jobs(6))
    queue.work(handle, concurrency=3, drain=True)
    assert done(anywhere) == {"done": 5, "dead": 1}


@EXECUTORS
def test_the_time_without_work_begins_when_the_last_job_has_ended(anywhere: Backend, executor: str) -> None:
    queue, begun = anywhere.queue(retry=Retry(attempts=2, base=0.0, cap=0.0)), list[float]()

    def fail_late(job: Job) -> Iterator[None]:
        begun.append(time.monotonic())
        while time.monotonic() < begun[-1] + 1.2:
            yield
        raise ValueError("no")

    queue.enqueue(jobs(1))
    queue.work(handler_of(executor, fail_late), idle=1.0, poll=0.05)
    assert len(begun) == 2  # its retry was found, too


def test_a_handler_that_blocks_its_loop_is_told_once_by_its_name(
    anywhere: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async def blocks(job: Job) -> None:
        while not [record for record in caplog.records if record.__dict__.get("event") == "loop_blocked"]:
            time.sleep(1.3)
            await asyncio.sleep(0.01)

    queue = anywhere.queue()
    queue.enqueue(jobs(3))
    queue.work(blocks, concurrency=3, drain=True)
    [record] = [record for record in caplog.records if record.__dict__.get("event") == "loop_blocked"]
    assert "blocks kept its event loop from all other jobs" in record.message


def test_the_batches_of_a_pool_are_measured(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.measure_batches()
    queue.enqueue(jobs(30))
    queue.work(lambda _: None, concurrency=3, size=10, drain=True)
    times = queue.report.times
    assert sum(times.claimed_to_settled.counts) == 30
    assert times.batch_jobs.sum == 30

"""`queue.work` whose event loop a handler stops, empties or blocks, and jobs that nobody is to begin any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from claimjobs import Job, Retry
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.test_work import DEADLINE, done


def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


def cancel_all_others() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


@pytest.mark.parametrize("end", [stop_the_loop, cancel_all_others])
def test_a_handler_that_ends_the_event_loop_of_a_pool_ends_no_pool(anywhere: Backend, end: Callable[[], None]) -> None:
    async def handle(job: Job) -> None:
        if job.d == "0002" and not job.attempts:
            end()
        await asyncio.sleep(0.01)

    queue = anywhere.queue(on_done="keep", retry=Retry(attempts=3, base=0.0))
    queue.enqueue(jobs(9))
    queue.work(handle, concurrency=3, drain=True)
    assert done(anywhere) == {"done": 9}


def test_while_a_handler_blocks_the_event_loop_others_get_the_jobs_that_wait(backend: Backend) -> None:
    gate = threading.Event()

    async def blocks(job: Job) -> None:
        if not job.attempts:
            gate.wait(DEADLINE)

    queue = backend.queue(on_done="keep", liveness=Liveness(lease=2.0, max_batch_time=1.0))
    queue.enqueue(jobs(8))
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(queue.work, blocks, concurrency=2, size=4, poll=0.05)
        try:
            backend.wait_for(lambda: done(backend)["claimed"] > 2, "more are claimed than begun")
            backend.wait_for(lambda: done(backend) == {"unclaimed": 8}, "others can have all")
        finally:
            queue.stop()
            gate.set()
            future.result(DEADLINE)
    assert sum(row["attempts"] for row in backend.rows()) <= 2


def test_after_a_stop_no_handler_begins(anywhere: Backend) -> None:
    begun: list[str] = []

    def handle(job: Job) -> None:
        begun.append(job.d)
        queue.stop()

    queue = anywhere.queue(on_done="keep")
    queue.enqueue(jobs(9))
    queue.work(handle, concurrency=1)
    assert len(begun) == 1
    assert done(anywhere) == {"done": 1, "unclaimed": 8}

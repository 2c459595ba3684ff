"""A Queue in asyncio: `abatches`, and `async with batch`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from claimjobs import Batch, Retry
from claimjobs.callables import CALLS
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import hold_of
from tests.conformance.test_work import DEADLINE, done


def awaits(test: Callable[[Backend], Awaitable[None]]) -> Callable[[Backend], None]:
    """A test that is a coroutine."""

    def run(backend: Backend) -> None:
        asyncio.run(test(backend))  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@awaits
async def test_batches_are_settled_in_asyncio_as_elsewhere(backend: Backend) -> None:
    queue, seen = backend.queue(on_done="keep", retry=Retry(attempts=1)), list[list[str]]()
    queue.enqueue(jobs(7))
    async for batch in queue.abatches(3, drain=True):
        async with batch:
            seen.append([])
            for job in batch:
                await asyncio.sleep(0)
                seen[-1].append(job.d)
                if job.d == "0004":
                    batch.fail(job, "wrong")
    assert seen == [["0000", "0001", "0002"], ["0003", "0004", "0005"], ["0006"]]
    assert done(backend) == {"done": 6, "dead": 1}


async def spoil(batch: Batch) -> None:
    async with batch:
        batch.done(batch[0])
        raise ValueError("wrong")


@awaits
async def test_an_exception_in_the_block_is_about_the_jobs_without_an_outcome(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(3))
    batch = await anext(queue.abatches(3))
    with pytest.raises(ValueError, match="wrong"):
        await spoil(batch)
    assert done(backend) == {"done": 1, "unclaimed": 2}
    assert queue.report.suspects == 2


@awaits
async def test_a_loop_that_waits_is_cancelled_at_once_and_holds_nothing(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(3))
    settled = asyncio.Event()

    async def consume() -> None:
        async for batch in queue.abatches(2, poll=60):
            async with batch:
                batch.done()
            if queue.report.done == 3:
                settled.set()

    task = asyncio.create_task(consume())
    await asyncio.wait_for(settled.wait(), DEADLINE)
    looking = backend.bare_queue()

    def is_asleep() -> bool:
        return [owner.asleep is not None for owner in looking.stats().owners] == [True]

    await asyncio.to_thread(backend.wait_for, is_asleep, "it sleeps, for longer than this test waits")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, DEADLINE)
    assert done(backend) == {"done": 3}
    queue.enqueue(jobs(1))
    assert len(queue.claim(1)) == 1, "the Queue can be used"


@awaits
async def test_a_loop_that_is_cancelled_while_it_claims_releases_the_batch_at_once(backend: Backend) -> None:
    queue, claimed, gate = backend.queue(on_done="keep"), threading.Event(), threading.Event()
    queue.enqueue(jobs(3))
    hold: Any = hold_of(queue)
    claim = hold.claim

    def slow(*given: Any) -> Any:
        found = claim(*given)
        claimed.set()
        gate.wait(DEADLINE)
        return found

    hold.claim = slow

    async def consume() -> None:
        async for _ in queue.abatches(3):
            pytest.fail("nobody waits for it")

    task = asyncio.create_task(consume())
    await asyncio.to_thread(claimed.wait, DEADLINE)
    task.cancel()
    await asyncio.sleep(0.1)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done(backend) == {"unclaimed": 3}


@awaits
async def test_a_settle_and_an_enqueue_need_no_thread_that_calls_of_users_have(backend: Backend) -> None:
    queue, gate = backend.queue(on_done="keep"), threading.Event()
    with ThreadPoolExecutor(1) as only:
        asyncio.get_running_loop().set_default_executor(only)
        theirs = asyncio.create_task(asyncio.to_thread(gate.wait, DEADLINE))

        async def work() -> None:
            await queue.aenqueue(jobs(3))
            async for batch in queue.abatches(2, drain=True):
                async with batch:
                    batch.done()

        ours = asyncio.create_task(work())
        await asyncio.wait([ours, theirs], return_when=asyncio.FIRST_COMPLETED)
        assert ours.done()
        assert not theirs.done()
        gate.set()
        await ours
    assert done(backend) == {"done": 3}


@awaits
async def test_an_enqueue_that_has_not_begun_is_cancelled_at_once(backend: Backend) -> None:
    queue, gate = backend.queue(), threading.Event()

    def rows(name: str) -> Iterator[dict[str, str]]:
        gate.wait(DEADLINE)
        yield {"d": name, "e": ""}

    tasks = [asyncio.create_task(queue.aenqueue(rows(f"{number:02}"))) for number in range(CALLS + 1)]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in tasks] == [False] * CALLS + [True]
    gate.set()
    await asyncio.gather(*tasks[:-1])
    assert sorted(row["d"] for row in backend.rows()) == [f"{number:02}" for number in range(CALLS)]

"""chancy with its `AsyncExecutor`, `eager_polling`, and a queue's `concurrency` as the batch size.

https://tkte.ch/chancy/

- `Chancy.Executor.Async`: for asyncio jobs, "without the high overhead of new processes or threads", the fastest of its
  executors.
- `concurrency`: how many jobs a worker takes at once. 500 was fastest here, of 20, 100, 500; its default is 100.
- `eager_polling=True`: "immediately poll for new jobs after a job completes, rather than waiting for the polling
  interval", which is 5 s.
- `send_outgoing_interval = 0.05`: what is done is written in batches, by default each second, which would add up to
  one to every run: "the frequency of these updates can be controlled by setting the attribute on the worker". A job is
  done here when that has happened.
- No INFO logging: two lines a job otherwise.
- Jobs are enqueued with `push_many`, a thousand in a transaction.
"""

from __future__ import annotations

import asyncio
import logging

from chancy import Chancy, Queue, Worker, job
from chancy.app import setup_default_logger

from benchmarks.peers.driver import Line, Order, did

SECONDS_TO_SEND = 0.05


async def handle(*, d: str, e: str) -> None:
    did(d)


task = job(queue="default")(handle)


def fill(order: Order) -> None:
    asyncio.run(_fill(order))


async def _fill(order: Order) -> None:
    async with Chancy(order.dsn) as chancy:
        await chancy.migrate()
        await chancy.declare(
            Queue("default", executor=Chancy.Executor.Async, concurrency=order.batch, eager_polling=True)
        )
        jobs = [task.job.with_kwargs(d=d, e=e) for d, e in order.read()]
        async for _ in chancy.push_many(jobs):
            pass


def work(order: Order, line: Line) -> None:
    asyncio.run(_work(order, line))


async def _work(order: Order, line: Line) -> None:
    async with Chancy(order.dsn, log=setup_default_logger(logging.WARNING)) as chancy:
        line.ready()
        worker = Worker(chancy, register_signal_handlers=False)
        worker.send_outgoing_interval = SECONDS_TO_SEND
        async with worker:
            await asyncio.to_thread(line.stop.wait)

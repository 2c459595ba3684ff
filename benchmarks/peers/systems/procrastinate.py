"""procrastinate with psycopg 3, `concurrency=10`, `delete_jobs="successful"`.

It takes one job in a statement and settles one in another: its batch size is 1.

- `concurrency`: asynchronous jobs at the same time, with a pool of as many connections, as
  https://procrastinate.readthedocs.io/en/stable/howto/production/connections.html asks for. The default of 1 waits
  for each commit; 5, 10 and 20 did not differ by more than the noise here.
- `delete_jobs="successful"`: as claimjobs does, and the table stays small
  (https://procrastinate.readthedocs.io/en/stable/howto/production/delete_finished_jobs.html).
- An `async def` task: a plain function would go through a pool of threads.
- `wait=False` ends a worker when it has caught up with the queue.
- Jobs are enqueued with `batch_defer_async`, a thousand at a time.
"""

from __future__ import annotations

import asyncio
import logging

import procrastinate

from benchmarks.peers.driver import Line, Order, did

CONCURRENCY = 10


def _app(order: Order) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=order.dsn, min_size=CONCURRENCY, max_size=CONCURRENCY + 2)
    return procrastinate.App(connector=connector)


def fill(order: Order) -> None:
    asyncio.run(_fill(order))


async def _fill(order: Order) -> None:
    async with _app(order).open_async() as app:
        await app.schema_manager.apply_schema_async()
        job = app.configure_task("job")
        for chunk in order.chunks():
            await job.batch_defer_async(*({"d": d, "e": e} for d, e in chunk))


def work(order: Order, line: Line) -> None:
    logging.disable(logging.INFO)  # a line a job otherwise, where somebody looks
    asyncio.run(_work(order, line))


async def _work(order: Order, line: Line) -> None:
    async def handle(d: str, e: str) -> None:
        did(d)

    async with _app(order).open_async() as app:
        app.task(name="job")(handle)
        line.ready()
        await app.run_worker_async(
            concurrency=CONCURRENCY, wait=False, delete_jobs="successful", install_signal_handlers=False
        )
        line.stop.wait()

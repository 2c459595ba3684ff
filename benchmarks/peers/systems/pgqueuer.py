"""pgqueuer with asyncpg, `run(batch_size=500)`, in the drain mode that its own benchmark has.

- asyncpg, one direct connection a worker: 1.7 times psycopg by its own figures, and "always use a direct asyncpg
  connection" for the manager (https://pgqueuer.readthedocs.io/en/latest/comparisons/benchmarks/,
  https://pgqueuer.readthedocs.io/en/latest/guides/performance-tuning/).
- `batch_size`: "increase when jobs are short-lived"; the default is 10. 500 and 1,000 were fastest here, of 10, 100,
  500, 1,000.
- uvloop, as its benchmark tool has it; no limit on concurrent tasks, which is the default and the cheaper query.
- The tables as `pgq install` makes them, durability `durable` (the default: the others lose jobs in a crash), then
  `pgq autovac`, as its checklist says.
- Jobs are enqueued with lists, a thousand in a statement.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers.driver import Line, Order, did


def fill(order: Order) -> None:
    uvloop.run(_fill(order))


async def _fill(order: Order) -> None:
    connection = await asyncpg.connect(order.dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    for chunk in order.chunks():
        payloads = [f"{d} {e}".encode() for d, e in chunk]
        await queries.enqueue(["job"] * len(chunk), payloads, [0] * len(chunk))
    await connection.close()


def work(order: Order, line: Line) -> None:
    uvloop.run(_work(order, line))


async def _work(order: Order, line: Line) -> None:
    async def handle(job: Any) -> None:
        d, _ = job.payload.decode().split()
        did(d)

    connection = await asyncpg.connect(order.dsn)
    queue = PgQueuer(AsyncpgDriver(connection))
    queue.entrypoint("job")(handle)
    line.ready()
    await queue.run(batch_size=order.batch, mode=QueueExecutionMode.drain)
    line.stop.wait()

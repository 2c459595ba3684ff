"""oban (oban-py) with uvloop, one queue, its `limit` as the batch size.

https://oban.pro/docs/py

- A queue's limit is how many jobs it runs, and so fetches, at once. 500 was fastest here, of 20, 100, 200, 500.
- What is done is written when the next jobs are fetched; bulk writing of it is in the licensed Oban Pro only.
- uvloop, as its own `oban start` has it. The pool has its default size.
- A job that is done stays in the table for a day; nothing deletes it at once.
- Jobs are enqueued with `enqueue_many`, a thousand in a statement.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from benchmarks.peers.driver import Line, Order, did


class Work:
    async def process(self, job: Any) -> None:
        did(job.args["d"])


Worker = worker(queue="default")(Work)


def fill(order: Order) -> None:
    uvloop.run(_fill(order))


async def _fill(order: Order) -> None:
    pool = await Oban.create_pool(order.dsn)
    await install(pool)
    oban = Oban(pool=pool)
    for chunk in order.chunks():
        await oban.enqueue_many([Worker.new({"d": d, "e": e}) for d, e in chunk])
    await pool.close()


def work(order: Order, line: Line) -> None:
    uvloop.run(_work(order, line))


async def _work(order: Order, line: Line) -> None:
    pool = await Oban.create_pool(order.dsn)
    oban = Oban(pool=pool, queues={"default": order.batch}, node=f"node-{order.number}")
    line.ready()
    async with oban:
        await asyncio.to_thread(line.stop.wait)
    await pool.close()

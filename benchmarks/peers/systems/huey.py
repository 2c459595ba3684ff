"""huey with `SqlHuey`, its storage in a SQL database; a consumer with one thread in each process.

https://huey.readthedocs.io/en/latest/contrib.html#sql-huey,
https://huey.readthedocs.io/en/latest/consumer.html

- It takes one job at a time: its batch size is 1.
- A process for each worker: for a no-op handler "threads" would share one interpreter.
- `results=False`: results are not stored, so that a job costs one transaction.
- `periodic=False`: no thread that looks for periodic tasks.
- A job is deleted when it is fetched, before its handler is called: huey loses it when the process dies.
- It has no way to enqueue many jobs: here a thousand in a transaction.
"""

from __future__ import annotations

import logging

from huey.contrib.sql_huey import SqlHuey
from playhouse.db_url import connect

from benchmarks.peers.driver import Line, Order, did


def handle(d: str, e: str) -> None:
    did(d)


def _huey(order: Order) -> SqlHuey:
    url = order.dsn.replace("mysql+pymysql:", "mysql:", 1)
    return SqlHuey("bench", database=connect(url), results=False)


def fill(order: Order) -> None:
    huey = _huey(order)
    task = huey.task(name="job")(handle)
    for chunk in order.chunks():
        with huey.storage.database.atomic():
            for d, e in chunk:
                task(d, e)


def work(order: Order, line: Line) -> None:
    logging.disable(logging.INFO)
    huey = _huey(order)
    huey.task(name="job")(handle)
    consumer = huey.create_consumer(workers=1, periodic=False, check_worker_health=False)
    line.ready()
    consumer.start()
    line.stop.wait()

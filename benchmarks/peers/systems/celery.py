"""Celery with the SQLAlchemy transport of kombu as its broker, `pool=solo`, a process for each worker.

https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/index.html calls this transport experimental;
it is the only one that keeps jobs in Postgres or MySQL.

- It fetches one message at a time: its batch size is 1.
- `solo`: "the worker's own process runs the task", with no pool between; a process for each worker, as
  https://docs.celeryq.dev/en/stable/userguide/workers.html#concurrency says of more workers.
- `--without-gossip --without-mingle --without-heartbeat`: they need a broker that can fan out.
- `task_ignore_result`: no result is stored.
- A message is marked invisible when it is fetched, before its handler is called, and never deleted; it is not given
  back when the process dies. `left` counts the visible ones.
- Jobs are enqueued one by one: a commit each.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, signals
from celery.worker import state

from benchmarks.peers.driver import Line, Order, did


def _app(order: Order) -> Any:
    app = Celery("bench", broker=f"sqla+{order.url}")
    app.conf.update(
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )
    return app


def fill(order: Order) -> None:
    app = _app(order)
    with app.producer_pool.acquire(block=True) as producer:
        for d, e in order.read():
            app.send_task("job", (d, e), producer=producer)


def work(order: Order, line: Line) -> None:
    def handle(d: str, e: str) -> None:
        did(d)

    def ready(**_: Any) -> None:
        line.ready()

    logging.disable(logging.INFO)
    app = _app(order)
    app.task(handle, name="job")
    signals.worker_ready.connect(ready)
    line.on_stop(lambda: setattr(state, "should_stop", 0))
    app.Worker(pool="solo", concurrency=1, without_gossip=True, without_mingle=True, without_heartbeat=True).start()

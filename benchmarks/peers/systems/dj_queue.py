"""dj_queue with one supervised worker a process, `threads=4`, `prefetch_multiplier=25`: batches of 100.

https://github.com/coriocactus/dj_queue#options

- `mode="async"`, `--only-work`: the worker runs in a thread of the supervisor's process, nothing else beside it.
- `threads` x `prefetch_multiplier` is what it claims at once, whenever a thread is idle. The defaults are 3 and 2. With
  3 threads, of 6, 99 and 300 at once 99 was fastest here; 1 thread was slower with any.
- `preserve_finished_jobs=False`: a job that is done is deleted, as by claimjobs.
- `CONN_MAX_AGE=None`: connections stay open. On MySQL the driver is PyMySQL, as for claimjobs.
- `listen_notify` and `use_skip_locked` are on, their defaults.
- Jobs are enqueued with `enqueue_all`, a thousand at a time.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from benchmarks.peers.driver import Line, Order, did
from benchmarks.peers.systems import _django

THREADS = 4


def handle(d: str, e: str) -> None:
    did(d)


def _configure(order: Order) -> Any:
    worker = {"queues": "*", "threads": THREADS, "processes": 1, "prefetch_multiplier": order.batch // THREADS}
    options: dict[str, Any] = {"mode": "async", "workers": [worker], "preserve_finished_jobs": False}
    _django.configure(order, "dj_queue", "dj_queue.backend.DjQueueBackend", **options)
    from django.tasks import task  # noqa: PLC0415 - after the settings

    return task(handle)


def fill(order: Order) -> None:
    task = globals()["handle"] = _configure(order)
    from django.core.management import call_command  # noqa: PLC0415 - after the settings

    call_command("migrate", verbosity=0)
    for chunk in order.chunks():
        task.get_backend().enqueue_all([(task, [d, e], {}) for d, e in chunk])


def work(order: Order, line: Line) -> None:
    globals()["handle"] = _configure(order)
    from dj_queue.hooks import on_worker_start  # noqa: PLC0415 - after the settings
    from dj_queue.runtime.supervisor import AsyncSupervisor  # noqa: PLC0415 - after the settings

    logging.disable(logging.INFO)
    on_worker_start(lambda _: line.ready())
    line.on_stop(lambda: os.kill(os.getpid(), signal.SIGTERM))
    AsyncSupervisor.from_backend_config(cli_overrides={"only_work": True}).run()

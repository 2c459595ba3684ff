"""django-tasks-db with its command, `db_worker --batch --no-startup-delay`.

https://github.com/RealOrangeOne/django-tasks-db

- It takes one job at a time: its batch size is 1. `--batch` ends it when nothing is left.
- No INFO logging: a line a job otherwise.
- `CONN_MAX_AGE=None`: connections stay open. On MySQL the driver is PyMySQL, as for claimjobs.
- A job that is done stays in the table as a result; there is no setting to delete it at once.
- Jobs can be enqueued one by one only: here a thousand in a transaction.
"""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.peers.driver import Line, Order, did
from benchmarks.peers.systems import _django


def handle(d: str, e: str) -> None:
    did(d)


def _configure(order: Order) -> Any:
    _django.configure(order, "django_tasks_db", "django_tasks_db.DatabaseBackend")
    from django.tasks import task  # noqa: PLC0415 - after the settings

    return task(handle)


def fill(order: Order) -> None:
    task = globals()["handle"] = _configure(order)
    from django.core.management import call_command  # noqa: PLC0415 - after the settings
    from django.db import transaction  # noqa: PLC0415 - after the settings

    call_command("migrate", verbosity=0)
    for chunk in order.chunks():
        with transaction.atomic():
            for d, e in chunk:
                task.enqueue(d, e)


def work(order: Order, line: Line) -> None:
    globals()["handle"] = _configure(order)
    from django.core.management import call_command  # noqa: PLC0415 - after the settings
    from django.db import connection  # noqa: PLC0415 - after the settings

    logging.disable(logging.INFO)
    connection.ensure_connection()
    line.ready()
    call_command("db_worker", batch=True, startup_delay=False, reload=False, verbosity=0)
    line.stop.wait()

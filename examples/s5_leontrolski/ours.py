"""The article's queue with claimjobs: an open transaction holds the event, and the commit writes its status.

So no event ever stays in the status `processing`: if a worker dies, the server rolls back. The map names each status.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from benchmarks.harness import SECONDS_TO_START, Share, now
from claimjobs import Columns, Queue
from examples.harness import opened
from examples.s5_leontrolski.author import ERRORED, PROCESSED, PROCESSING, TO_PROCESS

EVENTS = Columns(
    status="status",
    owner_date="updated_at",
    run_at="ignore_before",
    states={"unclaimed": TO_PROCESS, "claimed": PROCESSING, "done": PROCESSED, "dead": ERRORED},
)
WAYS = {"claimjobs, one by one": 1, "claimjobs, 100 at a time": 100}


def queue_on(bind: str | sa.Engine, **options: Any) -> AbstractContextManager[Queue]:
    """The article's queue: oldest first; done events are kept as processed."""
    order: tuple[sa.ColumnElement[Any], ...] = (sa.column("updated_at"), sa.column("id"))
    return opened(
        Queue(bind, "event_queue", columns=EVENTS, order_by=order, hold="transaction", on_done="keep", **options)
    )


def work(url: str, _number: int, line: Any, *, name: str) -> Share:
    """Run one worker; its share is the events that it processed."""
    done: list[Any] = []
    with queue_on(url) as queue:
        queue.check()
        line.wait(SECONDS_TO_START)
        began = now()
        for batch in queue.batches(WAYS[name], drain=True):
            with batch:
                done += [job.id for job in batch]
        ended = now()
        report = queue.report
    return Share(done, began, ended, ended.at, report.claims, report.empty_claims, report.transients.total())

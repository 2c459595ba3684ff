"""The article's queue with claimjobs, on its unchanged table."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from benchmarks.harness import SECONDS_TO_START, Share, now
from claimjobs import Columns, Queue
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from examples.harness import opened
from examples.s1_depesz.processors import hashed

KEY = Columns(key=("priority", "added_on"), priority=None)  # his priorities: higher first
OWNED = Columns(key=("priority", "added_on"), priority=None, owner_id="processed_by")

WAYS: dict[str, dict[str, Any]] = {
    "claimjobs, a transaction a row": {"size": 1, "hold": "transaction", "columns": KEY},
    "claimjobs, advisory lock a row": {"size": 1, "hold": "transaction", "locking": AdvisoryLocks(), "columns": KEY},
    "claimjobs, a transaction for 100": {"size": 100, "hold": "transaction", "columns": KEY},
    "claimjobs, processed_by, 100": {"size": 100, "hold": "lease", "columns": OWNED},
}
"""Locks are held while the rows are processed, as in (d); or the owner is stored, as in (c)."""


def queue_on(url: str | sa.Engine, **options: Any) -> AbstractContextManager[Queue]:
    """The article's queue: highest priority first, then oldest."""
    order: tuple[Any, ...] = (sa.column("priority").desc(), sa.column("added_on"))
    return opened(Queue(url, "queue", order_by=order, on_done="delete", **options))


def work(url: str, _number: int, line: Any, *, name: str) -> Share:
    """Run one worker; its share is the strings that it hashed."""
    way = dict(WAYS[name])
    size, done = way.pop("size"), list[Any]()
    with queue_on(url, **way) as queue:
        queue.check()
        line.wait(SECONDS_TO_START)
        began = now()
        for batch in queue.batches(size, drain=True):
            with batch:
                done += [hashed((job.job, job.priority, job.added_on)) for job in batch]
        ended = now()
        report = queue.report
        return Share(done, began, ended, ended.at, report.claims, report.empty_claims, report.transients.total())

"""The article's bonus features: delays, bundles, retries; and an event whose worker is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from benchmarks.article import connected
from benchmarks.crew import SPAWN, Worker
from claimjobs import next_whole
from claimjobs.dialects.types import Instant
from examples.harness import must, run
from examples.s5_leontrolski import author, ours
from examples.s5_leontrolski.events import setup, statuses

SECONDS = 30.0
Holder = Callable[[str, Any], None]


def bundled(url: str, events: int) -> str:
    """Events that are ignored until the next whole hour: how many are claimed before it, and in one batch at it."""
    setup(url, events)
    with ours.queue_on(url) as queue:
        hour = next_whole(queue.now())
    with connected(url) as db:
        run(db, "update event_queue set ignore_before = %s", hour.replace(tzinfo=None) if _naive(url) else hour)
        db.commit()
    with ours.queue_on(url) as now, ours.queue_on(url, now=at(hour)) as then:
        before, together = len(done(now, events)), len(done(then, events))
    return f"{before} before the hour, {together} at it, in one batch"


def at(instant: datetime) -> sa.ColumnElement[Any]:
    """An instant in place of the database's clock."""
    return sa.cast(sa.literal(instant, Instant()), Instant())


def _naive(url: str) -> bool:
    return not url.startswith("postgresql")


def done(queue: Any, size: int) -> list[Any]:
    """Claim and process the next events; return their keys."""
    with queue.claim(size) as batch:
        return [job.id for job in batch]


def retried(url: str, events: int) -> str:
    """Events whose work fails are errored; the periodic job lets them be processed again."""
    setup(url, events)
    with ours.queue_on(url) as queue:
        with queue.claim(events) as batch:
            for job in batch:
                batch.fail(job, "the task failed", retry=False)
        errored = statuses(url).get(author.ERRORED, 0)
        again = queue.jobs.retry()
        processed = len(done(queue, events))
    return f"{errored} errored, {again} retried, {processed} processed"


def cleaned(url: str, events: int) -> str:
    """Delete processed events that are older than a week, at a time eight days later; an unprocessed one stays."""
    setup(url, events + 1)
    with ours.queue_on(url) as queue:
        done(queue, events)
        later = queue.now() + timedelta(days=8)
        young = queue.purge(timedelta(days=7))
    with ours.queue_on(url, now=at(later)) as queue:
        old = queue.purge(timedelta(days=7))
    return f"{young} too soon, {old} after a week, {sum(statuses(url).values())} left"


def stuck(url: str, holder: Holder) -> int:
    """How many events are in the status `processing` after their worker was killed."""
    setup(url, 3)
    in_hand = SPAWN.Event()
    worker = Worker(holder, url, in_hand)
    try:
        must(in_hand.wait(SECONDS), "the worker has claimed no event")
    finally:
        worker.end()
    return statuses(url).get(author.PROCESSING, 0)


def hold_as_the_author(url: str, in_hand: Any) -> None:
    with connected(url, read_committed=True) as db:
        author.work(db, lambda _: _wait_for_ever(in_hand))


def hold_as_claimjobs(url: str, in_hand: Any) -> None:
    with ours.queue_on(url) as queue, queue.claim(1) as batch:
        for _ in batch:
            _wait_for_ever(in_hand)


def _wait_for_ever(in_hand: Any) -> None:
    in_hand.set()
    threading.Event().wait()

"""The article's queue with claimjobs: an item is locked while it is worked on, and marked by the commit.

The lock is an advisory lock, as in the article, or a row lock, which always ends with the transaction.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import sqlalchemy as sa

from benchmarks.article import connected
from benchmarks.crew import SPAWN, Worker
from claimjobs import Columns, Queue
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from examples.harness import must, opened
from examples.s4_tiikkaja import naive

ITEMS = Columns(status="available", states={"unclaimed": True, "claimed": False, "done": False})
SECONDS = 30.0


def queue_on(bind: str | sa.Engine, table: str = "items", **options: Any) -> AbstractContextManager[Queue]:
    """The article's queue. A done row stays in the table, and is not available."""
    given: dict[str, Any] = {"locking": AdvisoryLocks(), **options}
    return opened(Queue(bind, table, columns=ITEMS, hold="transaction", on_done="keep", **given))


def take(queue: Queue, size: int = 1) -> list[int]:
    """Claim the next items and make them done; return their keys."""
    with queue.claim(size) as batch:
        return [job.id for job in batch]


def snapshot_race(url: str, items: int, **options: Any) -> int:
    """How many items two consumers both get, if one claims an item and makes it done before each statement of the
    other, until none is left. The other takes its first item alone: the statements before a first claim prepare it.
    """
    engine = sa.create_engine(url)
    ones: list[int] = []
    with queue_on(url, **options) as one, queue_on(engine, **options) as other:
        others = take(other)
        sa.event.listen(engine, "before_cursor_execute", lambda *_: ones.extend(take(one)))
        while len(ones) + len(others) < items:
            others += take(other, 3)
    engine.dispose()
    must(len(others) > 1 and bool(ones), "one of two consumers had no item of its own in the race")
    must(len({*ones, *others}) == items, "an item was left")
    return len(set(ones) & set(others))


def convoy(url: str, consumers: int, **options: Any) -> int:
    """How many consumers get no item of their own while the others work on theirs."""
    with ExitStack() as stack:
        queues = [stack.enter_context(queue_on(url, **options)) for _ in range(consumers)]
        batches = [queue.claim(1) for queue in queues]
        keys = {job.id for batch in batches for job in batch.jobs}
        for batch in batches:
            batch.release()
            batch.settle()
    return consumers - len(keys)


def locks_while_claimed(url: str, **options: Any) -> int:
    """How many advisory locks there are while one item is claimed, in an order that no index has."""
    with connected(url) as eye, queue_on(url, order_by=-sa.column("id"), **options) as queue:
        batch = queue.claim(1)
        held = naive.held(eye)
        batch.release()
        batch.settle()
    return held


def locks_left(url: str, claims: int, **options: Any) -> int:
    """How many advisory locks there are after so many claims of one done item each."""
    with connected(url) as eye, queue_on(url, **options) as queue:
        must(sum(len(take(queue)) for _ in range(claims)) == claims, f"fewer than {claims} items could be claimed")
        return naive.held(eye)


def same_number_in_two_queues(url: str, **options: Any) -> bool:
    """Whether the first item can be claimed while another session works on the first order."""
    with queue_on(url, **options) as items, queue_on(url, "orders", **options) as orders:
        batches = [items.claim(1), orders.claim(1)]
        keys = [job.id for batch in batches for job in batch.jobs]
        for batch in batches:
            batch.release()
            batch.settle()
    return keys == [1, 1]


def after_a_death(url: str, **options: Any) -> float:
    """Seconds until the item of a consumer that was killed can be claimed again."""
    claimed = SPAWN.Event()
    consumer = Worker(_claim_and_wait, url, claimed, **options)
    try:
        must(claimed.wait(SECONDS), "the consumer has no item")
    finally:
        consumer.end()
    died = time.monotonic()
    with queue_on(url, **options) as queue:
        while not _has_the_first(queue):
            must(time.monotonic() < died + SECONDS, "the item of a dead consumer did not come back")
    return time.monotonic() - died


def _claim_and_wait(url: str, claimed: Any, **options: Any) -> None:
    with queue_on(url, **options) as queue:
        batch = queue.claim(1)
        assert [job.id for job in batch.jobs] == [1]
        claimed.set()
        threading.Event().wait()


def _has_the_first(queue: Queue) -> bool:
    with queue.claim(1) as batch:
        keys = [job.id for job in batch.jobs]
        batch.release()
    return keys == [1]

"""`enqueue_every`: the rows of each tick of a schedule are enqueued once, by any number of processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table
from claimjobs.dialects.types import Instant
from claimjobs.errors import BadArgument, BadRow, ColumnMissing, UnfitTable
from tests.backends import DEADLINE, Backend

TABLE = job_table(
    "reports",
    sa.MetaData(),
    sa.Column("name", sa.String(20), nullable=False),
    sa.Column("due", Instant(), nullable=False),
    unique=("name", "due"),
)
HOW: dict[str, Any] = {"tick": "due", "unique": ("name", "due")}


@contextmanager
def ticking(queue: Queue, schedule: Any, rows: Any, **how: Any) -> Iterator[Future[None]]:
    """A thread that enqueues while the block lasts."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(queue.enqueue_every, schedule, rows, **{**HOW, **how})
        try:
            yield future
        finally:
            queue.stop()
            future.result(DEADLINE)


def ticks(backend: Backend) -> list[datetime]:
    return sorted(row["due"] for row in backend.rows(TABLE))


def test_many_processes_enqueue_each_tick_once_and_none_is_missed(backend: Backend) -> None:
    done = Counter[datetime]()
    consumer = backend.queue(TABLE, on_done="delete")
    with ExitStack() as several:
        for _ in range(4):
            several.enter_context(ticking(backend.bare_queue(TABLE), "1s", {"name": "daily"}))
        while sum(done.values()) < 4:
            for batch in consumer.batches(10, poll=0.05, idle=0.05):
                with batch:
                    done.update(job.due for job in batch.jobs)
                    assert all(job.run_at == job.due <= consumer.now() for job in batch.jobs)
                    batch.done()
    assert set(done.values()) == {1}
    assert {after - before for before, after in pairwise(sorted(done))} == {timedelta(seconds=1)}


def test_the_rows_of_the_next_tick_are_there_before_it(backend: Backend) -> None:
    queue, told = backend.queue(TABLE), list[tuple[datetime, int]]()
    rows = [{"name": "a"}, {"name": "b"}]
    with ticking(queue, "0 6 * * 1", rows, on_tick=lambda *tick: told.append(tick)):
        backend.wait_for(lambda: len(backend.rows(TABLE)) == 2, "the rows of Monday are there")
        backend.wait_for(lambda: told, "it is told")
        [(tick, count)] = told
        assert (tick.weekday(), tick.hour, tick.minute, count) == (0, 6, 0, 2)
        assert timedelta(0) < tick - queue.now() <= timedelta(days=7)
        assert ticks(backend) == [tick, tick]
        assert not queue.claim()
        with ticking(backend.bare_queue(TABLE), "0 6 * * 1", rows, on_tick=lambda *tick: told.append(tick)):
            backend.wait_for(lambda: len(told) == 2, "another process finds them")
        assert told[1] == (tick, 0)
    assert len(backend.rows(TABLE)) == 2


def test_rows_may_be_made_for_each_tick(backend: Backend) -> None:
    queue = backend.queue(TABLE)
    with ticking(queue, timedelta(hours=1), lambda tick: {"name": f"{tick:%H}h", "priority": 3}):
        backend.wait_for(lambda: backend.rows(TABLE), "the row is there")
    [row] = backend.rows(TABLE)
    assert (row["name"], row["priority"]) == (f"{row['due']:%H}h", 3)


def test_rows_that_are_made_when_their_tick_is_over_are_not_enqueued(backend: Backend) -> None:
    """Their jobs may be done and deleted already."""
    queue, told = backend.queue(TABLE), list[tuple[datetime, int]]()

    def rows(tick: datetime) -> dict[str, Any]:
        backend.wait_for(lambda: told or queue.now() > tick, "the tick is over")
        return {"name": "late"}

    with ticking(queue, "1s", rows, on_tick=lambda *tick: told.append(tick)):
        backend.wait_for(lambda: len(told) > 1, "it goes on with the next one")
    assert [count for _, count in told[:2]] == [0, 1]
    assert told[0][0] not in ticks(backend)


def test_an_outage_is_waited_for(backend: Backend) -> None:
    queue = backend.queue(TABLE)
    told = threading.Event()
    with ticking(queue, "1s", {"name": "a"}, on_tick=lambda *_: told.set()):
        told.wait(DEADLINE)
        backend.end_sessions()
        before = len(backend.rows(TABLE))
        backend.wait_for(lambda: len(backend.rows(TABLE)) > before + 1, "it goes on")


async def rows_later(*_: Any) -> Any:
    """A call runs nothing of it."""


def test_what_cannot_be_meant_is_refused(anywhere: Backend) -> None:
    queue = anywhere.queue(TABLE)
    for schedule in ("never", "61 * * * *", "0 0 31 2 *", "", "0.5s", timedelta(0)):
        with pytest.raises(BadArgument, match="give an interval"):
            queue.enqueue_every(schedule, {"name": "a"}, **HOW)
    with pytest.raises(BadArgument, match="'Mars' is no time zone: give a name"):
        queue.enqueue_every("1h", {"name": "a"}, zone="Mars", **HOW)
    with pytest.raises(BadArgument, match="none of the unique columns name: give it there"):
        queue.enqueue_every("1h", {"name": "a"}, tick="due", unique="name")
    with pytest.raises(UnfitTable, match="no unique index over due"):
        queue.enqueue_every("1h", {"name": "a"}, tick="due", unique="due")
    for late in ({"rows": rows_later}, {"rows": {"name": "a"}, "on_tick": rows_later}):
        with pytest.raises(ValueError, match=f"{[*late][-1]} is an async def function, of which a call runs nothing"):
            queue.enqueue_every("1h", **late, **HOW)
    with pytest.raises(BadRow, match="'nothing'"):
        queue.enqueue_every("1h", {"name": "a", "nothing": 1}, **HOW)
    assert anywhere.rows(TABLE) == []
    anywhere.run("ALTER TABLE reports DROP COLUMN run_at")
    with pytest.raises(ColumnMissing, match="waiting for a tick"):
        anywhere.bare_queue("reports", on_done="delete").enqueue_every("1h", {"name": "a"}, **HOW)

"""Limits and turns per key (`per_key`) beside the plain claim, over one large table: jobs per second.

Every contestant takes its jobs from the same table, in turns. `--help`
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks import semaphore, tables
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from claimjobs import PerKey, Queue, job_table, key_tables, make, tables_for
from claimjobs.claim.key_locking import HELD_BACK_SECONDS
from claimjobs.database.connect import engine_of

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier, Event

    from servers import Server

TITLE = "Few per key"
VARIES = "keys"
UNIT = "jobs/s"
PLOT: Plot = None
SIZES = {"keys": [1, 100, 10_000, 100_000], "rows": 500_000, "consumers": 4, "seconds": 3, "small_jobs": 100}
SMALL = {"keys": [10], "rows": 3_000, "consumers": 2, "seconds": 1, "small_jobs": 5}
FULL = {"rows": 10_000_000}

BATCH: Final = 100
TEN: Final = 10
PARTS: Final = 8
"""Each way takes at most one part in so many of the table."""
LARGE, SMALL_KEY = 0, 1_000_000
"""A key with all jobs, and one with a job now and then."""
PLAIN, KEYS, FIVE, ONE, TENTH = "plain", "turns", "at most 5", "at most 1", "at most 5, one key in ten full"
BESIDE: Final = "turns, a small key beside a large one"
SEMAPHORE: Final = "at most 5, by semaphores"
START: Final = 120.0
"""The most seconds until all consumers are ready to begin."""
MOST_BLOCKED: Final = 100_000
"""Jobs that the semaphores have: they do fewer a second than the others."""
WAYS: Final[dict[str, PerKey | None]] = {
    PLAIN: None,
    KEYS: PerKey("customer"),
    FIVE: PerKey("customer", at_most=5),
    ONE: PerKey("customer", at_most=1),
    TENTH: PerKey("customer", at_most=5),
}


def jobs() -> sa.Table:
    """The table, with an index for each way to claim."""
    table = job_table("jobs", sa.MetaData(), sa.Column("customer", sa.Integer, nullable=False))
    found = (table.c.status, table.c.customer, table.c.priority, table.c.id, table.c.run_at, table.c.suspect)
    sa.Index("jobs_by_key", *found)
    return table


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Each number of keys has a table of its own, which all ways empty a little."""
    for keys in sizes.keys:
        _fill(server.url, keys, sizes.rows)
        for way in [way for way in WAYS if keys >= TEN or way != TENTH]:
            yield Sample(way, keys, *_emptied(server.url, way, keys, sizes))
        yield Sample(SEMAPHORE, keys, *_by_semaphores(server.url, keys, sizes))
    _fill(server.url, 1, sizes.rows)
    yield Sample(BESIDE, 2, *_beside(server.url, sizes))
    _clear(server.url)


def _clear(url: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("drop table if exists jobs_keys")
    engine.dispose()
    tables.clear(url)


def _fill(url: str, keys: int, rows: int) -> None:
    _clear(url)
    engine, luck = engine_of(url), random.Random(keys)
    make(engine, tables_for(jobs()))
    make(engine, key_tables(engine, jobs(), ["customer"]))
    with Queue(engine, jobs()) as queue:
        queue.enqueue({"customer": luck.randrange(keys)} for _ in range(rows))
    engine.dispose()
    tables.analyze(url)


def _emptied(url: str, way: str, keys: int, sizes: argparse.Namespace) -> tuple[float, dict[str, Any]]:
    with Queue(url, jobs(), per_key=WAYS[way]) as full:
        if way == TENTH:
            _hold(full, keys)
        most = sizes.rows // (PARTS * sizes.consumers)
        shares = gather([Worker(consume, url, way, sizes.seconds, most) for _ in range(sizes.consumers)])
        if way == TENTH:
            with full.engine.begin() as connection:
                connection.execute(sa.text("UPDATE jobs SET status = 'unclaimed' WHERE status = 'claimed'"))
        full.engine.dispose()
    done, claims = sum(share[0] for share in shares), sum(share[1] for share in shares)
    rate = sum(jobs / took for jobs, _, took in shares)
    return rate, {"jobs": done, "jobs a claim": done / max(1, claims)}


def _by_semaphores(url: str, keys: int, sizes: argparse.Namespace) -> tuple[float, dict[str, Any]]:
    limit = 5
    semaphore.prepare(url, min(sizes.rows, MOST_BLOCKED), keys, limit)
    most = sizes.rows // (PARTS * sizes.consumers)
    given: dict[str, Any] = {"seconds": sizes.seconds, "most": most}
    shares = gather([Worker(semaphore.consume, url, BATCH, limit, **given) for _ in range(sizes.consumers)])
    semaphore.clear(url)
    done, claims = sum(share[0] for share in shares), sum(share[1] for share in shares)
    return sum(jobs / took for jobs, _, took in shares), {"jobs": done, "jobs a claim": done / max(1, claims)}


def _hold(queue: Queue, keys: int) -> None:
    """Let this owner hold five jobs of each tenth key."""
    jobs_of = "SELECT id FROM jobs WHERE customer = :key AND status = 'unclaimed' ORDER BY id LIMIT 5"
    with queue.engine.begin() as connection:
        held = [
            key for tenth in range(0, keys, 10) for key in connection.scalars(sa.text(jobs_of), {"key": tenth}).all()
        ]
        claim = sa.text("UPDATE jobs SET status = 'claimed', owner_id = :me, owner_date = now() WHERE id = :id")
        if held:
            connection.execute(claim, [{"me": queue.owner_id, "id": one} for one in held])


def consume(url: str, way: str, seconds: float, most: int) -> tuple[int, int, float]:
    """Take jobs for so long, or so many: how many, in how many claims, in how many seconds."""
    done = 0
    with Queue(url, jobs(), per_key=WAYS[way]) as queue:
        queue.check()
        began = None
        for batch in queue.batches(BATCH, poll=0.05, idle=2 * HELD_BACK_SECONDS):  # the way before has held keys back
            began = began or time.monotonic()
            with batch:
                done += len(batch)
                batch.done()
            if time.monotonic() - began > seconds or done >= most:
                break
        took = time.monotonic() - began if began else seconds
        queue.engine.dispose()
        return done, queue.report.claims, took


def watch(url: str, start: Barrier, last_is_in: Event) -> list[float]:
    """Take jobs until no more come of the small key: how long those had waited, in seconds by the database's clock."""
    waited: list[float] = []
    with Queue(url, jobs(), per_key=WAYS[KEYS]) as queue:
        queue.check()
        start.wait()
        is_last = False
        for batch in queue.batches(BATCH, poll=0.05, idle=2 * HELD_BACK_SECONDS):
            with batch:
                small: Sequence[Any] = [job for job in batch.jobs if job.customer == SMALL_KEY]
                waited += [(queue.now() - job.run_at).total_seconds() for job in small]
                # The next batch is claimed at the end of this block.
                was_last, is_last = is_last, last_is_in.is_set()
                batch.done()
            if was_last and not small:
                break
        queue.engine.dispose()
    return waited


def _beside(url: str, sizes: argparse.Namespace) -> tuple[float, dict[str, Any]]:
    """A job of the small key every 50 ms, while consumers work on a million of the other one."""
    start, last_is_in = SPAWN.Barrier(sizes.consumers + 1, timeout=START), SPAWN.Event()
    engine = engine_of(url)

    def enqueue() -> None:
        start.wait()
        time.sleep(1.0)
        for _ in range(sizes.small_jobs):
            with engine.begin() as connection:
                connection.execute(sa.insert(jobs()), {"customer": SMALL_KEY})
            time.sleep(0.05)
        last_is_in.set()

    producer = threading.Thread(target=enqueue)
    producer.start()
    shares = gather([Worker(watch, url, start, last_is_in) for _ in range(sizes.consumers)])
    waited = [one for some in shares for one in some]
    producer.join()
    engine.dispose()
    return len(waited) / (1.0 + sizes.small_jobs * 0.05), {
        "p50 ms": 1_000 * statistics.median(waited) if waited else None,
        "p99 ms": 1_000 * sorted(waited)[int(len(waited) * 0.99)] if waited else None,
        "jobs": len(waited),
    }


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 12."""
    for keys in found.places(PLAIN):
        plain = found.value(PLAIN, keys)
        yield Goal(12, f"{KEYS}, {keys:,.0f} keys: jobs/s, of {PLAIN}", found.value(KEYS, keys) / plain, 0.9)
        if keys >= 100:
            ratio = found.value(TENTH, keys) / plain
            yield Goal(12, f"{TENTH}, {keys:,.0f} keys: jobs/s, of {PLAIN}", ratio, 0.5)
    waited = found.also(BESIDE, 2, "p99 ms")
    yield Goal(12, "ms that a job of a small key waits beside a large one, p99", waited, 100, at_least=False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("few_per_key")

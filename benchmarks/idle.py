"""Idle: what consumers cost while there is nothing to do, one alone and many together. `--help`

They are threads of one process, each with a Queue, an owner and a connection of its own. Counted, once they have
fallen asleep, are the CPU of that process and of the server, what the driver is given, and what the server counts.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from benchmarks import article, tables
from benchmarks.contestants import CALLED, WAYS
from benchmarks.crew import Worker, gather
from benchmarks.goals import Found, Goal
from benchmarks.meter import Meter
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from claimjobs import Queue
from claimjobs.database.connect import engine_of

if TYPE_CHECKING:
    from servers import Server

TITLE = "Idle consumers"
VARIES = "idle consumers"
UNIT = "% of a core"
PLOT: Plot = None
# Seconds. A sleeper looks ever more rarely, and after 8 of them as rarely as it ever does.
SIZES = {"consumers": [1, 100], "settle": 8, "seconds": 20, "looks": False}
SMALL = {"consumers": [1, 10], "settle": 2, "seconds": 2}
FULL = {"settle": 20, "seconds": 60, "looks": True}

MANY = 100
THREAD = "idle consumer"
PERCENT, STATEMENTS = 2, 1
SENT = "statements/s each"
"""What the driver is given, with the ends of transactions."""
COUNTED = "counted/s each"
SERVER = "server %"


@dataclass(frozen=True)
class Cost:
    """Of all consumers together, between two moments."""

    began: float
    ended: float
    cpu: float
    sent: int
    counted: int
    """What the server says it was asked."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each number of consumers: those that are called, and if wished those that can only look."""
    for consumers in sizes.consumers:
        for name in WAYS if sizes.looks else (CALLED,):
            yield _idle(name, consumers, server=server, sizes=sizes)


def _idle(name: str, consumers: int, *, server: Server, sizes: argparse.Namespace) -> Sample:
    tables.clear(server.url)
    tables.setup_claimjobs(server.url)
    with Meter(server.pid) as meter:
        worker = Worker(wait_for_nothing, server.url, consumers, sizes.settle, sizes.seconds, **WAYS[name])
        [cost] = gather([worker])
    used, seconds = meter.between(cost.began, cost.ended), cost.ended - cost.began
    also = {
        SENT: cost.sent / seconds / consumers,
        COUNTED: cost.counted / seconds / consumers,
        SERVER: None if used.server is None else 100 * used.server,
    }
    return Sample(name, consumers, 100 * cost.cpu / seconds, also)


# --- in a process of their own -------------------------------------------------------------------------------


def wait_for_nothing(url: str, consumers: int, settle: float, seconds: float, **options: Any) -> Cost:
    """What so many consumers cost once they have been idle for a while."""
    sent: list[None] = []
    with ExitStack() as opened, waiting([opened.enter_context(_queue(url, sent, options)) for _ in range(consumers)]):
        time.sleep(settle)
        counted = _counted(url)
        began, cpu, before = time.monotonic(), time.process_time(), len(sent)
        time.sleep(seconds)
        ended, cpu, after = time.monotonic(), time.process_time() - cpu, len(sent)
        return Cost(began, ended, cpu, after - before, _counted(url) - counted)


@contextmanager
def _queue(url: str, sent: list[None], options: Mapping[str, Any]) -> Iterator[Queue]:
    """With an engine of its own; `sent` grows by each statement and each end of a transaction."""
    engine = engine_of(url)
    for event in ("before_cursor_execute", "commit", "rollback"):
        sa.event.listen(engine, event, lambda *_: sent.append(None))
    with Queue(engine, **options) as queue:
        assert queue.owner_id  # connected, and registered
        yield queue
    engine.dispose()


@contextmanager
def waiting(queues: Sequence[Queue]) -> Iterator[None]:
    """A thread for each, which must still wait at the end of the `with` block."""
    threads = [threading.Thread(target=lambda queue=queue: list(queue.batches()), name=THREAD) for queue in queues]
    for thread in threads:
        thread.start()
    try:
        yield
        if ended := sum(not thread.is_alive() for thread in threads):
            raise tables.WrongCount(f"{ended} of {len(threads)} consumers did not stay")
    finally:
        for queue in queues:
            queue.stop()
        for thread in threads:
            thread.join()


def _counted(url: str) -> int:
    """How much the server was asked so far, by its own count: transactions on Postgres, elsewhere statements."""
    with article.connected(url) as db, db.cursor() as cursor:
        if article.is_postgres(url):
            cursor.execute("select 'commits', xact_commit from pg_stat_database where datname = current_database()")
        else:
            cursor.execute("show global status like 'Questions'")
        return int(cursor.fetchone()[1])


def goals(found: Found, _backend: str) -> Iterator[Goal]:
    """Point 5, but for how soon a job is picked up. The CPU is that of the clients, and the server's is shown."""
    most = max(found.also(CALLED, at, SENT) for at in (1, MANY))
    yield Goal(5, "statements/s of an idle consumer", most, STATEMENTS, False)
    what = f"client CPU of {MANY} idle consumers, threads of one process, % of a core"
    yield Goal(5, what, found.value(CALLED, MANY), PERCENT, False)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("idle")

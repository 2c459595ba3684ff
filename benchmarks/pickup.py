"""Pick-up: how soon an idle consumer has a job in its handler, and what it costs while there is none. `--help`

A consumer that waits to be called, beside one that can only look (as behind a pooler). Rows are enqueued one by one at
random moments; counted is the time from the call of `enqueue` to the handler, whose processes share a clock.
With `--idle N` so many consumers, threads of one process, wait for nothing, and what they cost is counted instead.
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks import article, machine
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.drain import clear, setup_claimjobs
from benchmarks.harness import SECONDS_TO_START
from claimjobs import Queue
from claimjobs.connect import engine_of
from claimjobs.liveness import Liveness
from servers import Server, start
from servers.sources import BACKENDS

LAST = "last"
"""The payload of the row after which a consumer ends."""
SETTLED = 20.0
"""Seconds until consumers that find nothing have fallen asleep, and look as rarely as they ever do."""

WAYS = {"called": None, "looks": False}
"""Contestants: `Liveness.session_lock` of each. Without session locks nobody can be called."""


# --- how soon ------------------------------------------------------------------------------------------------


def consume(url: str, line: Any, *, session_lock: bool | None) -> dict[str, float]:
    """When the handler began with each row."""
    began: dict[str, float] = {}
    with Queue(url, liveness=Liveness(session_lock=session_lock)) as queue:
        assert queue.owner_id
        line.wait(SECONDS_TO_START)
        for batch in queue.batches():
            now = time.monotonic()
            with batch:
                began |= {job["d"]: now for job in batch.jobs}
                batch.done()
            if LAST in began:
                return began
    return began


def produce(url: str, line: Any, *, jobs: int, gap: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """When the enqueueing of each row began and ended."""
    enqueued: dict[str, tuple[float, float]] = {}
    with Queue(url) as queue:
        queue.enqueue({"d": "first", "e": ""})
        line.wait(SECONDS_TO_START)
        for name in (*map(str, range(jobs)), LAST):
            time.sleep(random.uniform(*gap))
            began = time.monotonic()
            queue.enqueue({"d": name, "e": ""})
            enqueued[name] = began, time.monotonic()
    return enqueued


def pick_up(url: str, name: str, *, jobs: int, gap: tuple[float, float]) -> str:
    """One contestant's figures, as a line."""
    clear(url)
    setup_claimjobs(url)
    line = SPAWN.Barrier(2)
    work: list[Worker[Any]] = [
        Worker(consume, url, line, session_lock=WAYS[name]),
        Worker(produce, url, line, jobs=jobs, gap=gap),
    ]
    began, enqueued = gather(work)
    seconds = [began[job] - at for job, (at, _) in enqueued.items()]
    calls = [ended - at for at, ended in enqueued.values()]
    return f"{name:>8}  {_of(seconds)}  of that enqueue itself {_of(calls)}"


def _of(seconds: Sequence[float]) -> str:
    percent = quantiles(seconds, n=100, method="inclusive")
    return f"p50 {1000 * percent[49]:7.1f}  p99 {1000 * percent[98]:7.1f}  max {1000 * max(seconds):7.1f} ms"


# --- what it costs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Of all consumers, counted over the same seconds."""

    cpu: float
    seconds: float
    statements: int
    """Those that the driver was given, with the ends of transactions."""


def wait_for_nothing(url: str, line: Any, *, consumers: int, seconds: float, session_lock: bool | None) -> Cost:
    """So many consumers in threads of this process."""
    sent: list[None] = []
    queues = [_queue(url, sent, session_lock) for _ in range(consumers)]
    threads = [threading.Thread(target=lambda queue=queue: list(queue.batches())) for queue in queues]
    for thread in threads:
        thread.start()
    time.sleep(SETTLED)
    line.wait(SECONDS_TO_START)
    began, cpu, before = time.monotonic(), time.process_time(), len(sent)
    line.wait(SECONDS_TO_START + seconds)
    cost = Cost(time.process_time() - cpu, time.monotonic() - began, len(sent) - before)
    for queue in queues:
        queue.stop()
    for thread in threads:
        thread.join()
    for queue in queues:
        queue.close()
    return cost


def _queue(url: str, sent: list[None], session_lock: bool | None) -> Queue:
    queue = Queue(engine_of(url), liveness=Liveness(session_lock=session_lock))
    sa.event.listen(queue.engine, "before_cursor_execute", lambda *_: sent.append(None))
    for end in ("commit", "rollback"):
        sa.event.listen(queue.engine, end, lambda *_: sent.append(None))
    return queue


def idle(url: str, name: str, *, consumers: int, seconds: float) -> str:
    """What one contestant's consumers cost, as a line."""
    clear(url)
    setup_claimjobs(url)
    line = SPAWN.Barrier(2)
    servers = psutil.Process().children()
    options = {"consumers": consumers, "seconds": seconds, "session_lock": WAYS[name]}
    worker = Worker(wait_for_nothing, url, line, **options)
    line.wait(SECONDS_TO_START)
    before, asked = _cpu(servers), _asked(url)
    time.sleep(seconds)
    used, asked = _cpu(servers) - before, _asked(url) - asked
    line.wait(SECONDS_TO_START)
    cost: Cost = worker.result()
    each = consumers * cost.seconds
    return (
        f"{name:>8}  {consumers} consumers: clients {cost.cpu / cost.seconds:.2%} of a core, "
        f"server {used / seconds:.2%}; a consumer sends {cost.statements / each:.2f} statements/s, "
        f"the server counts {asked / each:.2f} {'transactions' if article.is_postgres(url) else 'statements'}/s"
    )


def _cpu(roots: Sequence[psutil.Process]) -> float:
    found = [process for root in roots for process in (root, *root.children(recursive=True))]
    return sum(sum(process.cpu_times()[:4]) for process in found)


def _asked(url: str) -> int:
    """How much was asked of the server so far, as it counts that itself."""
    with article.connected(url) as db, db.cursor() as cursor:
        if article.is_postgres(url):
            cursor.execute("select xact_commit from pg_stat_database where datname = current_database()")
            return int(cursor.fetchone()[0])
        cursor.execute("show global status like 'Questions'")
        return int(cursor.fetchone()[1])


# --- the command ---------------------------------------------------------------------------------------------


def main() -> None:
    options = _parser().parse_args()
    before = machine.load()
    with start(options.backend) as server:
        print(_heading(server, before), flush=True)
        for name in options.ways.split(","):
            print(_chosen(options)(server.url, name), flush=True)


def _chosen(options: argparse.Namespace) -> Any:
    if options.idle:
        return partial(idle, consumers=options.idle, seconds=options.seconds)
    return partial(pick_up, jobs=options.jobs, gap=options.gap)


def _heading(server: Server, before: float) -> str:
    durability = ", ".join(f"{name}={value}" for name, value in machine.durability(server.backend, server.url).items())
    command = shlex.join(["python", "-m", "benchmarks.pickup", *sys.argv[1:]])
    return "\n".join([command, f"{server.backend} {server.version}; {durability}", *machine.remarks(before)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pickup", description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="postgres")
    parser.add_argument("--jobs", type=int, default=200, help="rows, one by one")
    parser.add_argument(
        "--gap", type=_gap, default=(0.2, 0.6), metavar="SECONDS-SECONDS", help="between two rows, at random"
    )
    parser.add_argument("--ways", default=",".join(WAYS), metavar="WAY,WAY", help="which: called, looks")
    parser.add_argument("--idle", type=int, default=0, metavar="N", help="so many consumers, and no rows")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they are watched")
    return parser


def _gap(text: str) -> tuple[float, float]:
    shortest, longest = map(float, text.split("-"))
    return shortest, longest


if __name__ == "__main__":
    main()

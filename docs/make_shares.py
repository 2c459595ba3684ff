"""Make the picture of shares, of a real run on the embedded Postgres: `python -m docs.make_shares`. It takes a minute.

One tenant enqueues many jobs at once, and another one a few now and then. Four consumers work them off, each job in
5 ms: first in the order of the queue, then with `PerKey("tenant")`, with which tenants take turns.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from benchmarks import chart
from claimjobs import PerKey, Queue, job_table, key_tables, make, tables_for
from claimjobs.embedded.server import temporary

PICTURE: Final = Path(__file__).parent / "images" / "shares.svg"
EXPORTS: Final = job_table("exports", sa.MetaData(), sa.Column("tenant", sa.Integer, nullable=False))
COLUMNS: Final = EXPORTS.c
sa.Index(
    *("exports_turns", COLUMNS.status, COLUMNS.tenant),
    *(COLUMNS.priority, COLUMNS.id, COLUMNS.run_at, COLUMNS.suspect),
)
LARGE, SMALL = 1, 2
MANY, FEW = 10_000, 25
SECONDS, FIRST = 15, 2
CONSUMERS, BATCH, A_JOB = 4, 10, 0.005
WAYS: Final = {"in the order of the queue": None, "with PerKey: tenants take turns": PerKey("tenant")}


def main() -> None:
    """Run both ways, and draw them side by side."""
    with temporary() as url:
        charts = [_chart(title, _worked(url, per_key)) for title, per_key in WAYS.items()]
    PICTURE.write_text(chart.svg(charts), encoding="utf-8")


def _chart(title: str, waiting: dict[int, list[tuple[float, float]]]) -> chart.Chart:
    names = {LARGE: f"a tenant with {MANY:,} jobs at once (in hundreds)", SMALL: f"a tenant with {FEW} jobs a second"}
    lines = [chart.Line(names[tenant], points) for tenant, points in waiting.items()]
    return chart.Chart(title, "seconds", "jobs that wait", lines)


def _worked(url: str, per_key: PerKey | None) -> dict[int, list[tuple[float, float]]]:
    """How many jobs of each tenant wait, over the time; of the large one a hundredth."""
    queues = [Queue(url, EXPORTS, per_key=per_key) for _ in range(CONSUMERS + 1)]
    producer = queues[0]
    make(producer.engine, tables_for(EXPORTS))
    make(producer.engine, key_tables(producer.engine, EXPORTS, ["tenant"]))
    producer.enqueue({"tenant": LARGE} for _ in range(MANY))
    added, done = Counter({LARGE: MANY}), Counter[int]()
    threads = [threading.Thread(target=_consume, args=(queue, done)) for queue in queues[1:]]
    for thread in threads:
        thread.start()
    points: dict[int, list[tuple[float, float]]] = {LARGE: [], SMALL: []}
    began = time.monotonic()
    for tick in range(SECONDS * 5):
        if tick >= FIRST * 5 and tick % 5 == 0:
            added[SMALL] += producer.enqueue({"tenant": SMALL} for _ in range(FEW))
        for tenant, drawn in points.items():
            left = added[tenant] - done[tenant]
            drawn.append((time.monotonic() - began, left / 100 if tenant == LARGE else left))
        time.sleep(max(0.0, began + (tick + 1) / 5 - time.monotonic()))
    for queue in queues:
        queue.stop()
    for thread in threads:
        thread.join()
    for queue in queues:
        queue.close()
    with producer.engine.begin() as connection:
        connection.execute(sa.delete(EXPORTS))
        connection.exec_driver_sql("DELETE FROM exports_keys")
    for queue in queues:
        queue.engine.dispose()
    return points


def _consume(queue: Queue, done: Counter[int]) -> None:
    for batch in queue.batches(BATCH):
        with batch:
            for job in batch:
                time.sleep(A_JOB)
                done[job.tenant] += 1


if __name__ == "__main__":
    main()

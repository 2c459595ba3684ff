"""claimjobs through its public API, `queue.batches(size)`, on the table that `setup-tables` makes, in its defaults.

Each batch is settled, which deletes its rows, when `with batch` is left: durable by then.
"""

from __future__ import annotations

from benchmarks.peers.driver import Line, Order, did
from claimjobs import Queue, make, tables_for
from claimjobs.database.connect import engine_of
from claimjobs.options import ClaimsKind


def fill(order: Order) -> None:
    engine = engine_of(order.url)
    make(engine, tables_for("jobs"))
    engine.dispose()
    with Queue(order.url) as queue:
        queue.enqueue({"d": d, "e": e} for d, e in order.read())


def work(order: Order, line: Line, claims: ClaimsKind = "rows") -> None:
    with Queue(order.url, claims=claims) as queue:
        drain(queue, order, line)


def drain(queue: Queue, order: Order, line: Line) -> None:
    """Work on all jobs, in batches."""
    assert queue.owner_id  # connected and registered
    line.ready()
    for batch in queue.batches(order.batch, drain=True):
        with batch:
            for job in batch.jobs:
                did(job["d"])
            batch.done()
    line.stop.wait()

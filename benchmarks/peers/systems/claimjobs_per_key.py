"""claimjobs with `per_key=PerKey("number", at_most=5)`: at most five jobs of each of 100 numbers are claimed.

All else is what claimjobs.py does, on a table with the column `number` and the index that `explain` asks for.
"""

from __future__ import annotations

import sqlalchemy as sa

from benchmarks.peers.driver import Line, Order
from benchmarks.peers.systems.claimjobs import drain
from claimjobs import PerKey, Queue, job_table, key_tables, make, tables_for
from claimjobs.database.connect import engine_of

GROUPS, LIMIT = 100, 5


def jobs() -> sa.Table:
    columns = [sa.Column(name, sa.String(100), nullable=False) for name in ("d", "e")]
    table = job_table("jobs", sa.MetaData(), sa.Column("number", sa.Integer, nullable=False), *columns)
    order = (table.c.priority, table.c.id, table.c.run_at, table.c.suspect)
    sa.Index("jobs_by_number", table.c.status, table.c.number, *order)
    return table


def fill(order: Order) -> None:
    engine = engine_of(order.url)
    make(engine, tables_for(jobs()))
    make(engine, key_tables(engine, jobs(), ["number"]))
    engine.dispose()
    with Queue(order.url, jobs()) as queue:
        queue.enqueue({"number": int(d[-8:]) % GROUPS, "d": d, "e": e} for d, e in order.read())


def work(order: Order, line: Line) -> None:
    with Queue(order.url, jobs(), per_key=PerKey("number", at_most=LIMIT)) as queue:
        drain(queue, order, line)

"""A partitioned table of a user is claimed from as every other one."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table, make, side_car_tables
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from tests.backends import Backend
from tests.conformance.jobs import jobs, names

DAYS = {f"p{day}": (f"2026-01-0{day}", f"2026-01-0{day + 1}") for day in range(1, 8)}
"""The partitions, with the first day of each, and that of the next."""


def events() -> sa.Table:
    """A table of jobs by the day on which they were made, which is part of their key. New jobs are of the third day."""
    ends = ", ".join(f"PARTITION {name} VALUES LESS THAN ('{end}')" for name, (_, end) in DAYS.items())
    by_day = {"mysql": f"RANGE COLUMNS (made) ({ends})", "postgresql": "RANGE (made)"}
    by_day["mariadb"] = by_day["mysql"]
    return job_table(
        "jobs",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("made", sa.Date, primary_key=True, server_default="2026-01-03"),
        sa.Column("d", sa.String(64), nullable=False),
        sa.Column("e", sa.String(64), nullable=False),
        **{f"{dialect}_partition_by": how for dialect, how in by_day.items()},
    )


def divided(backend: Backend, **options: Any) -> Queue:
    """A queue on a table that its user has divided by days."""
    table = events()
    backend.make(table)
    if backend.family == "postgres":
        for name, (first, end) in DAYS.items():
            backend.run(f"CREATE TABLE jobs_{name} PARTITION OF jobs FOR VALUES FROM ('{first}') TO ('{end}')")
    return backend.bare_queue(table, **options)


@pytest.mark.usefixtures("each_kind_of_claim")
def test_every_outcome_is_written(backend: Backend) -> None:
    queue = divided(backend, on_done="keep")
    queue.enqueue(jobs(4))
    queue.enqueue([{"d": f"1{n:03}", "e": ""} for n in range(150)])
    with queue.claim(5) as batch:
        done, again, dead, free, last = batch.jobs
        assert done.key == (done.id, done.made)
        batch.done(done, last)
        batch.fail(again, "again", retry_in=0)
        batch.fail(dead, "never", retry=False)
        batch.release(free)
    found = {row["d"]: row["status"] for row in backend.rows("jobs")}
    assert [found.pop(d) for d in ("0000", "0001", "0002", "0003", "1000")] == [
        *("done", "unclaimed", "dead", "unclaimed", "done")
    ]
    assert set(found.values()) == {"unclaimed"}
    assert queue.jobs.retry() == 1
    other = backend.bare_queue(events(), on_done="keep")
    held = queue.claim(3)
    assert names(held) == ["0001", "0002", "0003"]
    assert other.reclaim_owner(queue.owner_id) == 3
    drained = 0
    for batch in other.batches(100, drain=True):
        with batch:
            drained += len(batch)
            batch.done()
    assert drained == 152


@pytest.mark.parametrize(
    "options",
    [
        {"hold": "transaction"},
        {"side_car": True},
        {"hold": "transaction", "locking": AdvisoryLocks()},
        {"order_by": ()},
    ],
    ids=["transaction", "side-car", "advisory", "any order"],
)
def test_other_kinds_of_claims_work(backend: Backend, options: dict[str, Any]) -> None:
    queue = divided(backend, on_done="keep", **options)
    if "side_car" in options:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue.enqueue(jobs(5))
    with queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        batch.done()
    assert len(queue.claim(10)) == 3
    assert len(backend.rows("jobs")) == 5

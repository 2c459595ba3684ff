"""Jobs that others have locked stand before all others: a claim goes on behind them, and costs what it must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table, make, side_car_tables
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import JOBS

KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "transaction": {"hold": "transaction"},
    "batches": {"claims": "batches"},
    "side-car": {"side_car": True},
    "mixed order": {"order_by": "-priority"},
    "order without places": {"order_by": sa.func.length(JOBS.c.d)},
    "any order": {"order_by": ()},
}
LOCKED = 500


@contextmanager
def locked_head(backend: Backend, count: int = LOCKED) -> Iterator[None]:
    """Another program holds the locks of the first `count` jobs."""
    through = "" if backend.family == "postgres" else "FORCE INDEX (PRIMARY)"
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as other, other.begin():
        other.exec_driver_sql(f"SELECT id FROM jobs {through} WHERE id <= {count} FOR UPDATE").all()
        yield


def queue_of(backend: Backend, kind: str) -> Queue:
    backend.make()
    if "side_car" in KINDS[kind]:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    queue = backend.bare_queue(JOBS if "order_by" in KINDS[kind] else "jobs", **KINDS[kind])
    queue.enqueue({"id": number + 1, **job} for number, job in enumerate(jobs(LOCKED + 3)))
    return queue


@pytest.mark.mariadb("there finding and locking are two statements")
@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_goes_on_behind_locked_jobs_to_the_end_of_the_order(backend: Backend, kind: str) -> None:
    queue = queue_of(backend, kind)
    with locked_head(backend):
        got = []
        for _ in range(3):
            with queue.claim(1) as batch:
                got += names(batch)
                batch.done()
        assert sorted(got) == [f"{LOCKED + n:04}" for n in range(3)]
        assert (got == sorted(got)) or kind == "any order"
        empty = queue.claim(1)
        assert not empty
        assert empty.contended
    with queue.claim(1) as batch:
        assert len(batch) == 1
        batch.release()


@pytest.mark.mariadb("there the keys of the candidates are sent back")
def test_a_claim_goes_on_behind_more_locked_jobs_than_one_statement_has_keys(backend: Backend) -> None:
    """In an order without places, where it cannot begin behind them."""
    table = job_table("files", sa.MetaData(), sa.Column("name", sa.String(500), primary_key=True))
    backend.make(table)
    queue = backend.bare_queue(table, order_by=sa.func.lower(table.c.name))
    queue.enqueue({"name": f"{number:03}"} for number in range(400))
    locked = sa.select(table.c.name).where(table.c.name < "398").with_for_update()
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as other, other.begin():
        assert len(other.execute(locked).all()) == 398
        assert [job.name for job in queue.claim(3)] == ["398", "399"]


def rows_read(backend: Backend) -> int:
    """How many entries of indexes and rows the server has read up to now."""
    shown = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Handler_read_next', 'Handler_read_key', 'Handler_read_first')"
    with backend.engine.connect() as connection:
        return sum(int(count) for _, count in connection.exec_driver_sql(shown))


def test_a_search_behind_locked_jobs_reads_each_a_few_times_in_few_statements(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No look from the head because of the time: it is due after 10 times what the last one took.
    monkeypatch.setattr("claimjobs.claim.candidate_range.LONGEST_HEAD_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr("claimjobs.claim.candidate_range.HEAD_PAUSE_FACTOR", 1_000_000)
    queue = queue_of(backend, "rows")
    queue.claim(1).release()
    with locked_head(backend), counted(backend.engine) as sent:
        before = rows_read(backend) if backend.has("locks what it reads") else None
        with queue.claim(1) as batch:
            batch.done()
            assert names(batch) == [f"{LOCKED:04}"]
        if before is not None:  # found, counted, its place found, looked up and tried to lock
            assert rows_read(backend) - before < 7 * LOCKED
        searches = [statement for statement in sent if "SKIP LOCKED" in statement]
        assert len(searches) <= 6  # 1, 4, 16, 64, 256 and 1,024 candidates
        with counted(backend.engine) as later, queue.claim(1) as batch:  # the next claim begins there
            batch.done()
            assert names(batch) == [f"{LOCKED + 1:04}"]
        assert len([statement for statement in later if "SKIP LOCKED" in statement]) <= 1

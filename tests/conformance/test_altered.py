"""A table that is altered under running consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, job_table, make, side_car_tables, tables_for
from claimjobs.errors import UnfitTable
from tests.backends import Backend

PREPARED = 15
"""After so many batches each statement has been prepared, whichever driver does that."""
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"claims": "rows"},
    "batches": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
}


def filled(backend: Backend, **options: Any) -> Queue:
    queue = backend.queue(job_table("jobs", sa.MetaData(), sa.Column("d", sa.String(20))), **options)
    queue.enqueue({"d": str(number)} for number in range(2 * PREPARED))
    return queue


def one_by_one(queue: Queue) -> Iterator[Batch]:
    while batch := queue.claim(1):
        yield batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop", ["claim", "batches"])
def test_a_column_that_is_widened_ends_no_consumer(backend: Backend, kind: str, loop: str) -> None:
    queue = filled(backend, **KINDS[kind])
    other = backend.bare_queue("jobs", **KINDS[kind])
    changes = "ALTER COLUMN d TYPE VARCHAR(40)" if backend.has("schemas") else "MODIFY d VARCHAR(40)"
    done = 0
    for batch in one_by_one(queue) if loop == "claim" else queue.batches(1, drain=True):
        with batch:
            batch.done()
        done += 1
        if done == PREPARED:
            backend.run(f"ALTER TABLE jobs {changes}")
            with other.claim(1) as first:  # it has prepared nothing
                first.done()
    assert done == 2 * PREPARED - 1
    assert not queue.report.lost


NUMBERS = [1, 2, 3, 2**33, 2**33 + 1, 2**33 + 2]
TEXTS = ["aaaa", "bbbb", "cccc", "aaaa1", "aaaa2", "dddddd"]
WIDENED: dict[str, tuple[str, str, list[Any]]] = {
    "small numbers": ("SMALLINT", "BIGINT", NUMBERS),
    "whole numbers": ("INTEGER", "BIGINT", NUMBERS),
    "texts": ("VARCHAR(4)", "VARCHAR(40)", TEXTS),
    "padded texts": ("CHAR(4)", "CHAR(40)", TEXTS),
    "two columns": ("VARCHAR(4)", "VARCHAR(40)", TEXTS),
}


@pytest.mark.parametrize(
    ("kind", "on_done"),
    [("rows", "keep"), ("rows", "delete"), ("batches", "delete"), ("transaction", "keep"), ("side-car", "delete")],
)
@pytest.mark.parametrize("case", WIDENED)
def test_a_key_that_is_widened_ends_no_consumer(backend: Backend, kind: str, on_done: Any, case: str) -> None:
    """The key of a side-car is widened before that of the jobs."""
    narrow, wide, keys = WIDENED[case]
    key = "code, n" if case == "two columns" else "code"
    of_claims = "" if kind == "side-car" else ", status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', owner_id BIGINT"
    backend.run(f"CREATE TABLE jobs (code {narrow} NOT NULL, n INTEGER NOT NULL{of_claims}, PRIMARY KEY ({key}))")
    tables = side_car_tables(backend.engine, "jobs") if kind == "side-car" else tables_for("jobs")
    make(backend.engine, [table for table in tables if table.name != "jobs"])
    backend.insert("jobs", [{"code": one, "n": n} for n, one in enumerate(keys[:3])])
    queue = backend.bare_queue("jobs", on_done=on_done, **KINDS.get(kind, {"side_car": True}))
    if kind == "transaction":
        with queue.claim(1) as held:
            held.done()
    else:
        held = queue.claim(1)
    change = "ALTER COLUMN code TYPE {}" if backend.has("schemas") else "MODIFY code {} NOT NULL"
    for name in ["jobs_claims", "jobs"] if kind == "side-car" else ["jobs"]:
        backend.run(f"ALTER TABLE {name} {change.format(wide)}")
    columns = sa.table("jobs", sa.column("code"), sa.column("n"))
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(columns), [{"code": one, "n": n + 3} for n, one in enumerate(keys[3:])])
    if kind != "transaction":
        with held:
            held.done()
    for ends in (Batch.release, Batch.done, Batch.done):
        with queue.claim(3) as batch:
            ends(batch)
    assert (queue.report.done, queue.report.lost, len(queue.claim(9))) == (6, 0, 0)


def test_a_column_that_is_dropped_is_named_and_a_new_queue_goes_on(backend: Backend) -> None:
    queue = filled(backend)
    with queue.claim(1) as batch:
        batch.done()
    backend.run("ALTER TABLE jobs DROP COLUMN d")
    with pytest.raises(UnfitTable, match=r"table 'jobs' has no column 'd' any more.*make a new Queue"):
        queue.claim(1)
    with backend.bare_queue("jobs").claim(3) as batch:
        batch.done()
    assert len(batch) == 3


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("kind", [{"claims": "rows"}, {"claims": "batches"}, {"side_car": True}], ids=str)
def test_who_held_jobs_of_a_table_that_is_made_anew_settles_no_new_one(
    backend: Backend, kind: dict[str, Any], level: str
) -> None:
    """The keys of the new table begin anew. A claim may come at the last moment: when the DROP is about to be sent."""
    backend.make()
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, "jobs"))
    consumer = backend.bare_queue(on_done="delete", **kind)
    consumer.enqueue({"d": f"old {number}", "e": ""} for number in range(4))
    held = [consumer.claim(2)]
    admin = backend.new_engine(isolation_level=level)

    def claim(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.strip().startswith("DROP TABLE jobs"):
            held.append(consumer.claim(2))

    sa.event.listen(admin, "before_cursor_execute", claim)
    made = make(admin, tables_for("jobs"), recreate=True)
    assert (made.dropped, len(held)) == (("jobs",), 2)
    consumer.enqueue({"d": f"new {number}", "e": ""} for number in range(4))
    for batch in held:
        batch.done()
        batch.settle()
        assert len(batch.lost) == 2
    assert [row["d"] for row in backend.rows()] == [f"new {number}" for number in range(4)]
    with consumer.claim(5) as batch:
        batch.done()
    assert [job.d for job in batch.jobs] == [f"new {number}" for number in range(4)]


def test_claims_of_a_table_that_is_gone_are_deleted_before_it_is_made_anew(backend: Backend) -> None:
    """As after an attempt whose drop is not undone, and that ended before it had made the table."""
    consumer = filled(backend, claims="batches")
    held = consumer.claim(2)
    other = backend.queue("others", claims="batches")
    other.enqueue({"d": "of another table", "e": ""})
    kept = other.claim(1)
    backend.run("DROP TABLE jobs")
    make(backend.engine, tables_for(consumer.table), recreate=True)
    consumer.enqueue({"d": "new"})
    held.done()
    held.settle()
    assert len(held.lost) == 2
    assert len(backend.rows(consumer.table)) == 1
    kept.done()
    kept.settle()
    assert not kept.lost

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

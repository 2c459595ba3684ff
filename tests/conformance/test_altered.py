"""A table that is altered under running consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, job_table
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

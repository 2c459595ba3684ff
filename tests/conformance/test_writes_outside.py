"""What a handler writes in the transaction that holds its jobs, while the loop over the batch is at none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue
from claimjobs.errors import BatchMisused
from tests.backends import Backend
from tests.conformance.effects import EFFECTS, effects, left, queue_with_effects, write
from tests.conformance.jobs import jobs


@pytest.fixture
def queue(backend: Backend) -> Queue:
    queue = queue_with_effects(backend)
    queue.enqueue(jobs(4))
    return queue


def write_for(batch: Batch, *names: str) -> None:
    batch.connection.execute(sa.insert(EFFECTS), [{"name": name} for name in names])


def fail_after_one_insert(batch: Batch) -> None:
    write_for(batch, *(job.d for job in batch.jobs))
    for job in batch:
        if job.d == "0002":
            batch.fail(job, "wrong")


def raise_after_one_insert(batch: Batch) -> None:
    session = batch.session()
    session.execute(sa.insert(EFFECTS), [{"name": job.d} for job in batch.jobs])
    for job in batch:
        assert job.d != "0002"


def fail_in_a_loop_over_jobs(batch: Batch) -> None:
    for job in batch.jobs:
        write(batch, job.d)
        if job.d == "0002":
            batch.fail(job, "wrong")
        batch.done(job)


def leave_one_undecided(batch: Batch) -> None:
    for job in batch.jobs:
        write(batch, job.d)
        if job.d != "0002":
            batch.done(job)


@pytest.mark.parametrize(
    "work", [fail_after_one_insert, raise_after_one_insert, fail_in_a_loop_over_jobs, leave_one_undecided]
)
def test_what_may_be_of_any_job_is_not_committed_without_one_of_them(
    backend: Backend, queue: Queue, work: Callable[[Batch], None]
) -> None:
    """The job would write it again with its next try."""
    with pytest.raises((BatchMisused, AssertionError)), queue.claim() as batch:
        work(batch)
    assert (effects(backend), len(left(backend))) == ([], 4)
    assert {row["suspect"] for row in backend.rows()} == {4}


def test_one_insert_for_those_that_did_not_fail_is_allowed_after_the_loop(backend: Backend, queue: Queue) -> None:
    with queue.claim() as batch:
        good = []
        for job in batch:
            if job.d in ("0001", "0003"):
                batch.fail(job, "wrong", retry_in=60)
                write(batch, f"not {job.d}")
            else:
                good.append(job.d)
        write_for(batch, *good)
        with pytest.raises(BatchMisused, match="at no job may be for any job"):
            batch.release(batch[0])
    assert (effects(backend), left(backend)) == (["0000", "0002", "not 0001", "not 0003"], ["0001", "0003"])


def test_what_was_written_for_all_is_undone_if_all_are_released_or_fail(backend: Backend, queue: Queue) -> None:
    for decide in (Batch.release, lambda batch: batch.fail(batch[0], "wrong", retry_in=60)):
        with queue.claim(1) as batch:
            write(batch, "never")
            decide(batch)
    assert (effects(backend), len(left(backend))) == ([], 4)

"""What a handler writes while the loop over the batch is at no job, and errors after which it goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue
from claimjobs.errors import BatchMisused, BatchRolledBack
from tests.backends import Backend
from tests.conformance.effects import EFFECTS, Effect, effects, left, queue_with_effects, write
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


def swallow(batch: Batch) -> None:
    """Go on after an error. Postgres refuses all that follows."""
    with contextlib.suppress(sa.exc.DBAPIError):
        batch.connection.execute(sa.text("SELECT nothing"))


def test_a_job_whose_handler_swallows_an_error_fails_alone_if_the_server_refuses_the_rest(
    backend: Backend, queue: Queue
) -> None:
    with queue.claim() as batch:
        for job in batch:
            write(batch, job.d)
            if job.d in ("0001", "0003"):
                swallow(batch)
    bad = ["0001", "0003"] if backend.family == "postgres" else []
    assert (effects(backend), left(backend)) == (sorted({"0000", "0001", "0002", "0003"} - {*bad}), bad)
    assert [row["attempts"] for row in backend.rows()] == [1] * len(bad)
    assert all("begin_nested" in row["last_error"] for row in backend.rows())


def add_what_is_refused(batch: Batch) -> None:
    batch.session().add(Effect("too long for its column"))


@pytest.mark.parametrize("is_late", [False, True], ids=["before the loop", "after it"])
@pytest.mark.parametrize("spoil", [swallow, add_what_is_refused])
def test_what_is_refused_outside_of_any_job_undoes_the_batch_and_makes_its_jobs_suspects(
    backend: Backend, queue: Queue, spoil: Callable[[Batch], None], is_late: bool
) -> None:
    with contextlib.suppress(sa.exc.StatementError, BatchRolledBack), queue.claim() as batch:
        if not is_late:
            spoil(batch)
        for job in batch:
            write(batch, job.d)
        if is_late:
            spoil(batch)
    is_refused = spoil is add_what_is_refused or backend.family == "postgres"
    assert len(effects(backend)) == (0 if is_refused else 4)
    assert [row["suspect"] for row in backend.rows()] == [4] * (4 if is_refused else 0)

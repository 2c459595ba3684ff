"""After a settle each failed job is logged once, with its fields, and its hook is called; a lost job is not."""

from __future__ import annotations

import contextlib
import logging
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Job, Retry
from claimjobs.dialects.types import Instant
from claimjobs.errors import BatchRolledBack
from claimjobs.options import HOLDS
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import age, still

pytestmark = pytest.mark.parametrize("hold", HOLDS)


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "claimjobs")


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "claimjobs.settle"]


def test_a_retry_is_a_warning_and_a_dead_job_an_error_with_its_traceback(
    backend: Backend, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = backend.queue(hold=hold, retry=Retry(attempts=1))
    queue.enqueue(jobs(4))
    broken = ValueError("broken")
    with queue.claim() as batch:
        first, second, third, _ = batch.jobs
        batch.fail(first, broken)
        batch.fail(second, "no such address\nreally", retry=False)
        batch.fail(third, broken)
        batch.release(third)  # another outcome: it has not failed
        assert logged(caplog) == [], "nothing is written yet"
    one, other = sorted(logged(caplog), key=lambda record: record.key)
    assert (one.levelname, one.event, one.queue, one.key) == ("ERROR", "job_dead", "jobs", first.key)
    assert (one.attempts, one.error, one.exc_info[1]) == (1, "ValueError: broken", broken)
    assert (other.levelname, other.key, other.error, other.exc_info) == (
        "ERROR",
        second.key,
        "no such address\nreally",
        None,
    )


def test_a_lost_job_is_not_logged_as_failed(backend: Backend, hold: Any, caplog: pytest.LogCaptureFixture) -> None:
    if hold == "transaction":
        pytest.skip("a transaction loses no job")
    queue = backend.queue(hold=hold)
    queue.enqueue(jobs(2))
    with queue.claim() as batch:
        backend.run("UPDATE jobs SET owner_id = 1 WHERE d = '0001'")
        for job in batch.jobs:
            batch.fail(job, "broken")
    [record] = logged(caplog)
    assert (record.levelname, record.event, record.attempts, record.key) == ("WARNING", "job_retry", 1, batch[0].key)
    assert 0 < record.retry_in <= 1


def test_a_message_has_the_key_as_the_commands_take_it_and_when_the_job_runs_again(
    backend: Backend, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    key = (sa.Column(name, sa.Date, primary_key=True) for name in ("day", "due"))
    owner = (sa.Column("owner_id", sa.Integer), sa.Column("status", sa.String(9), server_default="unclaimed"))
    optional = (sa.Column("attempts", sa.Integer, server_default="0"), sa.Column("run_at", Instant))
    sa.Table("parcels", sa.MetaData(), *key, *owner, *optional).create(backend.engine)
    backend.make()
    queue = backend.bare_queue("parcels", hold=hold, on_done="delete")
    queue.enqueue({"day": date(2026, 1, 2), "due": date(2026, 1, n)} for n in (3, 4))
    with queue.claim() as batch:
        batch.fail(batch[0], "broken", retry_in=30)
        batch.fail(batch[1], "broken", retry=False)
    assert [record.getMessage() for record in logged(caplog)] == [
        "job 2026-01-02,2026-01-03 failed: broken; it runs again in 30 s",
        "job 2026-01-02,2026-01-04 is dead: it failed: broken",
    ]


def test_hooks_are_called_with_the_failed_jobs_after_the_commit(backend: Backend, hold: Any) -> None:
    seen: list[tuple[str, Any, Any, Any]] = []

    def note(what: str, job: Job, error: Any) -> None:
        [row] = [row for row in backend.rows() if row["id"] == job.id]
        seen.append((what, job.d, error, row["status"]))

    queue = backend.queue(
        hold=hold,
        on_retry=lambda job, error: note("retry", job, error),
        on_dead=lambda job, error: note("dead", job, error),
    )
    queue.enqueue(jobs(4))
    broken = ValueError("broken")
    with queue.claim() as batch:
        batch.done(batch[0])
        batch.fail(batch[1], broken)
        batch.fail(batch[2], "no such address", retry=False)
    assert seen == [("retry", "0001", broken, "unclaimed"), ("dead", "0002", "no such address", "dead")]


def test_a_hook_that_raises_is_logged_and_the_consumer_works_on(
    backend: Backend, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Any] = []

    def fails(job: Job, _error: Any) -> None:
        called.append(job.key)
        raise SystemExit("the hook is broken")

    queue = backend.queue(hold=hold, retry=Retry(attempts=1), on_dead=fails)
    queue.enqueue(jobs(4))
    for batch in queue.batches(2, drain=True):
        with batch:
            for job in batch:
                batch.fail(job, "broken")
    assert len(called) == 4
    assert [row["status"] for row in backend.rows()] == ["dead"] * 4
    failed = [record for record in logged(caplog) if record.event == "hook_failed"]
    assert [(record.key, record.hook, record.error) for record in failed] == [
        (key, "on_dead", "SystemExit: the hook is broken") for key in called
    ]
    assert all(record.exc_info for record in failed)


def test_a_hook_must_be_a_function_whose_call_does_its_work(backend: Backend, hold: Any) -> None:
    async def later(job: Job, error: Any) -> None: ...

    for hook, why in ((later, "an async def function"), ("shop:alert", "give a function")):
        with pytest.raises(ValueError, match=why):
            backend.queue(hold=hold, on_dead=hook)


def test_no_hook_is_called_for_a_lost_job(backend: Backend, hold: Any) -> None:
    if hold == "transaction":
        pytest.skip("a transaction loses no job")
    called: list[str] = []
    queue = backend.queue(on_retry=lambda job, _: called.append(job.d), on_dead=lambda job, _: called.append(job.d))
    queue.enqueue(jobs(3))
    with queue.claim() as batch:
        backend.run("UPDATE jobs SET owner_id = 1 WHERE d = '0001'")
        batch.fail(batch[0], "broken")
        batch.fail(batch[1], "broken", retry=False)
        batch.fail(batch[2], "broken", retry=False)
    assert called == ["0000", "0002"]


@pytest.mark.parametrize("how", ["by a call", "by a consumer"])
def test_the_hook_is_called_for_a_job_that_a_dead_owner_held_alone(
    backend: Backend, hold: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if hold == "transaction":
        pytest.skip("the server rolls back what a dead process held")
    called: list[tuple[Any, str]] = []
    queue = still(backend.queue())
    queue.enqueue(jobs(1))
    queue.claim()
    age(backend, queue.owner_id)
    other = backend.queue(retry=Retry(attempts=1), on_dead=lambda job, error: called.append((job.d, str(error))))
    if how == "by a call":
        assert other.reclaim() == 1
    else:
        assert not other.claim()
        backend.wait_for(lambda: not other.claim() and called, "its heartbeat reclaimed the job")
    assert called == [("0000", f"owner {queue.owner_id} died while it held this job")]
    [record] = logged(caplog)
    assert (record.event, record.levelname, record.attempts, record.queue) == ("job_dead", "ERROR", 1, "jobs")


def test_an_outcome_that_the_database_refuses_is_logged_once(
    backend: Backend, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = backend.queue(hold=hold, on_done="keep")
    queue.enqueue(jobs(1))
    backend.run("ALTER TABLE jobs ADD CONSTRAINT never_done CHECK (status <> 'done')")
    for _ in range(2):  # the second settle by a transaction makes the savepoint that it needs
        with contextlib.suppress(BatchRolledBack), queue.claim() as batch:
            batch.done()
        if logged(caplog):
            break
    [record] = logged(caplog)
    assert (record.levelname, record.event, record.key) == ("WARNING", "job_retry", batch[0].key)
    assert record.error.startswith("its outcome cannot be written: ")

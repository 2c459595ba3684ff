"""After a settle each failed job is logged once, with its fields; a lost job is not."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest

from claimjobs import Retry
from claimjobs.errors import BatchRolledBack
from claimjobs.options import HOLDS
from tests.backends import Backend
from tests.conformance.jobs import jobs

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

"""Many events of a customer within an hour become one job, at the end of that hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from claimjobs import Queue, job_table, next_whole
from tests.backends import Backend, Clock

INVOICES = job_table(
    "invoices",
    sa.MetaData(),
    sa.Column("customer", sa.String(40), nullable=False),
    sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
    unique=("customer", "hour"),
)


def bought(queue: Queue, *customers: str) -> int:
    """An event of each of these customers, now."""
    hour = next_whole(queue.now())
    rows: list[dict[str, Any]] = [{"customer": customer, "hour": hour, "run_at": hour} for customer in customers]
    return queue.enqueue(rows, unique=("customer", "hour"))


def sent(queue: Queue) -> list[str]:
    """The customers to whom an invoice goes out now."""
    with queue.claim() as batch:
        batch.done()
    return [job.customer for job in batch.jobs]


def test_the_events_of_an_hour_are_one_job_at_its_end(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(INVOICES, now=clock.sql)
    assert clock.now == datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert bought(queue, "ada", "bob", "ada") == 2
    clock.now += timedelta(minutes=59, seconds=59)
    assert bought(queue, "bob", "eve") == 1
    assert sent(queue) == []
    clock.now += timedelta(seconds=1)  # 13:00
    assert bought(queue, "ada") == 1  # belongs to the next hour
    assert sent(queue) == ["ada", "bob", "eve"]
    clock.now += timedelta(minutes=59)
    assert bought(queue, "ada") == 0
    assert sent(queue) == []
    clock.now += timedelta(minutes=1)
    assert sent(queue) == ["ada"]


def test_a_bundle_that_fails_does_not_meet_the_next_one_of_its_customer(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(INVOICES, now=clock.sql)
    for _ in range(2):
        bought(queue, "ada")
        clock.now += timedelta(hours=1)
    for _ in range(2):
        with queue.claim() as batch:
            assert len(batch) == 2
            for job in batch.jobs:
                batch.fail(job, "no printer", retry_in=0)
    assert sent(queue) == ["ada", "ada"]


def test_now_is_the_databases_clock(backend: Backend, clock: Clock) -> None:
    assert backend.queue(now=clock.sql).now() == clock.now
    queue = backend.queue()
    before, between, after = queue.now(), datetime.now(UTC), queue.now()
    assert before < after
    assert before.tzinfo is UTC
    assert abs(between - before) < timedelta(minutes=1)

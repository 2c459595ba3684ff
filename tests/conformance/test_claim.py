"""What a claim takes, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.errors import BadArgument
from claimjobs.options import HOLDS, LARGEST_BATCH, HoldKind
from claimjobs.statements.find import find
from claimjobs.table.definitions import article_table
from tests.backends import Backend, Clock
from tests.conformance.jobs import jobs, names

JOBS = article_table()


@pytest.mark.parametrize("hold", HOLDS)
def test_an_order_of_text_is_that_of_the_column_whatever_form_it_is_read_in(backend: Backend, hold: HoldKind) -> None:
    instants = {"first": "1999-12-31", "second": "2024-02-29", "third": "2000-01-02"}
    rows = [{"d": d, "e": "", "run_at": datetime.fromisoformat(at).replace(tzinfo=UTC)} for d, at in instants.items()]
    queue = backend.queue(order_by="run_at DESC", hold=hold)
    queue.enqueue(rows)
    with queue.claim() as batch:
        assert names(batch) == ["second", "third", "first"]
        assert [job.run_at for job in batch.jobs] == [row["run_at"] for row in (rows[1], rows[2], rows[0])]
        batch.done()


def test_a_claim_takes_as_many_as_asked_for_in_the_order_of_their_keys(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))
    with queue.claim(3) as first, queue.claim(3) as second:
        assert names(first) == ["0000", "0001", "0002"]
        assert names(second) == ["0003", "0004"]


def test_claimed_rows_carry_their_owner_and_the_date(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(now=clock.sql)
    queue.enqueue({**job, "run_at": clock.now} for job in jobs(2))
    with queue.claim(1):
        taken, left = backend.rows(JOBS)
    assert (taken["status"], taken["owner_id"], taken["owner_date"]) == ("claimed", queue.owner_id, clock.now)
    assert (left["status"], left["owner_id"], left["owner_date"]) == ("unclaimed", None, None)


def test_an_empty_queue_gives_an_empty_batch(backend: Backend) -> None:
    batch = backend.queue().claim()
    assert not batch
    assert not batch.contended
    batch.settle()


def test_lower_priority_numbers_come_first_then_keys(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([{**job, "priority": p} for job, p in zip(jobs(6), [5, -1, 5, 0, -1, 0], strict=True)])
    with queue.claim(4) as batch:
        assert names(batch) == ["0001", "0004", "0003", "0005"]


def test_only_what_the_queue_is_for_is_claimed(backend: Backend) -> None:
    queue = backend.queue(JOBS, where=JOBS.c.d > "0002")
    queue.enqueue(jobs(6))
    with queue.claim() as batch:
        assert names(batch) == ["0003", "0004", "0005"]


def test_a_claim_narrows_the_queues_predicate(backend: Backend) -> None:
    queue = backend.queue(JOBS, where=JOBS.c.d > "0002")
    queue.enqueue(jobs(6))
    with queue.claim(where=JOBS.c.d < "0005") as batch:
        assert names(batch) == ["0003", "0004"]


def test_another_predicate_for_the_next_claim_is_not_the_one_before(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(4))
    with queue.claim(where=JOBS.c.d == "0002") as first, queue.claim(where=JOBS.c.d == "0001") as second:
        assert names(first) == ["0002"]
        assert names(second) == ["0001"]
        with queue.claim() as rest:
            assert names(rest) == ["0000", "0003"]


def test_a_callable_predicate_is_asked_for_each_claim(backend: Backend) -> None:
    wanted = iter(["0003", "0001"])
    queue = backend.queue(JOBS, where=lambda: JOBS.c.d == next(wanted))
    queue.enqueue(jobs(5))
    with queue.claim() as first, queue.claim() as second:
        assert names(first) == ["0003"]
        assert names(second) == ["0001"]


def test_the_order_is_the_users(backend: Backend) -> None:
    queue = backend.queue(JOBS, order_by=JOBS.c.d.desc())
    queue.enqueue(jobs(5))
    with queue.claim(3) as batch:
        assert names(batch) == ["0004", "0003", "0002"]


def test_equals_in_the_users_order_come_by_their_keys(backend: Backend) -> None:
    queue = backend.queue(JOBS, order_by=[JOBS.c.e, JOBS.c.priority.desc()])
    given = [("b", 1), ("a", 1), ("b", 2), ("a", 2), ("a", 2)]
    queue.enqueue({"d": str(n), "e": e, "priority": priority} for n, (e, priority) in enumerate(given))
    with queue.claim(4) as batch:
        assert names(batch) == ["3", "4", "1", "2"]


def test_the_order_may_be_an_expression_of_one_column(backend: Backend) -> None:
    queue = backend.queue(JOBS, order_by=-JOBS.c.priority)
    queue.enqueue({**job, "priority": priority} for priority, job in enumerate(jobs(5)))
    with queue.claim(2) as first, queue.claim(2) as second:
        assert [names(first), names(second)] == [["0004", "0003"], ["0002", "0001"]]


def test_without_an_order_every_job_is_found(backend: Backend) -> None:
    queue = backend.queue(JOBS, order_by=())
    queue.enqueue(jobs(5))
    with queue.claim(2) as first, queue.claim(9) as second:
        assert len(first) == 2
        assert sorted(names(first) + names(second)) == [job["d"] for job in jobs(5)]


def test_a_delayed_job_is_claimed_when_it_is_due_and_not_before(backend: Backend, clock: Clock) -> None:
    queue = backend.queue(now=clock.sql)
    queue.enqueue({"d": "later", "e": "", "run_at": clock.now + timedelta(seconds=10)})
    clock.now += timedelta(seconds=9, microseconds=999_999)
    assert not queue.claim()
    clock.now += timedelta(microseconds=1)
    with queue.claim() as batch:
        assert names(batch) == ["later"]
        assert batch[0].run_at == clock.now


def test_an_index_by_run_at_leads_claims_and_idle_checks_past_delayed_jobs(backend: Backend) -> None:
    """The one that docs/dba.md names. Without it both read the entries of all delayed jobs."""
    queue = backend.queue()
    queue.enqueue([*jobs(20_000, run_at=datetime(2100, 1, 1, tzinfo=UTC)), *jobs(3)])
    plan = queue._consumer.plans.plan(None)
    statements = [(find(queue.roles, plan.selection), {"claimjobs_limit": 100}), (sa.select(plan.has_work), {})]
    backend.run("CREATE INDEX jobs_due ON jobs (status, run_at)")
    backend.analyze()
    with backend.engine.connect() as connection:
        for statement, values in statements:
            assert "jobs_due" in backend.plan(connection, statement, values).indexes
            assert backend.rows_read(connection, statement, values) < 100


def test_a_job_without_a_date_is_due_at_once_by_the_databases_clock(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue([*jobs(1), {"d": "in an hour", "e": "", "run_at": datetime.now(UTC) + timedelta(hours=1)}])
    with queue.claim() as batch:
        assert names(batch) == ["0000"]


@pytest.mark.parametrize("size", [0, -1, True, "x", 1.0, None, 10**9])
def test_a_batch_size_is_a_whole_number_from_one(anywhere: Backend, size: Any) -> None:
    queue = anywhere.queue()
    queue.enqueue(jobs(1))
    with pytest.raises(BadArgument, match="whole number from 1"):
        queue.claim(size)
    with pytest.raises(BadArgument):
        queue.batches(size)
    assert queue.stats().unclaimed == 1


def test_the_most_jobs_of_a_claim(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    assert len(queue.claim(LARGEST_BATCH)) == 3
    assert len(queue.claim(LARGEST_BATCH)) == 0


@pytest.mark.parametrize("drain", ["retry", "yes", None, 2])
def test_a_drain_that_is_none_is_refused(anywhere: Backend, drain: Any) -> None:
    for loop in (anywhere.queue().batches, partial(anywhere.queue().work, print)):
        with pytest.raises(BadArgument, match="choose True, False or 'retries'"):
            loop(drain=drain)

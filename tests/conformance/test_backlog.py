"""How much work waits, read without a scan of the table."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.errors import BadPredicate
from claimjobs.metrics.backlog_reader import BacklogReader
from servers.proxy import Proxy
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.orders import beside, orders
from tests.conformance.owners import age, still
from tests.conformance.test_rights import account

MANY = 3_000
LIMIT = 100
AROUND = 20
"""So many rows more may be read: owners, and the row after the last one."""


def test_it_counts_jobs_by_state_and_owners_by_life(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(6))
    with queue.claim(1) as batch:
        batch.fail(batch[0], "no", retry=False)
    with queue.claim(1) as batch:
        batch.fail(batch[0], "not now", retry_in=600)
    batch = queue.claim(2)
    found = queue.backlog()
    assert (found.unclaimed, found.due, found.retrying, found.claimed, found.dead) == (3, 2, 1, 2, 1)
    assert found.oldest is not None
    assert 0 <= found.oldest < 60
    assert found.owners == {"awake": 1, "asleep": 0, "dead": 0}
    batch.settle()


def test_without_jobs_nothing_is_due(backend: Backend) -> None:
    found = backend.queue().backlog()
    assert (found.unclaimed, found.due, found.oldest, found.claimed, found.dead) == (0, 0, None, 0, 0)


def test_unclaimed_jobs_are_those_that_meet_the_predicate_of_the_queue(backend: Backend) -> None:
    backend.queue().enqueue(jobs(6))
    queue = backend.bare_queue(where="d >= '0004'")
    with queue.claim(1) as batch:
        batch.fail(batch[0], "not now", retry_in=600)
    found, stats = queue.backlog(), queue.stats()
    assert (found.unclaimed, found.due, found.retrying, found.dead) == (2, 1, 1, 0)
    assert (stats.unclaimed, stats.not_in_queue, stats.due, stats.left) == (2, 4, 1, 2)
    with queue.claim(1) as batch:
        batch.fail(batch[0], "no", retry=False)
    backend.run("UPDATE jobs SET d = 'moved' WHERE status = 'dead'")
    assert (queue.backlog().dead, queue.stats().dead, queue.stats().left) == (1, 1, 1)


def test_with_a_function_as_predicate_all_unclaimed_jobs_count(backend: Backend) -> None:
    backend.queue().enqueue(jobs(6))
    letters = iter("0000" + "x" * 100)
    queue = backend.bare_queue(where=lambda: f"d >= '{next(letters)}'")
    with queue.claim(1) as batch:
        batch.fail(batch[0], "not now", retry_in=600)
    found, stats, seen = queue.backlog(), queue.stats(), queue.overview()
    assert (found.unclaimed, found.due, found.retrying) == (6, 5, 1)
    assert (stats.unclaimed, stats.not_in_queue, stats.left) == (6, 0, 6)
    assert (seen.backlog.unclaimed, len(seen.retrying)) == (6, 1)


def test_of_a_side_car_too(backend: Backend) -> None:
    orders(backend, 9)
    queue = beside(backend, "orders", where="status = 'paid'", order_by="id")
    assert (queue.backlog().unclaimed, queue.backlog().due, queue.stats().left) == (0, 0, 0)
    backend.run("UPDATE orders SET status = 'paid' WHERE id <= 4")
    with queue.claim(2) as batch:
        batch.fail(batch[0], "not now", retry_in=600)
        batch.done()
    found, stats = queue.backlog(), queue.stats()
    assert (found.unclaimed, found.due, found.retrying) == (3, 2, 1)
    assert (stats.unclaimed, stats.not_in_queue, stats.due, stats.done) == (3, 5, 2, 1)
    other = beside(backend, "orders", where="status = 'new'", order_by="id")
    assert (other.backlog().unclaimed, other.backlog().retrying, other.stats().due) == (5, 0, 5)


def test_an_order_of_any_form_can_be_read(backend: Backend) -> None:
    for order in ("d DESC", sa.text("d DESC"), "-d", ("priority", "-id")):
        queue = backend.queue(order_by=order)
        assert (queue.backlog().unclaimed, queue.overview().dead) == (0, ())


def test_a_predicate_is_asked_of_unclaimed_rows_only(backend: Backend) -> None:
    """It may end in an error for others."""
    backend.queue().enqueue([{"d": str(n), "e": ""} for n in range(1, 4)])
    backend.run("UPDATE jobs SET status = 'done', d = 'x' WHERE d = '1'")
    reads = "d::int > 0" if backend.family == "postgres" else "JSON_EXTRACT(d, '$') > 0"
    queue = backend.bare_queue(where=reads, on_done="keep")
    assert (queue.stats().unclaimed, queue.stats().done, queue.backlog().unclaimed) == (2, 1, 2)


def test_a_predicate_that_cannot_be_read_is_told(database: Backend) -> None:
    queue = database.queue(where="no_such_column = 1")
    for read in (queue.backlog, queue.stats, queue.overview):
        with pytest.raises(BadPredicate, match="no_such_column"):
            read()


def test_an_owner_that_is_silent_for_longer_than_its_lease_is_dead(database: Backend) -> None:
    queue = still(database.queue())
    age(database, queue.owner_id)
    assert queue.backlog().owners == {"awake": 0, "asleep": 0, "dead": 1}
    database.bare_queue().reclaim_owner(queue.owner_id)


def test_of_a_side_car_and_of_open_transactions(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    held = backend.bare_queue(hold="transaction")
    assert (held.backlog().unclaimed, held.backlog().owners) == (3, {})


def test_it_reads_no_more_rows_than_its_limit(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(4 * MANY))
    for after, state in ((0, "done"), (MANY, "dead"), (2 * MANY, "claimed")):
        backend.run(f"UPDATE jobs SET status = '{state}' WHERE id > {after} AND id <= {after + MANY}")
    backend.analyze()
    assert queue.backlog(LIMIT).unclaimed == LIMIT
    for statement, values in sent(queue, LIMIT):
        with backend.engine.connect() as connection:
            assert backend.rows_read(connection, statement, values) <= LIMIT + AROUND, statement
            assert "jobs_claim" in backend.plan(connection, statement, values).indexes


def sent(queue: Queue, limit: int) -> list[tuple[Any, Any]]:
    """The statements of a backlog that read jobs, with their parameters."""
    found: list[tuple[Any, Any]] = []

    def note(_connection: Any, statement: Any, _many: Any, parameters: Any, _options: Any) -> None:
        if "claimjobs_limit" in parameters:
            found.append((statement, parameters))

    sa.event.listen(queue.engine, "before_execute", note)
    try:
        queue.backlog(limit)
    finally:
        sa.event.remove(queue.engine, "before_execute", note)
    assert len(found) == 4
    return found


def test_an_account_that_may_only_read_reads_it(database: Backend) -> None:
    database.queue().enqueue(jobs(2))
    with account(database, jobs="SELECT", claimjobs_owners="SELECT", claimjobs_queues="SELECT") as engine:
        assert database.bare_queue(bind=engine).backlog().due == 2


def test_a_reading_that_fails_leaves_the_last_one_and_says_why(database: Backend) -> None:
    queue = database.queue()
    queue.enqueue(jobs(2))
    reader = BacklogReader(queue, every=0)
    database.wait_for(lambda: reader.latest().error is None, "it is read")
    database.run("ALTER TABLE jobs RENAME TO elsewhere")
    database.wait_for(lambda: reader.latest().error is not None, "the reading fails")
    reading = reader.latest()
    assert reading.backlog is not None
    assert reading.backlog.due == 2
    assert "jobs" in str(reading.error)
    database.run("ALTER TABLE elsewhere RENAME TO jobs")
    database.wait_for(lambda: reader.latest().error is None, "it can be read again")


def test_an_error_of_any_kind_is_a_reading_that_failed(database: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = database.queue()
    monkeypatch.setattr(queue, "backlog", lambda _limit: 1 // 0)
    assert "division" in str(BacklogReader(queue).latest().error)


def test_a_database_that_hangs_makes_no_scrape_wait_for_long(anywhere: Backend) -> None:
    anywhere.queue().enqueue(jobs(2))
    with Proxy(anywhere.url) as proxy:
        reader = BacklogReader(anywhere.bare_queue(bind=anywhere.new_engine_to(proxy.url)), every=0)
        anywhere.wait_for(lambda: reader.latest().error is None, "it is read")
        proxy.stall()
        readings = [reader.latest() for _ in range(3)]
        assert all(reading.backlog is not None for reading in readings)

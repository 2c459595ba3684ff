"""`Queue.overview`: a queue at one moment, by statements that read no whole table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import PerKey, Queue
from claimjobs.admin.overview import KEYS_SHOWN
from claimjobs.metrics.page import PageReader, queue_pages
from tests.backends import Backend, Clock
from tests.conformance.jobs import jobs
from tests.conformance.orders import keys, orders
from tests.conformance.test_per_key import KINDS, finish, mails

MANY = 3_000
LIMIT = 100
AROUND = 20
"""So many rows more may be read: owners, and the row after the last one."""


@pytest.mark.parametrize(
    "kind",
    [
        {},
        pytest.param({"claims": "batches"}, marks=pytest.mark.pair("what owners hold is in claim rows")),
        pytest.param({"hold": "transaction"}, marks=pytest.mark.pair("there are no owners")),
    ],
    ids=str,
)
def test_it_counts_jobs_and_shows_owners_and_the_last_dead_jobs(backend: Backend, kind: dict[str, Any]) -> None:
    queue = backend.queue(**kind)
    queue.enqueue(jobs(20))
    with queue.claim(3) as batch:
        for job in batch:
            batch.fail(job, f"error {job.id}", retry=False)
    batch = queue.claim(4)
    seen, claimed = queue.overview(), 0 if "hold" in kind else 4
    assert [seen.jobs(state) for state in ("unclaimed", "claimed", "dead")] == [17 - claimed, claimed, 3]
    assert [(job.key, job.failures, job.error) for job in seen.dead] == [(n, 1, f"error {n}") for n in (3, 2, 1)]
    assert [owner.jobs for owner in seen.owners] == ([] if "hold" in kind else [4])
    assert (seen.is_exact("unclaimed"), queue.overview(limit=5).is_exact("unclaimed")) == (True, False)
    batch.settle()
    queue.pause("deploy")
    assert queue.overview().pause_reason == "deploy"
    queue.resume()
    assert queue.overview().paused is None


def test_with_a_side_car_the_dead_are_those_of_the_second_table(backend: Backend) -> None:
    queue = orders(backend, 5)
    with queue.claim(2) as batch:
        first, second = keys(batch)
        for job in batch:
            batch.fail(job, "no", retry=False)
    seen = queue.overview()
    assert {(job.key, job.error) for job in seen.dead} == {(first, "no"), (second, "no")}
    assert [seen.jobs(state) for state in ("unclaimed", "claimed", "dead")] == [3, 0, 2]


@KINDS
def test_it_shows_jobs_that_will_be_tried_again_the_worst_first(
    backend: Backend, clock: Clock, kind: dict[str, Any]
) -> None:
    queue = mails(backend, PerKey("customer"), range(3), kind, now=clock.sql)
    for _ in range(2):
        with queue.claim(3) as batch:
            for job in batch:
                batch.fail(job, f"error {job['customer']}", retry_in=5 if job["customer"] == 1 else 600)
        clock.now += timedelta(seconds=6)
    seen, held = queue.overview(), queue.claim(1)
    worst = seen.retrying[0]
    assert (worst.failures, worst.error, worst.when) == (2, "error 1", "due")
    assert {job.error: job.when for job in seen.retrying}["error 0"] == "in 9 min 48 s"
    assert (seen.backlog.retrying, len(seen.retrying)) == (3, 3)
    assert queue.overview().backlog.retrying == 2  # one is claimed
    held.release()


def test_it_reads_no_more_rows_than_its_limit(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(3 * MANY))
    for after, state in ((0, "done"), (MANY, "dead")):
        backend.run(f"UPDATE jobs SET status = '{state}' WHERE id > {after} AND id <= {after + MANY}")
    backend.analyze()
    assert queue.overview(LIMIT).dead[0].key == 2 * MANY  # now each part of the Queue is made
    assert _selects_bounded(backend, queue) > 6


@KINDS
def test_it_shows_keys_that_are_held_back_and_those_that_wait_longest(
    backend: Backend, clock: Clock, kind: dict[str, Any]
) -> None:
    two = PerKey("customer", at_most=2)
    queue = mails(backend, two, [7, 7, 7, 8], kind, now=clock.sql)
    assert [(key.key, key.jobs) for key in queue.overview().keys] == []  # no claim has seen a key yet
    first = queue.claim(9)
    assert len(first) == 3
    clock.now += timedelta(seconds=5)
    assert not queue.claim(9)
    clock.now += timedelta(seconds=1)
    [held] = [key for key in queue.overview().keys if key.is_held_back]
    assert (held.key, held.jobs, held.when) == (7, 2, "held back, again in 1 s")
    clock.now += timedelta(seconds=11)
    [full] = queue.overview().keys  # no job of key 8 waits
    assert (full.key, full.is_held_back, full.when) == (7, True, "held back by its limit")
    first.settle()
    waits = queue.overview().keys[0]
    assert (waits.key, waits.is_held_back, waits.when[:7]) == (7, False, "due for")
    finish(queue.claim(9))
    finish(queue.claim(9))
    assert queue.overview().keys == ()


def test_the_page_in_a_browser_shows_what_is_read(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=1), [7, 7, 8])
    queue.claim()
    reader = PageReader(queue)
    pages = queue_pages(reader)
    reader.latest()
    [body] = pages["/"]({}, lambda *_: lambda _: None)
    text = body.decode()
    assert '<tr><td>claimed</td><td class="number">2</td>' in text
    assert "<h2>Keys that wait</h2>" in text


def test_of_many_keys_it_reads_no_more_than_its_limit(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=1), range(MANY))
    for begin, at, is_held in ((0, "2000-01-01", "false"), (20_000, "2100-01-01", "true")):
        values = f"SELECT {begin} + customer, '{at}', {is_held} FROM mails"
        backend.run(f"INSERT INTO mails_keys (customer, next_at, held_back) {values}")
    for table in ("mails", "mails_keys"):
        backend.analyze(table)
    assert [key.next_in > 0 for key in queue.overview(LIMIT).keys] == [False] * KEYS_SHOWN + [True] * KEYS_SHOWN
    assert _selects_bounded(backend, queue, "mails_keys", copies=2) == 3  # MySQL writes a derived table, and reads it


def _selects_bounded(backend: Backend, queue: Queue, table: str = "", copies: int = 1) -> int:
    """How many statements of this table an overview sends; each reads few rows, at most so many times."""
    sent: list[tuple[Any, Any]] = []

    def note(_connection: Any, statement: Any, _many: Any, parameters: Any, _options: Any) -> None:
        if isinstance(statement, sa.Select) and table in str(statement):
            sent.append((statement, parameters))

    sa.event.listen(queue.engine, "before_execute", note)
    queue.overview(LIMIT)
    sa.event.remove(queue.engine, "before_execute", note)
    for statement, values in sent:
        with backend.engine.connect() as connection:
            assert backend.rows_read(connection, statement, values) <= copies * LIMIT + AROUND, str(statement)
    return len(sent)

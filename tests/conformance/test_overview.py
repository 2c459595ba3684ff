"""`Queue.overview`: a queue at one moment, by statements that read no whole table."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.orders import keys, orders

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


def test_it_reads_no_more_rows_than_its_limit(backend: Backend) -> None:
    queue = backend.queue(on_done="keep")
    queue.enqueue(jobs(3 * MANY))
    for after, state in ((0, "done"), (MANY, "dead")):
        backend.run(f"UPDATE jobs SET status = '{state}' WHERE id > {after} AND id <= {after + MANY}")
    backend.analyze()
    assert queue.overview(LIMIT).dead[0].key == 2 * MANY  # now each part of the Queue is made
    sent: list[tuple[Any, Any]] = []

    def note(_connection: Any, statement: Any, _many: Any, parameters: Any, _options: Any) -> None:
        if isinstance(statement, sa.Select):
            sent.append((statement, parameters))

    sa.event.listen(queue.engine, "before_execute", note)
    queue.overview(LIMIT)
    sa.event.remove(queue.engine, "before_execute", note)
    assert len(sent) > 6
    for statement, values in sent:
        with backend.engine.connect() as connection:
            assert backend.rows_read(connection, statement, values) <= LIMIT + AROUND, statement

"""The way of a job with each kind of queue: what every change must leave as it is.

`make check` runs these on Postgres, `make test` on MariaDB, too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Job, Queue, Retry, make, side_car_tables, tables_for
from claimjobs.dialects.types import Instant
from tests.backends import Backend, Clock
from tests.conformance.jobs import dead_jobs
from tests.conformance.owners import declare_dead, owner_row, still

pytestmark = [pytest.mark.core, pytest.mark.mariadb("its claims are the portable statements, without JSON_TABLE")]

LATER = timedelta(hours=2)
"""Beyond every back-off."""

KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "batches": {"claims": "batches"},
    "transaction": {"hold": "transaction"},
    "side-car": {"side_car": True},
}
EACH_KIND = [
    pytest.param("rows"),
    pytest.param("batches", marks=pytest.mark.pair("a claim is one row for the batch")),
    pytest.param("transaction", marks=pytest.mark.pair("a claim is the locks of an open transaction")),
    pytest.param("side-car", marks=pytest.mark.pair("outcomes are written in a second table")),
]


@dataclass
class Kind:
    """Queues of one kind over one table of the database."""

    backend: Backend
    clock: Clock
    name: str
    table: str = "parcels"
    done: Counter[int] = field(default_factory=Counter)

    def make(self, count: int) -> None:
        """The table, with so many jobs that are due."""
        columns: list[sa.Column[Any]] = [
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("d", sa.String(9)),
        ]
        if self.name != "side-car":
            columns += [
                sa.Column("status", sa.String(9), nullable=False, server_default="unclaimed"),
                sa.Column("owner_id", sa.Integer),
                sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
                sa.Column("suspect", sa.Integer, nullable=False, server_default="0"),
                sa.Column("run_at", Instant),
                sa.Column("last_error", sa.String(200)),
            ]
        made = sa.Table(self.table, sa.MetaData(), *columns, mysql_engine="InnoDB")
        made.create(self.backend.engine)
        ours = side_car_tables(self.backend.engine, self.table) if self.name == "side-car" else tables_for("jobs")
        make(self.backend.engine, ours)
        self.backend.insert(self.table, [{"id": number, "d": "x"} for number in range(1, count + 1)])

    def queue(self, **options: Any) -> Queue:
        kept = {} if self.name == "side-car" else {"on_done": "delete"}
        given = {**KINDS[self.name], **kept, "now": self.clock.sql, **options}
        return self.backend.bare_queue(self.table, bind=self.backend.new_engine(), **given)

    def drain(self, queue: Queue, size: int = 4) -> None:
        for batch in queue.batches(size, drain=True):
            with batch:
                self.done.update(job.key for job in batch)

    def due(self) -> list[int]:
        """The keys that a claim takes now."""
        queue = self.queue()
        with queue.claim(100) as batch:
            found = [job.key for job in batch.jobs]
            batch.release(*batch.jobs)
        queue.close()
        return found


@pytest.fixture(params=EACH_KIND)
def kind(request: pytest.FixtureRequest, backend: Backend, clock: Clock) -> Kind:
    return Kind(backend, clock, request.param)


def keys(jobs: Iterable[Job]) -> list[Any]:
    return [job.key for job in jobs]


def test_each_job_is_held_by_one_consumer_and_done_once(kind: Kind) -> None:
    kind.make(10)
    one, other = kind.queue(), kind.queue()
    with one.claim(4) as mine, other.claim(4) as yours:
        assert (keys(mine.jobs), keys(yours.jobs)) == ([1, 2, 3, 4], [5, 6, 7, 8])
        mine.done()
        kind.done.update(keys(mine.jobs))
    kind.drain(other)
    assert kind.done == Counter(range(1, 11)), "what was released is done by another one"
    assert kind.due() == []


def test_a_released_job_is_claimed_again_and_has_no_attempt(kind: Kind) -> None:
    kind.make(3)
    queue = kind.queue(retry=Retry(attempts=2))
    with queue.claim(2) as batch:
        batch.done(batch[0])
    assert kind.due() == [2, 3]
    with queue.claim(1) as batch:
        batch.fail(batch[0], "for the first time")
    assert list(dead_jobs(queue)) == []


def test_a_failed_job_waits_for_its_retry(kind: Kind) -> None:
    kind.make(3)
    queue = kind.queue(retry=Retry(base=60))
    with queue.claim(2) as batch:
        batch.fail(batch[0], "broken")
        batch.done(batch[1])
    assert kind.due() == [3]
    kind.clock.now += LATER
    assert sorted(kind.due()) == [1, 3]


def test_after_its_last_attempt_a_job_is_dead_until_a_person_retries_it(kind: Kind) -> None:
    kind.make(2)
    queue = kind.queue(retry=Retry(attempts=1))
    with queue.claim(1) as batch:
        batch.fail(batch[0], "broken for good")
    assert kind.due() == [2]
    assert [(job.key, job.attempts, job.last_error) for job in dead_jobs(queue)] == [(1, 1, "broken for good")]
    assert queue.jobs.retry([1]) == 1
    assert kind.due() == [1, 2]


def test_an_error_that_names_no_job_makes_suspects_and_only_one_alone_is_charged(kind: Kind) -> None:
    kind.make(2)
    queue = kind.queue(retry=Retry(attempts=1))
    for _ in range(3):
        with contextlib.suppress(ValueError), queue.claim(2) as batch:
            if 1 in keys(batch.jobs):
                raise ValueError("1 is poison")
            batch.done()
            kind.done.update(keys(batch.jobs))
        kind.clock.now += LATER
    assert (kind.done, keys(dead_jobs(queue))) == (Counter([2]), [1])


def test_what_a_dead_consumer_held_is_done_by_another_and_its_late_outcome_is_refused(kind: Kind) -> None:
    kind.make(5)
    dead, living = kind.queue(), kind.queue()
    if kind.name == "transaction":
        _loses_its_session(kind, dead, living)
        return
    batch = still(dead).claim(3)
    declare_dead(kind.backend, dead.owner_id)
    kind.backend.wait_for(lambda: living.reclaim() and not owner_row(kind.backend, dead.owner_id), "it is reclaimed")
    batch.done()
    batch.settle()
    assert keys(batch.lost) == [1, 2, 3]
    kind.drain(living)
    assert kind.done == Counter(range(1, 6))


def _loses_its_session(kind: Kind, dead: Queue, living: Queue) -> None:
    batch = dead.claim(3)
    assert keys(batch.jobs) == [1, 2, 3]
    kind.backend.end_sessions()
    kind.drain(living)
    assert kind.done == Counter(range(1, 6))
    batch.done()
    with pytest.raises(Exception, match=r"rolled back|connection lost"):
        batch.settle()

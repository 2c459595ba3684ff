"""The owner of a consumer that claims by transactions, where it can have one.

It holds no job, sleeps while the consumer is idle, and reclaims what dead owners held.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.lease.transaction_hold import TransactionHold
from claimjobs.options import HoldKind, Liveness
from claimjobs.queue.batch_loop import IdleBackoff
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs
from tests.conformance.owners import LONG_AGO, OWNERS, age, owner_of, states, still
from tests.conformance.sleepers import NEVER, PATIENT, Consumer

QUICK = Liveness(lease=2.0)


def held(backend: Backend, **options: Any) -> Queue:
    return backend.queue(hold="transaction", **{"liveness": PATIENT, **options})


def owners(backend: Backend) -> list[int]:
    with backend.engine.connect() as connection:
        return list(connection.scalars(sa.select(OWNERS.c.id)))


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("producer", ["lease", "transaction"])
def test_an_enqueue_wakes_a_consumer_by_transaction(backend: Backend, producer: HoldKind) -> None:
    queue, those = held(backend), ("one", "two", "three")
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
        looks = queue.report.empty_claims
        for number, name in enumerate(those, 1):
            consumer.falls_asleep()
            backend.queue(hold=producer).enqueue({"d": name, "e": ""})
            consumer.does(*those[:number])
        consumer.falls_asleep()
        assert queue.report.empty_claims == looks + len(those), "each woke it once"
        assert len(owners(backend)) == 1
    queue.close()
    assert owners(backend) == []


@pytest.mark.usefixtures("only_when_called")
def test_a_callers_transaction_wakes_it_by_its_commit(backend: Backend) -> None:
    producer = backend.queue(hold="transaction")
    with Consumer(backend, held(backend)) as consumer, backend.engine.connect() as connection:
        consumer.falls_asleep()
        producer.enqueue(jobs(1), connection)
        assert consumer.is_asleep()
        connection.commit()
        consumer.does("0000")


def test_it_is_woken_while_another_one_has_jobs_in_its_transaction(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These look unclaimed. Whether others are free only a claim finds out, and that comes rarely."""
    monkeypatch.setattr(IdleBackoff, "pause", lambda _: NEVER)
    other = backend.queue(hold="transaction")
    other.enqueue({"d": "held", "e": ""})
    with other.claim(1) as batch, Consumer(backend, held(backend)) as consumer:
        consumer.falls_asleep()
        other.enqueue({"d": "free", "e": ""})
        consumer.does("free")
        batch.done()
    assert states(backend) == []


@pytest.mark.usefixtures("only_when_called")
def test_a_table_without_a_column_for_owners_has_idle_ones(backend: Backend) -> None:
    """And those of them that died are removed by the others."""
    table = sa.Table(
        "parts", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("d", sa.String(9))
    )
    backend.make()
    table.create(backend.engine)
    options: Any = {"hold": "transaction", "on_done": "delete", "liveness": QUICK}
    with Consumer(backend, backend.bare_queue(table, **options)) as consumer:
        consumer.falls_asleep()
        [living] = backend.rows(OWNERS)
        same = {name: living[name] for name in ("claims", "kind", "sees")}
        row = {"host": "h", "pid": 1, "lease": 2.0, "beat": LONG_AGO, "asleep": LONG_AGO, **same}
        with backend.engine.begin() as connection:
            connection.execute(sa.insert(OWNERS), row)
        backend.wait_for(lambda: len(owners(backend)) == 1, "the dead one is removed")
        consumer.falls_asleep()
        backend.bare_queue(table, **options).enqueue({"d": "one"})
        consumer.does("one")


def test_without_the_tables_of_owners_it_polls(backend: Backend) -> None:
    queue = backend.queue(hold="transaction")
    backend.run("DROP TABLE claimjobs_owners")
    with Consumer(backend, queue, poll=0.05) as consumer:
        backend.wait_for(lambda: queue.report.empty_claims > 5, "it looks again and again")
        assert owner_of(queue) is None
        backend.bare_queue(hold="transaction").enqueue(jobs(1))
        consumer.does("0000")


def test_jobs_that_a_dead_lease_held_are_released_by_an_idle_one(backend: Backend) -> None:
    """It looks after the owners of its table as every owner does."""
    lease = still(backend.queue())
    lease.enqueue(jobs(2))
    lease.claim(2)
    with Consumer(backend, held(backend, liveness=QUICK)) as consumer:
        consumer.falls_asleep()
        age(backend, lease.owner_id)
        consumer.does("0000", "0001")


def test_jobs_that_a_dead_lease_held_are_released_by_a_busy_one(backend: Backend) -> None:
    """It may never be idle, and nobody else may be left. So it has an owner as soon as another owner records claims."""
    retried: list[str] = []
    queue = held(backend, liveness=QUICK, on_retry=lambda job, _: retried.append(job.d))
    queue.enqueue(jobs(3))
    with queue.claim(1) as batch:
        batch.done()
    assert owner_of(queue) is None, "nobody claims by lease"
    lease = still(backend.queue())
    [theirs] = lease.claim(1)
    hold = queue._consumer.hold
    assert isinstance(hold, TransactionHold)
    hold._pause_read_at = -math.inf  # as a fifth of a lease later
    with queue.claim(1) as batch:
        assert owner_of(queue) is not None
        age(backend, lease.owner_id)
        backend.wait_for(lambda: queue.report.reclaimed, "it is reclaimed while a batch is in hand")
        batch.done()
    assert [job.d for job in queue.claim(1)] == [theirs.d] == retried


def test_its_owner_leaves_the_plans_of_claims_to_the_connection_that_claims(backend: Backend) -> None:
    """Only there a plan that was made for a few rows must be forgotten."""
    queue = held(backend)
    queue.enqueue(jobs(2))
    hold = queue._consumer.hold
    assert hold.sleeper is not None
    owner = hold.owner
    assert owner is not None
    owner.stop()
    with queue.claim(1) as batch:
        batch.done()
    with counted(backend.engine) as by_owner:
        owner.read_pause()
    with counted(backend.engine) as by_claims:
        hold.read_pause()
    forgets = backend.dialect.sessions.forget_plans is not None
    assert ["DISCARD" in "".join(sent) for sent in (by_owner, by_claims)] == [False, forgets]


def test_a_wake_begins_its_next_claim_at_the_head(backend: Backend) -> None:
    """A row with a higher priority is before the cursor of the claims, not of the owner that was woken."""
    queue = held(backend)
    queue.enqueue({"d": str(n), "e": "", "priority": 5} for n in range(4))
    with queue.claim(2) as batch:
        batch.done()
    hold = queue._consumer.hold
    assert hold.sleeper is not None
    backend.queue().enqueue({"d": "first", "e": "", "priority": 1})
    hold.sleeper._wake()
    assert [job.d for job in queue.claim(1)] == ["first"]

"""A side-car for claims that an open transaction holds."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs import Retry
from claimjobs.errors import ClaimsDiffer
from claimjobs.table.definitions import BATCHES_TABLE, OWNER_TABLE
from tests.backends import Backend, Clock
from tests.conformance.orders import (
    BY_LEASE,
    LATER,
    ORDERS,
    claims,
    do_all,
    keys,
    orders,
    spoil,
)
from tests.conformance.test_batch_claims import before_each, open_their_batch


def test_the_lock_on_the_row_is_the_claim(backend: Backend) -> None:
    queue, other = (orders(backend, 4, hold="transaction") for _ in range(2))
    with queue.claim(2) as batch:
        assert claims(backend) == {}
        assert backend.locked("orders") == 2
        assert keys(other.claim(4)) == [3, 4]
        assert not orders(backend).claim(4)
        batch.connection.execute(sa.update(ORDERS).where(ORDERS.c.id == 1).values(status="paid"))
        batch.done(batch[0])
    assert claims(backend) == {1: "done"}
    assert [row["status"] for row in backend.rows("orders")] == ["paid", "new", "new", "new"]
    other.close()
    assert do_all(queue) == [2, 3, 4]


def test_consumers_of_both_holds_work_beside_one_table(backend: Backend) -> None:
    """A claim by transaction sees open batches, although it records none, whoever of the two was there first."""
    first, by_batch = orders(backend, 6, way="transaction"), orders(backend, way="batches")
    assert keys(first.claim(1)) == [1]
    first.close()
    with by_batch.claim(2) as held:
        assert keys(first.claim(2)) == [3, 4]
        stats = first.stats()
        assert (stats.unclaimed, stats.claimed) == (4, 2)
        held.done()
    first.close()
    assert keys(first.claim(9)) == [3, 4, 5, 6]


@BY_LEASE
def test_an_idle_consumer_by_transaction_is_in_nobodys_way(backend: Backend, way: str) -> None:
    """It sleeps as an owner that records no claims, whatever the others do."""
    if not backend.dialect.wakes or way == "read":
        pytest.skip("no consumer by transaction sleeps as an owner, or none locks rows")
    idle = orders(backend, 4, way="transaction")
    assert idle._parts.sleeper is not None
    assert len(backend.rows(OWNER_TABLE)) == 1
    queue = orders(backend, way=way, bind=backend.new_engine())
    assert keys(queue.claim(2)) == [1, 2]
    assert (queue.stats().claimed, idle.stats().claimed) == (2, 2)
    queue.close()
    idle.close()
    assert backend.rows(BATCHES_TABLE) == []


def test_a_claim_goes_on_if_others_have_claimed_all_that_it_locked(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = orders(backend, 4, bind=engine, order_by=[ORDERS.c.customer, ORDERS.c.id])
    assert queue.owner_id

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, [3, 1], "orders_claims")

    with before_each(engine, "SELECT orders.id AS", claimed_by_another):
        assert keys(queue.claim(2)) == [4, 2]
    assert queue.report.claims == 1


def test_who_locks_and_who_only_reads_refuse_each_other(backend: Backend) -> None:
    """One records its claims per batch, the other inserts them into the side-car: neither would see the other's."""
    locks = orders(backend)
    assert locks.owner_id
    with pytest.raises(ClaimsDiffer, match="claims='batches'"):
        orders(backend, way="read").claim(1)
    locks.close()
    reads = orders(backend, way="read")
    assert keys(reads.claim(1)) == [1]
    with pytest.raises(ClaimsDiffer, match="claims='rows'"):
        locks.claim(1)


def test_a_done_row_is_deleted_where_its_lock_was_the_claim(backend: Backend) -> None:
    queue = orders(backend, 4, hold="transaction", on_done="delete")
    with queue.claim(2) as batch:
        batch.fail(batch[0], "not yet")
        batch.done(batch[1])
    assert [row["id"] for row in backend.rows("orders")] == [1, 3, 4]
    assert claims(backend) == {1: "unclaimed"}


def test_failures_are_counted_also_where_nothing_was_claimed_in_writing(backend: Backend, clock: Clock) -> None:
    queue = orders(backend, 1, hold="transaction", now=clock.sql, retry=Retry(attempts=2, base=60))
    for _ in range(2):
        with queue.claim() as batch:
            batch.fail(batch[0], "broken")
        assert not queue.claim()
        clock.now += LATER
    [dead] = queue.dead.list()
    assert (dead.key, dead.attempts, dead.last_error) == (1, 2, "broken")


def test_suspects_are_taken_apart_also_where_a_lock_is_the_claim(backend: Backend, clock: Clock) -> None:
    queue = orders(backend, 4, hold="transaction", now=clock.sql)
    sizes = [len(spoil(queue))]
    while sizes[-1] > 1:
        clock.now += LATER
        sizes.append(len(spoil(queue)))
    assert sizes == [4, 2, 1]

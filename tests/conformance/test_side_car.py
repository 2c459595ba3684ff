"""A table that must not be altered: outcomes of its rows are in a table beside it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Job, Queue, Retry
from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend, Clock
from tests.conformance.jobs import by_hand, counted, dead_jobs
from tests.conformance.orders import (
    LATER,
    ORDERS,
    claim_by_hand,
    claims,
    do_all,
    fill,
    keys,
    locks_of,
    orders,
    spoil,
)
from tests.conformance.owners import declare_dead, still
from tests.conformance.test_batch_claims import THEIRS, before_each, open_their_batch

# --- a job's way ------------------------------------------------------------------------------------------------


def test_rows_are_claimed_and_done_and_none_comes_back(backend: Backend) -> None:
    queue = orders(backend)
    with queue.claim(4) as batch:
        assert keys(batch) == [1, 2, 3, 4]
        assert (batch[0].customer, batch[0].status) == ("c1", "new")
        assert claims(backend) == dict.fromkeys(range(1, 5), "claimed")
        batch.done()
    assert claims(backend) == dict.fromkeys(range(1, 5), "done")
    assert do_all(queue) == [5, 6, 7, 8, 9, 10]
    assert not queue.claim(100)
    assert [row["status"] for row in backend.rows("orders")] == ["new"] * 10


def test_a_released_row_is_claimed_again(backend: Backend) -> None:
    queue = orders(backend, 3)
    queue.claim(2).settle()
    assert claims(backend) == {}
    assert keys(queue.claim(3)) == [1, 2, 3]
    assert set(claims(backend).values()) == {"claimed"}


def test_failures_are_counted_and_waited_for_until_the_job_is_dead(backend: Backend, clock: Clock) -> None:
    queue = orders(backend, 2, now=clock.sql, retry=Retry(attempts=3, base=60))
    for _ in range(2):
        with queue.claim(1) as batch:
            assert keys(batch) == [1]
            batch.fail(batch[0], "broken")
        assert keys(queue.claim()) == [2]
        queue.close()
        clock.now += LATER
    with queue.claim(1) as batch:
        batch.fail(batch[0], "broken for good")
    [dead] = dead_jobs(queue)
    assert (dead.key, dead.attempts, dead.last_error) == (1, 3, "broken for good")
    assert keys(queue.claim()) == [2]
    queue.close()
    assert queue.jobs.retry() == 1
    assert keys(queue.claim()) == [1, 2]


def test_a_batch_that_fails_as_a_whole_is_taken_apart(backend: Backend, clock: Clock) -> None:
    queue = orders(backend, 8, now=clock.sql)
    sizes = [len(spoil(queue))]
    while sizes[-1] > 1:
        clock.now += LATER
        sizes.append(len(spoil(queue)))
    assert sizes == [8, 4, 2, 1]
    assert [row["attempts"] for row in backend.rows("orders_claims")] == [1, 0, 0, 0, 0, 0, 0, 0]


def test_dead_rows_are_chosen_by_the_columns_of_both_tables(backend: Backend) -> None:
    queue = orders(backend, 6)
    with queue.claim(6) as batch:
        for job in batch.jobs:
            batch.fail(job, f"error {job.key}", retry=False)
    assert keys(dead_jobs(queue, ORDERS.c.customer == "c0")) == [3, 6]
    assert keys(dead_jobs(queue, sa.text("customer = 'c1' AND last_error LIKE '%4'"))) == [4]
    assert queue.jobs.count(sa.text("customer = 'c2'"), state="dead") == 2
    assert queue.jobs.retry(where=ORDERS.c.customer == "c0") == 2
    assert queue.jobs.drop(where=sa.text("id = 1")) == 1
    assert claims(backend) == {1: "done", 2: "dead", 3: "unclaimed", 4: "dead", 5: "dead", 6: "unclaimed"}


def test_a_dropped_job_is_not_executed_again(backend: Backend) -> None:
    """Its row is the user's, and stays. Without its entry in the side-car it would be a new job."""
    queue = orders(backend, 3)
    with queue.claim(2) as batch:
        batch.fail(batch[0], "broken", retry=False)
        batch.fail(batch[1], "broken", retry=False)
    assert queue.jobs.drop([1]) == queue.jobs.drop() == 1
    assert do_all(queue) == [3]
    assert [row["id"] for row in backend.rows("orders")] == [1, 2, 3]
    assert [row["last_error"] for row in backend.rows("orders_claims")] == ["broken", "broken", None]
    stats = queue.stats()
    assert (stats.left, stats.done, stats.dead) == (0, 3, 0)


# --- what becomes of done rows ----------------------------------------------------------------------------------


def test_a_done_row_is_deleted_with_its_claim_in_one_transaction(backend: Backend) -> None:
    queue = orders(backend, 5, on_done="delete")
    batch = queue.claim(3)
    with counted(backend.engine) as sent, batch:
        batch.done(batch[0], batch[1])
    assert sent.count("COMMIT") == 1
    assert [row["id"] for row in backend.rows("orders")] == [3, 4, 5]
    assert claims(backend) == {}
    assert do_all(queue) == [3, 4, 5]
    assert (backend.rows("orders"), claims(backend)) == ([], {})


@pytest.mark.parametrize("wanted", [None, "keep", "delete"])
def test_a_function_says_what_becomes_of_done_rows(backend: Backend, wanted: Any) -> None:
    def moved(connection: sa.Connection, jobs: list[Job]) -> Any:
        connection.execute(sa.update(ORDERS).where(ORDERS.c.id.in_(keys(jobs))).values(status="moved"))
        return wanted

    queue = orders(backend, 2, on_done=moved)
    with queue.claim(1) as batch:
        batch.done()
    told = [(row["id"], row["status"]) for row in backend.rows("orders")]
    assert told == ([(2, "new")] if wanted == "delete" else [(1, "moved"), (2, "new")])
    assert claims(backend) == ({} if wanted == "delete" else {1: "done"})


def test_what_was_changed_since_it_was_claimed_in_a_batch(backend: Backend) -> None:
    """A job that is taken out of its batch, or that the side-car calls done or dead, is lost; the others are not."""
    queue = orders(backend, 5, on_done="delete")
    with queue.claim(4) as batch:
        backend.run("INSERT INTO orders_claims (id, status) VALUES (2, 'dead')")
        batch.done()
    assert keys(batch.lost) == [2]
    assert claims(backend) == {2: "dead"}
    assert [row["id"] for row in backend.rows("orders")] == [2, 5]
    with queue.claim(1) as batch:
        backend.run(f"DELETE FROM {BATCHES_TABLE} WHERE jobs > 0")
        batch.done()
    assert keys(batch.lost) == keys(queue.claim(1)) == [5]


@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_a_row_that_is_deleted_while_it_is_claimed_is_done_all_the_same(backend: Backend, on_done: Any) -> None:
    queue = orders(backend, 2, on_done=on_done)
    with queue.claim(2) as batch:
        backend.run("DELETE FROM orders WHERE id = 1")
        batch.done()
    assert batch.lost == ()
    assert queue.report.done == 2
    # A row that is gone needs no word that it is done.
    assert claims(backend) == ({2: "done"} if on_done == "keep" else {})


def test_a_key_that_is_used_again_is_a_job_again_only_where_done_keys_are_not_kept(backend: Backend) -> None:
    queue = orders(backend, 1, on_done="delete")
    assert do_all(queue) == [1]
    fill(backend, 1)
    assert do_all(queue) == [1]
    fill(backend, 1)
    keeping = orders(backend)
    assert do_all(keeping) == [1]
    backend.run("DELETE FROM orders")
    fill(backend, 1)
    assert do_all(keeping) == []


# --- who may have what ------------------------------------------------------------------------------------------


def test_two_consumers_have_different_rows(backend: Backend) -> None:
    first, second = (orders(backend) for _ in range(2))
    assert keys(first.claim(4)) == [1, 2, 3, 4]
    assert keys(second.claim(4)) == [5, 6, 7, 8]
    assert first.owner_id != second.owner_id


def test_in_any_order_consumers_share_the_rows_of_a_table_that_must_not_be_altered(backend: Backend) -> None:
    """A foreign table has no index of claimjobs. So no place is drawn, and the claims begin where they always do."""
    queues = [orders(backend, 30, order_by=(), bind=backend.new_engine()) for _ in range(2)]
    batches = [queue.claim(4) for queue in queues]
    first = [key for batch in batches for key in keys(batch)]
    assert len(set(first)) == 8
    for batch in batches:
        with batch:
            batch.release()
    assert sorted(do_all(queues[0]) + do_all(queues[1])) == list(range(1, 31))


def test_what_a_dead_owner_held_is_handed_back(backend: Backend) -> None:
    dead, other = (still(orders(backend, 4)) for _ in range(2))
    batch = dead.claim(3)
    declare_dead(backend, dead.owner_id)
    assert other.reclaim() == 3
    with other.claim(1) as again:
        assert keys(again) == [1]
        again.done()
    batch.done()
    batch.settle()
    assert keys(batch.lost) == [1, 2, 3]
    assert claims(backend) == {1: "done", 2: "unclaimed", 3: "unclaimed"}


def test_an_owner_that_was_declared_dead_claims_under_a_new_id(backend: Backend) -> None:
    queue = still(orders(backend, 2))
    old = queue.owner_id
    declare_dead(backend, old)
    with queue.claim(2) as batch:
        assert queue.owner_id in {row["owner_id"] for row in backend.rows(BATCHES_TABLE)} - {old}
        batch.done()
    backend.run("DELETE FROM claimjobs_owners WHERE id = :id", id=old)


def test_a_claim_goes_around_what_is_being_claimed(backend: Backend) -> None:
    slow, fast = (orders(backend) for _ in range(2))
    with by_hand(backend) as connection:
        assert claim_by_hand(slow, connection, 4, 4) == [1, 2, 3, 4]
        assert keys(fast.claim(4)) == [5, 6, 7, 8]


RECHECK = "SELECT orders.id, coalesce"
"""What the statement begins with that looks at the claims under the locks."""


def test_what_the_locking_statement_believes_is_asked_again(backend: Backend) -> None:
    """Its snapshot may be older than its locks: here others have done two jobs since."""
    engine = backend.new_engine()
    queue = orders(backend, 4, bind=engine)
    assert queue.owner_id

    def done_by_another() -> None:
        with backend.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders_claims (id, status) VALUES (1, 'done'), (2, 'done')")

    with before_each(engine, RECHECK, done_by_another):
        assert keys(queue.claim(4)) == [3, 4]


def test_a_settle_between_two_looks_does_not_free_its_jobs(backend: Backend) -> None:
    """A claim and a settle of others change no row of the user's table. Here they are committed while a claim works."""
    engine = backend.new_engine()
    queue = orders(backend, 4, bind=engine)
    assert queue.owner_id

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, [1, 2], "orders")

    def settled_by_another() -> None:
        with backend.engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {BATCHES_TABLE} WHERE owner_id = {THEIRS['owner_id']}")
            connection.exec_driver_sql("INSERT INTO orders_claims (id, status) VALUES (1, 'done'), (2, 'done')")

    record = f"INSERT INTO {BATCHES_TABLE}"
    with before_each(engine, RECHECK, claimed_by_another), before_each(engine, record, settled_by_another):
        assert keys(queue.claim(4)) == [3, 4]


def test_a_claim_goes_on_if_others_have_claimed_all_that_it_locked(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = orders(backend, 4, bind=engine, order_by=[ORDERS.c.customer, ORDERS.c.id])
    assert queue.owner_id

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, [3, 1], "orders")

    with before_each(engine, RECHECK, claimed_by_another):
        assert keys(queue.claim(2)) == [4, 2]
    assert queue.report.claims == 2


def test_a_row_that_no_longer_fits_when_it_is_claimed_is_not_returned(backend: Backend) -> None:
    queue = orders(backend, 3, where=sa.text("status = 'new'"))
    dialect = backend.dialect
    if not (dialect.locks_in_order or dialect.finds_and_locks_at_once):  # else the statement that finds it locks it
        locks_of(queue)._finder._from_head = sa.select(ORDERS.c.id, sa.literal(0)).order_by(ORDERS.c.id)
    backend.run("UPDATE orders SET status = 'old' WHERE id = 2")
    assert keys(queue.claim(3)) == [1, 3]
    assert claims(backend).get(2, "unclaimed") == "unclaimed"


WORKERS = 6
ROWS = 600


@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_every_row_is_done_exactly_once(backend: Backend, on_done: Any) -> None:
    queues = [orders(backend, ROWS, on_done=on_done) for _ in range(WORKERS)]
    done: list[list[Any]] = [[] for _ in queues]
    start = threading.Barrier(WORKERS)

    def work(queue: Queue, mine: list[Any]) -> None:
        queue.check()
        start.wait()
        for batch in queue.batches(7, drain=True):
            with batch:
                mine.extend(job.key for job in batch)
            assert not batch.lost

    threads = [threading.Thread(target=work, args=given) for given in zip(queues, done, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = Counter(key for mine in done for key in mine)
    assert sorted(times) == list(range(1, ROWS + 1))
    assert set(times.values()) == {1}
    assert queues[0].stats().left == 0
    assert len(backend.rows("orders")) == (ROWS if on_done == "keep" else 0)

"""A table that must not be altered: the claims on it stand in a table beside it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Columns, Job, Queue, Retry, SideCar, make, side_car_tables
from claimjobs.claim.strategy import ClaimRequest
from claimjobs.errors import ClaimsDiffer, ClaimsMissing, KeyNotIndexed, NoPrimaryKey
from claimjobs.statements import settle
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection
from claimjobs.table.ddl import ddl
from claimjobs.table.definitions import BATCHES_TABLE, OWNER_TABLE
from tests.backends import Backend, Clock
from tests.conformance.jobs import counted
from tests.conformance.owners import declare_dead, hold_of, still
from tests.conformance.test_batch_claims import THEIRS, before_each, open_their_batch

ORDERS = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("customer", sa.String(20), nullable=False),
    sa.Column("status", sa.String(10), nullable=False, server_default="new"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
)
LATER = timedelta(hours=2)
"""Beyond every back-off."""

GIVEN: dict[str, dict[str, Any]] = {
    "batches": {},
    "rows": {"claims": "rows"},
    "read": {"side_car": SideCar(lock_source=False)},
    "transaction": {"hold": "transaction"},
}
"""The ways to claim: by a row for each batch or each job, without the right to lock, by an open transaction."""
BY_LEASE = pytest.mark.parametrize("way", ["batches", "rows", "read"])
BY_LOCKS = pytest.mark.parametrize("way", ["batches", "rows"])


class Poison(Exception):
    """What the bad job does to its batch."""


def orders(backend: Backend, count: int = 10, **options: Any) -> Queue:
    """A queue over a table of somebody else's, with a side-car."""
    if not sa.inspect(backend.engine).has_table("orders"):
        ORDERS.create(backend.engine)
        fill(backend, count)
    return beside(backend, "orders", **options)


def fill(backend: Backend, count: int, first: int = 1) -> None:
    rows = [{"id": n, "customer": f"c{n % 3}"} for n in range(first, first + count)]
    with backend.engine.begin() as connection:
        if rows:
            connection.execute(sa.insert(ORDERS), rows)


def beside(backend: Backend, table: Any, columns: Columns | None = None, **options: Any) -> Queue:
    make(backend.engine, side_car_tables(backend.engine, table, columns=columns))
    given = {"side_car": True, **GIVEN[options.pop("way", "batches")], **options}
    return backend.bare_queue(table, columns=columns, **given)


def keys(batch: Any) -> list[Any]:
    return [job.key for job in getattr(batch, "jobs", batch)]


def claims(backend: Backend) -> dict[int, str]:
    """The status of each key in the side-car, and of each that is in an open batch."""
    batches = [row["keys"] for row in backend.rows(BATCHES_TABLE)]
    held = [json.loads(keys) if isinstance(keys, str) else keys for keys in batches]
    said = {row["id"]: row["status"] for row in backend.rows("orders_claims")}
    return {**said, **{key: "claimed" for keys in held for key in keys}}


def spoil(queue: Queue, size: int = 100) -> Batch:
    """Claim, and let an exception that names no job leave the block."""
    batch = queue.claim(size)
    with contextlib.suppress(Poison), batch:
        raise Poison("it blew up")
    return batch


def do_all(queue: Queue) -> list[Any]:
    """Work until nothing is due; the keys, in their order."""
    done = []
    for batch in queue.batches(3, drain=True):
        with batch:
            done += [job.key for job in batch]
    return done


# --- a job's way -------------------------------------------------------------------------------------------


@BY_LEASE
def test_rows_are_claimed_and_done_and_none_comes_back(backend: Backend, way: str) -> None:
    queue = orders(backend, way=way)
    with queue.claim(4) as batch:
        assert keys(batch) == [1, 2, 3, 4]
        assert (batch[0].customer, batch[0].status) == ("c1", "new")
        assert claims(backend) == dict.fromkeys(range(1, 5), "claimed")
        batch.done()
    assert claims(backend) == dict.fromkeys(range(1, 5), "done")
    assert do_all(queue) == [5, 6, 7, 8, 9, 10]
    assert not queue.claim(100)
    assert [row["status"] for row in backend.rows("orders")] == ["new"] * 10


@BY_LEASE
def test_a_released_row_is_claimed_again(backend: Backend, way: str) -> None:
    queue = orders(backend, 3, way=way)
    queue.claim(2).settle()
    assert claims(backend) == ({} if way == "batches" else {1: "unclaimed", 2: "unclaimed"})
    assert keys(queue.claim(3)) == [1, 2, 3]
    assert set(claims(backend).values()) == {"claimed"}


@BY_LEASE
def test_failures_are_counted_and_waited_for_until_the_job_is_dead(backend: Backend, clock: Clock, way: str) -> None:
    queue = orders(backend, 2, way=way, now=clock.sql, retry=Retry(attempts=3, base=60))
    for _ in range(2):
        with queue.claim(1) as batch:
            assert keys(batch) == [1]
            batch.fail(batch[0], "broken")
        assert keys(queue.claim()) == [2]
        queue.close()
        clock.now += LATER
    with queue.claim(1) as batch:
        batch.fail(batch[0], "broken for good")
    [dead] = queue.dead.list()
    assert (dead.key, dead.attempts, dead.last_error) == (1, 3, "broken for good")
    assert keys(queue.claim()) == [2]
    queue.close()
    assert queue.dead.retry() == 1
    assert keys(queue.claim()) == [1, 2]


@BY_LEASE
def test_a_batch_that_fails_as_a_whole_is_taken_apart(backend: Backend, clock: Clock, way: str) -> None:
    queue = orders(backend, 8, way=way, now=clock.sql)
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
    dead = queue.dead
    assert keys(dead.list(ORDERS.c.customer == "c0")) == [3, 6]
    assert keys(dead.list(sa.text("customer = 'c1' AND last_error LIKE '%4'"))) == [4]
    assert dead.count(sa.text("customer = 'c2'")) == 2
    assert dead.retry(where=ORDERS.c.customer == "c0") == 2
    assert dead.drop(where=sa.text("id = 1")) == 1
    assert claims(backend) == {1: "done", 2: "dead", 3: "unclaimed", 4: "dead", 5: "dead", 6: "unclaimed"}


@pytest.mark.parametrize("way", GIVEN)
def test_a_dropped_job_is_not_executed_again(backend: Backend, way: str) -> None:
    """Its row is the user's, and stays. Without its entry in the side-car it would be a new job."""
    queue = orders(backend, 3, way=way)
    with queue.claim(2) as batch:
        batch.fail(batch[0], "broken", retry=False)
        batch.fail(batch[1], "broken", retry=False)
    assert queue.dead.drop([1]) == queue.dead.drop() == 1
    assert do_all(queue) == [3]
    assert [row["id"] for row in backend.rows("orders")] == [1, 2, 3]
    assert [row["last_error"] for row in backend.rows("orders_claims")] == ["broken", "broken", None]
    stats = queue.stats()
    assert (stats.left, stats.done, stats.dead) == (0, 3, 0)


# --- what becomes of done rows -----------------------------------------------------------------------------


@BY_LOCKS
def test_a_done_row_is_deleted_with_its_claim_in_one_transaction(backend: Backend, way: str) -> None:
    queue = orders(backend, 5, on_done="delete", way=way)
    batch = queue.claim(3)
    with counted(backend.engine) as sent, batch:
        batch.done(batch[0], batch[1])
    assert sent.count("COMMIT") == 1
    assert [row["id"] for row in backend.rows("orders")] == [3, 4, 5]
    assert claims(backend) == ({} if way == "batches" else {3: "unclaimed"})
    assert do_all(queue) == [3, 4, 5]
    assert (backend.rows("orders"), claims(backend)) == ([], {})


@pytest.mark.parametrize("wanted", [None, "keep", "delete"])
@BY_LOCKS
def test_a_function_says_what_becomes_of_done_rows(backend: Backend, wanted: Any, way: str) -> None:
    def moved(connection: sa.Connection, jobs: list[Job]) -> Any:
        connection.execute(sa.update(ORDERS).where(ORDERS.c.id.in_(keys(jobs))).values(status="moved"))
        return wanted

    queue = orders(backend, 2, on_done=moved, way=way)
    with queue.claim(1) as batch:
        batch.done()
    told = [(row["id"], row["status"]) for row in backend.rows("orders")]
    assert told == ([(2, "new")] if wanted == "delete" else [(1, "moved"), (2, "new")])
    assert claims(backend) == ({} if wanted == "delete" else {1: "done"})


@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_what_somebody_else_took_over_is_lost_and_left_alone(backend: Backend, on_done: Any) -> None:
    queue = orders(backend, 3, on_done=on_done, way="rows")
    with queue.claim(3) as batch:
        backend.run("UPDATE orders_claims SET owner_id = 42 WHERE id = 2")
        batch.done()
    assert keys(batch.lost) == [2]
    assert claims(backend)[2] == "claimed"
    assert 2 in [row["id"] for row in backend.rows("orders")]
    backend.run("DELETE FROM orders_claims")


def test_what_was_changed_since_it_was_claimed_in_a_batch(backend: Backend) -> None:
    """A job that is taken out of its batch, or that the side-car calls done or dead, is lost; the others are not."""
    queue = orders(backend, 5, on_done="delete", way="batches")
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


@BY_LOCKS
@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_a_row_that_is_deleted_while_it_is_claimed_is_done_all_the_same(
    backend: Backend, on_done: Any, way: str
) -> None:
    queue = orders(backend, 2, on_done=on_done, way=way)
    with queue.claim(2) as batch:
        backend.run("DELETE FROM orders WHERE id = 1")
        batch.done()
    assert batch.lost == ()
    assert queue.report.done == 2
    kept = {1: "done", 2: "done"} if way == "rows" else {2: "done"}  # a row that is gone needs no word that it is done
    assert claims(backend) == (kept if on_done == "keep" else {})


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


# --- who may have what -------------------------------------------------------------------------------------


@BY_LEASE
def test_two_consumers_have_different_rows(backend: Backend, way: str) -> None:
    first, second = (orders(backend, way=way) for _ in range(2))
    assert keys(first.claim(4)) == [1, 2, 3, 4]
    assert keys(second.claim(4)) == [5, 6, 7, 8]
    assert first.owner_id != second.owner_id


@BY_LEASE
def test_in_any_order_consumers_share_the_rows_of_a_table_that_must_not_be_altered(backend: Backend, way: str) -> None:
    """A foreign table has no index of claimjobs. So there are no regions, and the claims begin where they always do."""
    queues = [orders(backend, 30, way=way, order_by=(), bind=backend.new_engine()) for _ in range(2)]
    batches = [queue.claim(4) for queue in queues]
    first = [key for batch in batches for key in keys(batch)]
    assert len(set(first)) == 8
    for batch in batches:
        with batch:
            batch.release()
    assert sorted(do_all(queues[0]) + do_all(queues[1])) == list(range(1, 31))


@BY_LEASE
def test_what_a_dead_owner_held_is_handed_back(backend: Backend, way: str) -> None:
    dead, other = (still(orders(backend, 4, way=way)) for _ in range(2))
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


@BY_LEASE
def test_an_owner_that_was_declared_dead_claims_under_a_new_id(backend: Backend, way: str) -> None:
    queue = still(orders(backend, 2, way=way))
    old = queue.owner_id
    declare_dead(backend, old)
    with queue.claim(2) as batch:
        table = BATCHES_TABLE if way == "batches" else "orders_claims"
        assert queue.owner_id in {row["owner_id"] for row in backend.rows(table)} - {old}
        batch.done()
    backend.run("DELETE FROM claimjobs_owners WHERE id = :id", id=old)


@contextmanager
def by_hand(backend: Backend) -> Iterator[sa.Connection]:
    """A transaction as the queue's own are, held open; then undone, unless it was committed."""
    with backend.engine.connect() as connection:
        connection.execution_options(isolation_level=backend.dialect.isolation)
        with connection.begin() as transaction:
            yield connection
            if transaction.is_active:
                transaction.rollback()


def claim_by_hand(queue: Queue, connection: sa.Connection, size: int, limit: int) -> list[Any]:
    algorithm = queue._parts.plan(None).strategy
    return keys(algorithm.claim(connection, queue.owner_id, ClaimRequest(size, limit)).jobs)


def phases_of(queue: Queue) -> Any:
    """The statements of its claims."""
    algorithm: Any = queue._parts.plan(None).strategy
    return getattr(algorithm, "_lock", algorithm)._phases


@BY_LOCKS
def test_a_claim_goes_around_what_is_being_claimed(backend: Backend, way: str) -> None:
    slow, fast = (orders(backend, way=way) for _ in range(2))
    with by_hand(backend) as connection:
        assert claim_by_hand(slow, connection, 4, 4) == [1, 2, 3, 4]
        assert keys(fast.claim(4)) == [5, 6, 7, 8]


@pytest.mark.parametrize("committed", [True, False])
def test_without_locks_a_claim_waits_for_one_of_the_same_key_and_leaves_it_to_that(
    backend: Backend, committed: bool
) -> None:
    slow, fast = (orders(backend, 4, way="read") for _ in range(2))
    got: list[Any] = []
    waits = threading.Thread(target=lambda: got.extend(keys(fast.claim(4))))
    with by_hand(backend) as connection:
        assert claim_by_hand(slow, connection, 4, 4) == [1, 2, 3, 4]
        waits.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the second claim waits")
        if committed:
            connection.commit()
        else:
            connection.rollback()
        waits.join()
    assert got == ([] if committed else [1, 2, 3, 4])


@pytest.mark.parametrize("way", ["batches", "rows", "transaction"])
def test_what_the_locking_statement_believes_is_asked_again(backend: Backend, way: str) -> None:
    """Its snapshot may be older than its locks: here it believes that all is free."""
    queue = orders(backend, 4, way=way)
    with orders(backend, way="rows" if way == "transaction" else way).claim(2) as batch:
        batch.done()
    algorithm: Any = queue._parts.plan(None).strategy
    phases = phases_of(queue)
    naive = sa.select(ORDERS.c.id)
    ours, dialect = queue._parts.backend.source, queue._parts.backend.dialect
    everything = dialect.only_candidates(sa.select(*ours.key), ours.key, ours.key, None).with_for_update(
        skip_locked=True, of=ours.table
    )
    phases._lock = everything
    found = naive.add_columns(sa.literal(0)).order_by(ORDERS.c.id)
    if way != "rows" and dialect.locks_in_order:
        algorithm._lock._statement._from_head = found.with_for_update(skip_locked=True)
    phases.finder._from_head = found
    assert keys(queue.claim(4)) == [3, 4]


def test_a_settle_between_two_looks_does_not_free_its_jobs(backend: Backend) -> None:
    """A claim and a settle of others change no row of the user's table. Here they are committed while a claim works."""
    engine = backend.new_engine()
    queue = orders(backend, 4, way="batches", bind=engine)
    assert queue.owner_id

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, [1, 2], "orders_claims")

    def settled_by_another() -> None:
        with backend.engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {BATCHES_TABLE} WHERE owner_id = {THEIRS['owner_id']}")
            connection.exec_driver_sql("INSERT INTO orders_claims (id, status) VALUES (1, 'done'), (2, 'done')")

    recheck, record = "SELECT orders.id AS", f"INSERT INTO {BATCHES_TABLE}"
    with before_each(engine, recheck, claimed_by_another), before_each(engine, record, settled_by_another):
        assert keys(queue.claim(4)) == [3, 4]


@BY_LEASE
def test_a_row_that_no_longer_fits_when_it_is_claimed_is_not_returned(backend: Backend, way: str) -> None:
    queue = orders(backend, 3, way=way, where=sa.text("status = 'new'"))
    phases_of(queue).finder._from_head = sa.select(ORDERS.c.id, sa.literal(0)).order_by(ORDERS.c.id)
    backend.run("UPDATE orders SET status = 'old' WHERE id = 2")
    assert keys(queue.claim(3)) == [1, 3]
    assert claims(backend).get(2, "unclaimed") == "unclaimed"


WORKERS = 6
ROWS = 600


@pytest.mark.parametrize("way", [*GIVEN, "batches and transaction"])
@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_every_row_is_done_exactly_once(backend: Backend, way: str, on_done: Any) -> None:
    if (way, on_done) == ("read", "delete"):
        pytest.skip("what may not be locked may not be deleted")
    ways = way.split(" and ") * WORKERS
    queues = [orders(backend, ROWS, way=each, on_done=on_done) for each in ways[:WORKERS]]
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


@pytest.fixture
def reader(backend: Backend) -> Iterator[sa.Engine]:
    """Connections of an account that may only read the orders."""
    ORDERS.create(backend.engine)
    fill(backend, 4)
    make(backend.engine, side_car_tables(backend.engine, "orders"))
    postgres = backend.family == "postgres"
    who = "reader" if postgres else "reader@'%'"
    backend.run(f"CREATE ROLE {who} LOGIN PASSWORD 'r'" if postgres else f"CREATE USER {who} IDENTIFIED BY 'r'")
    for rights in ("SELECT ON orders", "ALL ON orders_claims", "ALL ON claimjobs_owners", "SELECT ON claimjobs_queues"):
        backend.run(f"GRANT {rights} TO {who}")
    if postgres:
        backend.run(f"GRANT USAGE ON SCHEMA public TO {who}")
        backend.run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {who}")
    url = sa.make_url(backend.url).set(username="reader", password="r")
    engine = backend.new_engine_to(url.render_as_string(hide_password=False))
    yield engine
    engine.dispose()
    if postgres:
        backend.run(f"DROP OWNED BY {who}")
    backend.run(f"DROP {'ROLE' if postgres else 'USER'} {who}")


def test_without_locks_it_is_enough_to_read_the_table(backend: Backend, reader: sa.Engine) -> None:
    given: Any = {"bind": reader, "side_car": SideCar(lock_source=False)}
    with backend.bare_queue("orders", **given) as queue:
        assert do_all(queue) == [1, 2, 3, 4]


def test_without_locks_no_function_deletes_a_row(backend: Backend) -> None:
    """Nobody holds it: another one may have changed it, or be about to."""
    wanted: list[Any] = ["delete", "keep", None]
    queue = orders(backend, 3, way="read", on_done=lambda _connection, _jobs: wanted.pop(0))
    batch = queue.claim(1)
    batch.done()
    with pytest.raises(ValueError, match=r"on_done='delete' .*: it needs SideCar\(lock_source=True\)"):
        batch.settle()
    assert claims(backend) == {1: "claimed"}
    batch.settle()
    assert do_all(queue) == [2, 3]
    assert claims(backend) == {1: "done", 2: "done", 3: "done"}
    assert len(backend.rows("orders")) == 3


# --- held by an open transaction ---------------------------------------------------------------------------


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


# --- which rows --------------------------------------------------------------------------------------------


def test_a_predicate_names_the_columns_of_the_table_plainly(backend: Backend) -> None:
    queue = orders(backend, where=sa.text("id > 2 AND status = 'new' OR id = 1"))
    assert keys(queue.claim(3)) == [1, 3, 4]
    assert keys(queue.claim(9, where=ORDERS.c.customer == "c0")) == [6, 9]
    queue.check()


def test_rows_come_in_the_order_that_is_asked_for(backend: Backend) -> None:
    queue = orders(backend, 6, order_by=[ORDERS.c.customer.desc(), ORDERS.c.id])
    assert keys(queue.claim(4)) == [2, 5, 1, 4]


def test_what_is_enqueued_is_a_row_of_the_users_table(backend: Backend) -> None:
    queue = orders(backend, 0)
    assert queue.enqueue([{"id": 7, "customer": "new"}, {"id": 8, "customer": "new"}]) == 2
    assert queue.payload == ("customer", "status")
    assert do_all(queue) == [7, 8]


@BY_LEASE
def test_the_counts_are_of_rows_with_a_claim_and_without(backend: Backend, way: str) -> None:
    queue = orders(backend, 10, way=way)
    with queue.claim(6) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "no", retry=False)
        batch.fail(batch[2], "later")
    queue.claim(2)
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed, stats.done, stats.dead) == (6, 2, 1, 1)
    assert (stats.left, stats.owners[0].jobs) == (8, 2)


def test_a_claim_whose_row_is_gone_is_no_work_and_in_nobodys_way(backend: Backend) -> None:
    queue = orders(backend, 4)
    with queue.claim(3) as batch:
        batch.fail(batch[0], "no", retry=False)
        batch.done(batch[1])
    backend.run("DELETE FROM orders WHERE id < 4")
    stats = queue.stats()
    assert (stats.unclaimed, stats.claimed, stats.done, stats.dead) == (1, 0, 0, 0)
    assert queue.backlog().dead == queue.dead.count() == queue.dead.retry() == queue.dead.drop([1]) == 0
    assert keys(queue.dead.list()) == keys(queue.dead.show([1])) == []
    assert do_all(queue) == [4]
    assert claims(backend) == {1: "dead", 2: "done", 4: "done"}


@BY_LEASE
def test_a_job_whose_row_is_gone_is_counted_while_it_is_held(backend: Backend, way: str) -> None:
    queue = orders(backend, 2, way=way)
    with queue.claim(2):
        backend.run("DELETE FROM orders WHERE id = 1")
        stats = queue.stats()
        assert (stats.claimed, stats.owners[0].jobs) == (2, 2)


def test_a_failed_job_is_not_due_before_its_next_attempt(backend: Backend) -> None:
    """It waits by the run_at of the side-car."""
    queue = orders(backend, 4)
    with queue.claim(2) as batch:
        batch.fail(batch[0], "later", retry_in=3600)
        batch.fail(batch[1], "at once", retry_in=0)
    stats, backlog = queue.stats(), queue.backlog()
    assert (stats.unclaimed, stats.due, stats.oldest) == (4, 3, None)
    assert (backlog.unclaimed, backlog.due, backlog.oldest) == (4, 3, None)


# --- keys --------------------------------------------------------------------------------------------------


def collated(backend: Backend) -> sa.types.TypeEngine[Any]:
    return sa.String(20, collation="C" if backend.family == "postgres" else "utf8mb4_bin")


def microseconds(backend: Backend) -> sa.types.TypeEngine[Any]:
    return sa.DateTime().with_variant(sa.dialects.mysql.DATETIME(fsp=6), "mysql", "mariadb")


def timestamp(backend: Backend) -> sa.types.TypeEngine[Any]:
    return sa.TIMESTAMP()


NOON = datetime(2024, 2, 29, 12, 0, 0, 1000)  # noqa: DTZ001 - a column without a zone
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "uuid": (lambda _: sa.Uuid(), [UUID(int=n) for n in range(5)]),
    "text": (lambda _: sa.String(20), ["Åse", "bo", "it's", "ü 100%", "😀"]),
    "collated": (collated, ["A", "B", "a", "b"]),
    "big": (lambda _: sa.BigInteger(), [2**40 + n for n in range(4)]),
    "number": (lambda _: sa.Numeric(12, 3), [n + 1 for n in range(4)]),
    "microseconds": (microseconds, [NOON + timedelta(microseconds=n) for n in range(4)]),
    "timestamp": (timestamp, [NOON.replace(microsecond=0) + timedelta(seconds=n) for n in range(4)]),
}


@BY_LEASE
@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_any_type(backend: Backend, kind: str, way: str) -> None:
    type_, values = KEYS[kind]
    key = sa.Column("name", type_(backend), primary_key=True, autoincrement=False)
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
    things = sa.Table("things", sa.MetaData(), key, sa.Column("what", sa.Integer), **options)
    things.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(things), [{"name": value, "what": 1} for value in values])
    queue = beside(backend, things, way=way)
    with queue.claim(100) as batch:
        assert set(keys(batch)) == set(values)
        batch.fail(batch[0], "later", retry_in=0)
        batch.fail(batch[1], "never", retry=False)
    assert len(do_all(queue)) == len(values) - 1
    assert keys(queue.dead.list()) == [batch[1].key]
    assert (queue.report.lost, queue.stats().done) == (0, len(values) - 1)


def test_the_key_of_a_side_car_is_compared_as_the_tables_is(backend: Backend) -> None:
    """Whatever the default of a new table would be."""
    backend.requires("table collation")
    backend.run("CREATE TABLE words (word VARCHAR(20) PRIMARY KEY) CHARACTER SET latin1 COLLATE latin1_german2_ci")
    backend.run("INSERT INTO words VALUES ('Straße'), ('straat')")
    queue = beside(backend, "words")
    [column] = [c for c in sa.inspect(backend.engine).get_columns("words_claims") if c["name"] == "word"]
    assert getattr(column["type"], "collation", None) == "latin1_german2_ci"
    assert do_all(queue) == ["straat", "Straße"]


@BY_LEASE
@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_a_key_of_several_columns_with_names_of_ours(backend: Backend, way: str, on_done: Any) -> None:
    if on_done == "delete" and way == "read":
        pytest.skip("what may not be locked may not be deleted")
    key = [sa.Column(name, sa.Integer, primary_key=True, autoincrement=False) for name in ("owner_id", "status")]
    pets = sa.Table("pets", sa.MetaData(), *key, sa.Column("attempts", sa.String(9)), mysql_engine="InnoDB")
    pets.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(pets), [{"owner_id": n // 3, "status": n % 3, "attempts": "x"} for n in range(9)])
    queue = beside(backend, "pets", way=way, on_done=on_done)
    with queue.claim(4) as batch:
        assert keys(batch) == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert batch[0].attempts == "x"
        batch.fail(batch[0], "later", retry_in=0)
        batch.done(batch[1])
    assert [(row["owner_id"], row["status"], row["claim_status"]) for row in backend.rows("pets_claims")][:1] == [
        (0, 0, "unclaimed")
    ]
    assert do_all(queue) == [(n // 3, n % 3) for n in (0, *range(2, 9))]
    assert queue.stats().left == 0
    assert len(backend.rows("pets")) == (9 if on_done == "keep" else 0)


def test_a_table_without_a_primary_key_is_named_by_a_unique_index(backend: Backend) -> None:
    backend.run("CREATE TABLE codes (code VARCHAR(9) NULL, other INT NOT NULL)")
    backend.run("CREATE INDEX codes_other ON codes (other)")
    backend.run("INSERT INTO codes VALUES ('a', 1), ('b', 1), (NULL, 2)")
    with pytest.raises(NoPrimaryKey):
        beside(backend, "codes")
    for column in ("code", "other"):
        with pytest.raises(KeyNotIndexed, match="CREATE UNIQUE INDEX"):
            beside(backend, "codes", Columns(key=column))
    backend.run("CREATE UNIQUE INDEX codes_code ON codes (code)")
    assert do_all(beside(backend, "codes", Columns(key="code"), on_done="delete")) == ["a", "b"]


# --- setting it up -----------------------------------------------------------------------------------------


def description(backend: Backend, table: str) -> Any:
    """All that the database says of a table."""
    inspector = sa.inspect(backend.engine)
    asked = ("get_columns", "get_indexes", "get_pk_constraint", "get_foreign_keys", "get_unique_constraints")
    told = {name: str(getattr(inspector, name)(table)) for name in asked}
    return {**told, "rows": [dict(row) for row in backend.rows(table)]}


def test_nothing_is_written_into_the_table_and_nothing_of_it_changes(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    fill(backend, 8)
    before = description(backend, "orders")
    queue = beside(backend, "orders")
    with counted(backend.engine) as sent:
        with queue.claim(4) as batch:
            batch.done(batch[0])
            batch.fail(batch[1], "again", retry_in=0)
            batch.fail(batch[2], "never", retry=False)
        do_all(queue)
        queue.dead.retry()
        queue.stats()
        queue.close()
    make(backend.engine, side_car_tables(backend.engine, "orders"), recreate=True)
    assert description(backend, "orders") == before
    writes = [one for one in sent if one.startswith(("INSERT", "UPDATE", "DELETE"))]
    assert writes
    assert not [one for one in writes if " orders " in one.split("SELECT")[0].split("WHERE")[0] + " "]


def test_what_is_made_are_the_claims_and_the_owners(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    tables = side_car_tables(backend.engine, "orders")
    assert make(backend.engine, tables).created == (
        "orders_claims",
        "claimjobs_owners",
        "claimjobs_queues",
        "claimjobs_batches",
    )
    text = ddl(backend.engine, tables)
    assert "CREATE TABLE orders_claims" in text
    assert "CREATE TABLE orders " not in text
    assert "REFERENCES" not in text


def test_a_side_car_that_is_missing_is_told_with_the_command_that_makes_it(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    backend.make("jobs")
    with pytest.raises(ClaimsMissing, match="setup-tables --table orders --side-car"):
        backend.bare_queue("orders", side_car=True).claim()


def test_a_side_car_may_have_another_name(backend: Backend) -> None:
    ORDERS.create(backend.engine)
    fill(backend, 2)
    named = SideCar(table="what_is_taken")
    make(backend.engine, side_car_tables(backend.engine, "orders", named))
    assert do_all(backend.bare_queue("orders", side_car=named)) == [1, 2]
    assert len(backend.rows("what_is_taken")) == 2


@pytest.mark.parametrize("other", [{"hold": "transaction"}, {"on_done": "delete"}, {"claims": "batches"}], ids=str)
def test_what_cannot_be_without_a_lock_is_refused(anywhere: Backend, other: Any) -> None:
    with pytest.raises(ValueError, match="lock_source=True"):
        Queue(anywhere.engine, "orders", side_car=SideCar(lock_source=False), **other)


# --- what it costs -----------------------------------------------------------------------------------------

SIZE = 100
WAITING = 5_000


@pytest.fixture
def busy(backend: Backend, way: str) -> Queue:
    """Many rows: some done, some that wait again, most that nobody has claimed."""
    queue = still(orders(backend, WAITING, way=way))
    with queue.claim(1_000) as batch:
        batch.done(*batch.jobs[:800])
    for table in ("orders", "orders_claims"):
        backend.analyze(table)
    return queue


@BY_LOCKS
def test_a_claim_locks_what_it_takes_and_not_what_it_looked_at(backend: Backend, busy: Queue, way: str) -> None:
    beside = SIZE if way == "rows" else 0
    with by_hand(backend) as connection:
        taken = claim_by_hand(busy, connection, SIZE, 800)
        assert taken == list(range(801, 901))
        if backend.has("row lock table"):
            assert Counter(backend.lock_table()) == {("PRIMARY", "X,REC_NOT_GAP"): SIZE + beside}
        assert backend.locked("orders") == SIZE
        assert backend.locked("orders_claims") == beside


@pytest.mark.parametrize("way", ["rows"])
def test_new_keys_lock_no_more_than_themselves(backend: Backend, busy: Queue) -> None:
    busy.claim(200)
    with by_hand(backend) as connection:
        assert claim_by_hand(busy, connection, SIZE, 800) == list(range(1_001, 1_101))
        if backend.has("row lock table"):  # what is inserted is locked by being there
            assert Counter(backend.lock_table()) == {("PRIMARY", "X,REC_NOT_GAP"): SIZE}
        assert backend.locked("orders") == SIZE


def plan_of(backend: Backend, queue: Queue, statement: Any, values: dict[str, Any]) -> Any:
    with by_hand(backend) as connection:
        return backend.plan(connection, statement, values)


def pair_of(queue: Queue) -> statements.SideCarJoin:
    backend = queue._parts.backend
    return statements.SideCarJoin(backend.source, backend.roles, backend.dialect, queue._chosen.now)


@BY_LOCKS
def test_candidates_are_read_in_order_and_their_claims_by_key(backend: Backend, busy: Queue, way: str) -> None:
    algorithm: Any = busy._parts.plan(None).strategy
    in_one = way == "batches" and backend.dialect.locks_in_order
    find = (algorithm._lock._statement if in_one else phases_of(busy).finder)._from_head
    plan = plan_of(backend, busy, find, {"claimjobs_limit": SIZE, **({"claimjobs_size": SIZE} if in_one else {})})
    wanted = {backend.primary_key_of("orders"), backend.primary_key_of("orders_claims")}
    assert set(plan.indexes) - {backend.primary_key_of(BATCHES_TABLE)} <= wanted | {""}, plan.text
    assert wanted <= set(plan.indexes), plan.text
    assert not plan.sorts, plan.text
    assert way == "batches" or not plan.scans, plan.text  # a few open batches may be read from their beginning


@pytest.mark.parametrize("way", ["rows"])
def test_the_rest_of_a_claim_goes_through_the_primary_keys(backend: Backend, busy: Queue) -> None:
    algorithm: Any = busy._parts.plan(None).strategy
    chosen = list(range(801, 801 + SIZE))
    me = busy.owner_id
    each = {
        "lock": (algorithm._phases._lock, {"claimjobs_candidates": chosen, "claimjobs_size": SIZE}),
        "claim": (algorithm._claim.select, {"claimjobs_keys": chosen, "claimjobs_me": me}),
        "claimed": (algorithm._claimed.statement, {"claimjobs_keys": chosen, "claimjobs_me": me}),
    }
    fit = {backend.primary_key_of(table) for table in ("orders", "orders_claims", "claimjobs_owners")} | {""}
    for name, (statement, values) in each.items():
        plan = plan_of(backend, busy, statement, values)
        assert set(plan.indexes) <= fit, (name, plan.text)
        assert not plan.scans, (name, plan.text)


@pytest.mark.parametrize("way", ["rows"])
def test_what_an_owner_holds_is_found_without_reading_what_is_done(backend: Backend, busy: Queue) -> None:
    hold_of(busy)
    plan = plan_of(backend, busy, sa.select(sa.text("id")).select_from(sa.text("orders_claims")).where(held()), {})
    assert "orders_claims_state" in plan.indexes, plan.text


def held() -> Any:
    return sa.text("status = 'claimed' AND owner_id = 10000001")


def test_everything_of_a_selection_is_asked_of_the_users_table(backend: Backend) -> None:
    queue = orders(backend, 1)
    pair = pair_of(queue)
    statement = statements.find(pair, Selection(sa.true(), pair.source.default_order))
    assert [str(table) for table in statement.get_final_froms()] == ["orders"]


@pytest.mark.parametrize("outcome", ["keep", "release", "delete", "still_mine"])
def test_a_settle_finds_claims_by_their_keys_though_nothing_is_known_of_the_table(
    backend: Backend, outcome: str
) -> None:
    """Through the index of owners each claim would be compared with all keys: 10,000 jobs took 20 s and more."""
    queue = orders(backend, 300, way="rows")
    batch = queue.claim(300)
    pair = pair_of(queue)
    reach = settle.SettleGuard(pair.claims, pair.dialect, pair.claims.mine)
    statement = settle.keep(reach, pair.now) if outcome == "keep" else getattr(settle, outcome)(reach)
    plan = plan_of(backend, queue, statement, {"claimjobs_keys": keys(batch), "claimjobs_me": queue.owner_id})
    assert "orders_claims_state" not in plan.indexes
    assert "cstring" not in plan.text, "the keys are read again for each row"
    batch.settle()

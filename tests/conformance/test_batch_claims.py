"""Claims per batch: one row of `claimjobs_batches` is the claim, and no job is written before it is settled."""

from __future__ import annotations

import contextlib
import json
import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Columns, Queue, Retry
from claimjobs.errors import ClaimsDiffer, TableMissing
from claimjobs.lease.transaction_hold import TransactionHold
from claimjobs.options import Liveness
from claimjobs.table.definitions import BATCHES_TABLE, FIRST_OWNER, OWNER_TABLE
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import declare_dead, hold_of, states, still

THEIRS = {"owner_id": FIRST_OWNER + 5, "number": 1, "claims": "jobs"}


def per_batch(backend: Backend, *args: Any, **options: Any) -> Queue:
    return backend.queue(*args, claims="batches", **options)


def claim_rows(backend: Backend) -> list[tuple[int, int]]:
    """The owner and the number of jobs of each claim row; the empty ones that owners begin with are left out."""
    return [(row["owner_id"], row["jobs"]) for row in backend.rows(BATCHES_TABLE) if row["jobs"]]


def open_their_batch(connection: sa.Connection, keys: list[Any], table: str = "jobs") -> None:
    """Another consumer commits a claim of these keys."""
    columns = "owner_id, number, claims, jobs, keys, since"
    if connection.dialect.name != "postgresql":
        columns = columns.replace("keys", "`keys`")
    values = f"{THEIRS['owner_id']}, 1, '{table}', {len(keys)}, '{json.dumps(keys)}', CURRENT_TIMESTAMP"
    connection.exec_driver_sql(f"INSERT INTO {BATCHES_TABLE} ({columns}) VALUES ({values})")


@contextmanager
def before_each(engine: sa.Engine, beginning: str, do: Any) -> Iterator[None]:
    """Do something once, before the first statement that begins so."""
    waiting = [do]

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(beginning) and waiting:
            waiting.pop()()

    sa.event.listen(engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", look)
        assert not waiting


def test_a_claim_is_one_row_and_a_settle_removes_it(backend: Backend) -> None:
    queue = per_batch(backend)
    queue.enqueue(jobs(5))
    with queue.claim(3) as batch:
        assert claim_rows(backend) == [(queue.owner_id, 3)]
        assert states(backend) == ["unclaimed"] * 5
        assert [row["owner_id"] for row in backend.rows()] == [None] * 5
        stats = queue.stats()
        assert (stats.unclaimed, stats.claimed, stats.owners[0].jobs) == (2, 3, 3)
        batch.done()
    assert claim_rows(backend) == []
    assert [row["d"] for row in backend.rows()] == ["0003", "0004"]


def test_no_two_queues_hold_a_job(backend: Backend) -> None:
    first, second = per_batch(backend), per_batch(backend, bind=backend.new_engine())
    first.enqueue(jobs(10))
    held = [job["d"] for queue in (first, second, first, second) for job in queue.claim(3)]
    assert sorted(held) == [f"{number:04}" for number in range(10)]
    assert len(second.claim(3)) == 0


def test_a_claim_looks_again_under_its_locks(backend: Backend) -> None:
    """What another claim had locked is not changed by it: only the second look shows that it is taken."""
    engine = backend.new_engine()
    queue = per_batch(backend, bind=engine)
    queue.enqueue(jobs(5))
    keys = [row["id"] for row in backend.rows()]

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, keys[1:3])

    assert queue.owner_id
    with before_each(engine, f"INSERT INTO {BATCHES_TABLE}", claimed_by_another):
        batch = queue.claim(4)
    assert [job.key for job in batch] == [keys[0], keys[3]]
    assert sorted(claim_rows(backend)) == sorted([(queue.owner_id, 2), (THEIRS["owner_id"], 2)])
    backend.may_leave_owners = True


def test_all_that_was_locked_may_be_taken(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = per_batch(backend, bind=engine)
    queue.enqueue(jobs(2))
    keys = [row["id"] for row in backend.rows()]
    assert queue.owner_id

    def claimed_by_another() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, keys)

    with before_each(engine, f"INSERT INTO {BATCHES_TABLE}", claimed_by_another):
        assert len(queue.claim(2)) == 0


def test_a_dead_owner_claims_under_a_new_id(backend: Backend) -> None:
    queue = still(per_batch(backend))
    queue.enqueue(jobs(2))
    before = queue.owner_id
    declare_dead(backend, before)
    with queue.claim(1) as batch:
        batch.done()
        assert claim_rows(backend) == [(queue.owner_id, 1)]
    assert queue.owner_id > before
    backend.may_leave_owners = True


def test_what_a_dead_owner_held_is_claimed_again_and_its_settle_is_refused(backend: Backend) -> None:
    first, second = still(per_batch(backend)), per_batch(backend, bind=backend.new_engine())
    first.enqueue(jobs(2))
    lost = first.claim(2)
    assert second.reclaim_owner(first.owner_id) == 2
    assert claim_rows(backend) == []
    assert len(second.claim(2)) == 1  # suspects: one of them may have killed its owner
    with lost as batch:
        batch.done()
    assert len(batch.lost) == 2
    assert claim_rows(backend) == [(second.owner_id, 1)]
    assert len(backend.rows()) == 2


def test_only_rows_that_are_there_keep_a_dead_owner(backend: Backend) -> None:
    first, second = still(per_batch(backend)), per_batch(backend, bind=backend.new_engine())
    first.enqueue(jobs(3))
    batch = first.claim(3)
    backend.run("DELETE FROM jobs WHERE d = '0001'")
    backend.run("UPDATE jobs SET status = 'dead' WHERE d = '0002'")
    assert second.reclaim_owner(first.owner_id) == 1
    assert claim_rows(backend) == []
    assert backend.rows(OWNER_TABLE) == []
    batch.settle()
    assert len(batch.lost) == 3


def test_each_outcome(backend: Backend) -> None:
    queue = per_batch(backend, retry=Retry(attempts=2, base=100))
    queue.enqueue(jobs(6))
    with queue.claim(5) as batch:
        batch.done(batch[0])
        batch.fail(batch[1], "bad")
        batch.release(batch[2])
        batch.fail(batch[3], "worse", retry=False)
        batch.release(batch[4])
    assert claim_rows(backend) == []
    found = {row["d"]: (row["status"], row["attempts"]) for row in backend.rows()}
    assert (found["0001"], found["0003"]) == (("unclaimed", 1), ("dead", 1))
    assert found["0002"] == found["0004"] == found["0005"] == ("unclaimed", 0)
    assert "0000" not in found


@pytest.mark.parametrize("on_done", ["delete", "keep"])
def test_rows_that_were_changed_or_deleted_meanwhile_are_lost(backend: Backend, on_done: Any) -> None:
    queue = per_batch(backend, on_done=on_done)
    queue.enqueue(jobs(4))
    with queue.claim(4) as batch:
        backend.run("DELETE FROM jobs WHERE d = '0001'")
        backend.run("UPDATE jobs SET status = 'dead' WHERE d = '0002'")
        batch.done()
    assert sorted(job["d"] for job in batch.lost) == ["0001", "0002"]
    left = {row["d"]: row["status"] for row in backend.rows()}
    assert left == {"0002": "dead", **({"0000": "done", "0003": "done"} if on_done == "keep" else {})}
    assert claim_rows(backend) == []


def test_close_releases(backend: Backend) -> None:
    queue = per_batch(backend)
    queue.enqueue(jobs(3))
    queue.claim(2)
    queue.close()
    assert backend.rows(BATCHES_TABLE) == backend.rows(OWNER_TABLE) == []


def test_the_batches_of_a_loop(backend: Backend) -> None:
    queue = per_batch(backend)
    queue.enqueue(jobs(250))
    seen = []
    for batch in queue.batches(40, drain=True):
        with batch:
            seen += [job["d"] for job in batch]
            batch.done()
    assert sorted(seen) == [f"{number:04}" for number in range(250)]
    assert (queue.report.done, queue.report.lost, claim_rows(backend)) == (250, 0, [])


def test_suspects_are_claimed_in_halves(backend: Backend) -> None:
    queue = per_batch(backend, retry=Retry(attempts=1, base=0))
    queue.enqueue(jobs(8))
    sizes = []
    for batch in queue.batches(8, drain="retries"):
        sizes.append(len(batch))
        with contextlib.suppress(ZeroDivisionError), batch:
            1 // all(job["d"] != "0003" for job in batch)
            batch.done()
    assert 1 in sizes
    assert {row["d"]: row["status"] for row in backend.rows()} == {"0003": "dead"}


KEYS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "two columns": (
        {"a": sa.Integer(), "b": sa.String(20)},
        [{"a": 1, "b": "x"}, {"a": 1, "b": 'quote"\\'}, {"a": 2, "b": "x"}],
    ),
    "padded": ({"a": sa.CHAR(9)}, [{"a": "a"}, {"a": "b c"}, {"a": ""}]),
    "text": ({"a": sa.String(20)}, [{"a": "é"}, {"a": "b,c"}, {"a": "d"}]),
    "uuid": ({"a": sa.Uuid()}, [{"a": uuid.UUID(int=number)} for number in (1, 2, 3)]),
    "bytes": (
        {"a": sa.LargeBinary(20).with_variant(sa.VARBINARY(20), "mysql", "mariadb")},
        [{"a": b"\x00"}, {"a": b"\xff"}, {"a": b"'"}],
    ),
    "large": ({"a": sa.BigInteger()}, [{"a": 2**62}, {"a": -(2**62)}, {"a": 0}]),
}


PADDED = pytest.mark.pair("each database pads texts in its own way")


def make_plain(backend: Backend, kind: str) -> list[dict[str, Any]]:
    """A table that has nothing but a key of this kind; its rows."""
    types, rows = KEYS[kind]
    key = (sa.Column(name, type_, primary_key=True, autoincrement=False) for name, type_ in types.items())
    table = sa.Table("plain", sa.MetaData(), *key)
    table.create(backend.engine)
    backend.insert(table, rows)
    backend.make()
    return rows


@pytest.mark.each_value("kind", "each is written and compared in a way of its own")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=PADDED) if kind == "padded" else kind for kind in KEYS])
def test_a_table_with_nothing_but_a_key_can_be_claimed_by_lease(backend: Backend, kind: str) -> None:
    make_plain(backend, kind)
    queues = [
        backend.bare_queue("plain", claims="batches", columns=Columns(status=None, owner_id=None), on_done="delete")
        for _ in range(2)
    ]
    first, second = queues[0].claim(2), queues[1].claim(2)
    assert (len(first), len(second)) == (2, 1)
    assert not {job.key for job in first} & {job.key for job in second}
    for batch in (first, second):
        with batch:
            batch.done()
        assert not batch.lost
    assert backend.rows("plain") == []


def test_consumers_of_both_kinds_refuse_each_other(backend: Backend) -> None:
    by_row = backend.queue(claims="rows")
    assert by_row.owner_id
    other = per_batch(backend, bind=backend.new_engine())
    for use in (other.check, other.claim, other.reclaim, other.stats, other.backlog):
        with pytest.raises(ClaimsDiffer, match=r"1 owner with claims='rows', and .* with claims='batches': give all"):
            use()
    by_row.close()
    by_batch = per_batch(backend)
    assert by_batch.owner_id
    other = backend.queue(claims="rows", bind=backend.new_engine())
    for use in (other.check, other.claim, other.reclaim, other.stats, other.backlog):
        with pytest.raises(ClaimsDiffer, match=r"with claims='batches', and .* with claims='rows': give all"):
            use()
    other = backend.queue(hold="transaction", bind=backend.new_engine())
    for use in (other.check, other.claim, other.stats, other.backlog):
        with pytest.raises(ClaimsDiffer, match=r"with claims='batches', and .* with hold='transaction': give all"):
            use()
    assert [row["id"] for row in backend.rows(OWNER_TABLE)] == [by_batch.owner_id]


def test_a_consumer_by_transaction_is_refused_when_an_owner_of_the_other_kind_has_registered(backend: Backend) -> None:
    by_transaction = backend.queue(hold="transaction", bind=backend.new_engine())
    by_transaction.enqueue(jobs(2))
    with by_transaction.claim(1) as batch:
        batch.done()
    by_batch = per_batch(backend)
    assert by_batch.owner_id
    hold = by_transaction._consumer.hold
    assert isinstance(hold, TransactionHold)
    hold._pause_read_at = -math.inf  # as a fifth of a lease later
    with pytest.raises(ClaimsDiffer, match="1 owner with claims='batches'"):
        by_transaction.claim(1)
    by_batch.close()
    with by_transaction.claim(1) as batch:
        assert len(batch) == 1


def test_without_the_table_of_batches_rows_are_claimed(backend: Backend) -> None:
    backend.make()
    backend.run(f"DROP TABLE {BATCHES_TABLE}")
    with pytest.raises(TableMissing, match="setup-tables"):
        backend.bare_queue(claims="batches").claim(1)
    backend.bare_queue(claims="rows").claim(1)


def test_what_does_not_go_together(anywhere: Backend) -> None:
    with pytest.raises(ValueError, match="claims='batches'"):
        Queue(anywhere.engine, claims="batches", hold="transaction")


def test_an_owner_whose_settle_is_not_committed_is_not_reclaimed(backend: Backend) -> None:
    """Reclaim neither waits for that settle nor charges a job that it takes out of its batch."""
    lease_only = Liveness(session_lock=False)
    first = still(per_batch(backend, liveness=lease_only))
    second = per_batch(backend, bind=backend.new_engine(), liveness=lease_only)
    first.enqueue(jobs(1))
    first.claim(1)
    with backend.engine.begin() as settle:
        settle.exec_driver_sql(f"DELETE FROM {BATCHES_TABLE} WHERE jobs > 0")
        assert second.reclaim_owner(first.owner_id) == 0
        assert [row["id"] for row in backend.rows(OWNER_TABLE)] == [first.owner_id]
    assert second.reclaim_owner(first.owner_id) == 0
    [released] = backend.rows()
    assert (released["status"], released["attempts"], released["suspect"]) == ("unclaimed", 0, 0)
    assert backend.rows(OWNER_TABLE) == []


def test_a_search_is_fast_whatever_the_server_expects_in_the_claim_rows(backend: Backend) -> None:
    """After an ANALYZE the server expected 800,000 keys, and compared each job with each key."""
    if backend.family != "postgres":
        pytest.skip(f"{backend.name} makes a table of the keys in any case")
    queue = still(per_batch(backend))
    batches = hold_of(queue)._backend.roles.claim_rows
    assert batches is not None
    columns = "owner_id, number, claims, jobs, keys, since"
    many = f"SELECT {THEIRS['owner_id']}, n, 'jobs', 1, '[0]'::jsonb, now() FROM generate_series(1, 8000) n"
    backend.run(f"INSERT INTO {BATCHES_TABLE} ({columns}) {many}")
    backend.run(f"ANALYZE {BATCHES_TABLE}")
    search = sa.select(*batches.key).where(batches.without())
    literal = search.compile(backend.engine, compile_kwargs={"literal_binds": True})
    with backend.engine.connect() as connection:
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {literal}").scalars())
    backend.run(f"DELETE FROM {BATCHES_TABLE} WHERE jobs > 0")
    assert "hashed SubPlan" in plan


def test_batches_before_a_place_are_not_read(backend: Backend) -> None:
    """They are open here. If they were closed while a snapshot is held, their dead rows would be read as well."""
    queue = still(per_batch(backend))
    queue.enqueue(jobs(5))
    batches = hold_of(queue)._backend.roles.claim_rows
    assert batches is not None
    begun = {"claims": "jobs", "jobs": 1, "since": datetime.now(UTC)}
    before = [
        {**THEIRS, **begun, "number": n, "keys": [-n] * 50, "first_key": -n, "last_key": -n} for n in range(1, 401)
    ]
    backend.insert(batches.table, before)
    backend.analyze(BATCHES_TABLE)
    [key] = batches.key
    read = {}
    with backend.engine.connect() as connection:
        for place in (0, -500):
            search = sa.select(key).where(key > place, batches.without({key: place}))
            read[place] = backend.rows_read(connection, search, {})
    backend.run(f"DELETE FROM {BATCHES_TABLE} WHERE jobs > 0")
    assert read[0] < 40
    assert read[-500] > 400


def keys_of(batch: Batch) -> list[Any]:
    return [job.key for job in batch.jobs]


def ranges(backend: Backend) -> list[tuple[int, int]]:
    """The first and the last key of each claim row."""
    return sorted((row["first_key"], row["last_key"]) for row in backend.rows(BATCHES_TABLE) if row["jobs"])


ORDERS: dict[str, Any] = {
    "by key": "id",
    "by priority": None,
    "by key, falling": "-id",
    "by another column": "d",
}


@pytest.mark.parametrize("order", ORDERS)
def test_no_claim_after_a_place_takes_what_is_in_a_claim_row(backend: Backend, order: str) -> None:
    """Such a claim reads only batches with larger keys, for jobs with the priority of the place."""
    queue, other = (per_batch(backend, order_by=ORDERS[order]) for _ in range(2))
    queue.enqueue([{**job, "priority": number % 2} for number, job in enumerate(jobs(20))])
    keys = sorted(row["id"] for row in backend.rows())
    theirs = other.claim(3, where=sa.text("priority = 1"))
    assert ranges(backend) == [(min(keys_of(theirs)), max(keys_of(theirs)))]
    seen = keys_of(theirs)
    for size in (2, 5, 3, 4, 3):
        batch = queue.claim(size)
        assert len(batch) == size  # none was found that the second look takes out again
        assert not set(keys_of(batch)) & set(seen)
        assert (min(keys_of(batch)), max(keys_of(batch))) in ranges(backend)
        seen += keys_of(batch)
    assert sorted(seen) == keys
    queue.close()
    other.close()

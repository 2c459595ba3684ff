"""Limits, order, turns and rates per key: exact over all consumers, whatever becomes of them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, PerKey, Queue, Retry, job_table, key_tables, make, side_car_tables
from claimjobs.options import Liveness
from claimjobs.statements.key_rows import PART
from tests.backends import Backend, Clock
from tests.conformance.jobs import before_the_lock
from tests.conformance.orders import spoil
from tests.conformance.owners import declare_dead, hold_of, still
from tests.conformance.refusals import refuse_where

START = datetime(2030, 1, 1, tzinfo=UTC)
MANY, FEW_ROWS = 3_000, 20
KINDS = pytest.mark.parametrize(
    "kind",
    [
        {},
        pytest.param({"claims": "batches"}, marks=pytest.mark.pair("what is claimed is counted in claim rows")),
        pytest.param({"side_car": True}, marks=pytest.mark.pair("failures wait in a second table")),
    ],
    ids=["rows", "batches", "side-car"],
)


def mails_with(*key: sa.Column[Any]) -> sa.Table:
    table = job_table("mails", sa.MetaData(), *key, sa.Column("d", sa.String(20)))
    sa.Index("mails_found", *key, table.c.priority, table.c.id, table.c.run_at, table.c.suspect)  # beside a side-car
    sa.Index("mails_by_key", table.c.status, *key, table.c.priority, table.c.id, table.c.run_at, table.c.suspect)
    return table


MAILS = mails_with(sa.Column("customer", sa.Integer, nullable=False))


def mails(
    backend: Backend, per_key: PerKey, customers: Iterable[Any] = (), kind: dict[str, Any] | None = None, **options: Any
) -> Queue:
    """A queue over jobs 1, 2, ... of these customers."""
    kind, columns = kind or {}, ("customer",)
    backend.make(MAILS)
    make(backend.engine, key_tables(backend.engine, "mails", columns, side_car=bool(kind.get("side_car"))))
    if "side_car" in kind:
        make(backend.engine, side_car_tables(backend.engine, "mails"))
    queue = backend.bare_queue(MAILS, per_key=per_key, **kind, **options)
    queue.enqueue({"id": number, "customer": customer} for number, customer in enumerate(customers, 1))
    return queue


def another(queue: Queue, backend: Backend, per_key: PerKey, **options: Any) -> Queue:
    kind = {name: getattr(queue.settings, name) for name in ("claims", "side_car")}
    return backend.bare_queue(MAILS, per_key=per_key, **kind, **options)


def ids(batch: Batch) -> list[int]:
    return sorted(job.key for job in batch.jobs)


def customers(batch: Batch) -> dict[Any, int]:
    return dict(Counter(job.customer for job in batch.jobs))


def finish(batch: Batch) -> None:
    with batch:
        batch.done()


def key_rows(backend: Backend) -> dict[Any, Any]:
    return {row["customer"]: row for row in backend.rows("mails_keys")}


# --- limits --------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.mariadb("it has no LATERAL: jobs are found by a statement for each key")
def test_no_more_jobs_of_a_key_are_claimed_than_its_limit(backend: Backend, kind: dict[str, Any]) -> None:
    two = PerKey("customer", at_most=2)
    queue = mails(backend, two, [7] * 5 + [8] * 3 + [9], kind)
    other = another(queue, backend, two)
    first = queue.claim(100)
    assert customers(first) == {7: 2, 8: 2, 9: 1}
    assert ids(first) == [1, 2, 6, 7, 9]
    second = other.claim(100)
    assert (len(second), second.contended) == (0, True)
    finish(first)
    assert customers(other.claim(1)) in ({7: 1}, {8: 1})
    assert sum(map(len, (other.claim(100), queue.claim(100)))) == 2


@KINDS
def test_a_key_is_free_again_at_once_when_its_jobs_are_settled_failed_or_released(
    backend: Backend, kind: dict[str, Any]
) -> None:
    one = PerKey("customer", at_most=1)
    queue = mails(backend, one, [7] * 4, kind)
    other = another(queue, backend, one)
    for fails in (False, True):
        with queue.claim(9) as batch:
            assert len(batch) == 1
            assert not other.claim(9)
            assert key_rows(backend)[7]["held_back"]
            if fails:
                batch.fail(batch[0], "no", retry=False)
            else:
                batch.done()
        assert not key_rows(backend)[7]["held_back"]
    batch = queue.claim(9)
    assert not other.claim(9)
    hold_of(queue).release_held()
    backend.wait_for(lambda: other.claim(9), "the released job is claimed")


@KINDS
def test_what_a_dead_owner_held_counts_until_it_is_reclaimed(backend: Backend, kind: dict[str, Any]) -> None:
    one = PerKey("customer", at_most=1)
    queue = still(mails(backend, one, [7, 7], kind))
    other = still(another(queue, backend, one))
    assert ids(queue.claim(5)) == [1]
    declare_dead(backend, queue.owner_id)
    assert other.claim(5).contended
    other.reclaim()
    backend.wait_for(lambda: other.claim(5), "its job is claimed again")


def test_a_settle_between_the_count_of_another_claim_and_its_commit_is_not_missed(backend: Backend) -> None:
    """That claim holds the key back because of a job that is settled by now; its next claim sees that."""
    one = PerKey("customer", at_most=1)
    queue = mails(backend, one, [7, 7])
    other = another(queue, backend, one)
    batch = queue.claim(5)
    plan = other._consumer.plans.plan(None)
    engine = backend.engine.execution_options(isolation_level="READ COMMITTED")
    with engine.connect() as connection, connection.begin():
        request = hold_of(other)._range.next_request(5, plan.strategy)
        assert not plan.strategy.claim(connection, other.owner_id, request).jobs
        thread = threading.Thread(target=finish, args=(batch,))
        thread.start()
        backend.wait_for(lambda: _is_settled(backend, 1), "the settle is committed")
    thread.join(60)
    assert ids(other.claim(5)) == [2]


def _is_settled(backend: Backend, key: int) -> bool:
    return all(row["id"] != key for row in backend.rows("mails"))


def test_many_consumers_never_exceed_it_and_do_each_job_once(backend: Backend) -> None:
    two, guard = PerKey("customer", at_most=2), threading.Lock()
    rnd = random.Random(7)
    queue = mails(backend, two, [rnd.randrange(6) for _ in range(240)])
    claimed, most, done = Counter[int](), Counter[int](), Counter[int]()

    def note(batch: Batch, sign: int) -> None:
        with guard:
            for job in batch.jobs:
                claimed[job.customer] += sign
                most[job.customer] = max(most[job.customer], claimed[job.customer])

    def work(number: int) -> None:
        mine, luck = queues[number], random.Random(number)
        for batch in mine.batches(4, drain="retries", poll=0.05):
            note(batch, 1)
            time.sleep(luck.random() / 200)
            failed = [job for job in batch.jobs if luck.random() < 0.1]
            for job in failed:
                batch.fail(job, "no", retry_in=0.0)
            kept = [job for job in batch.jobs if job not in failed]
            batch.done(*kept)
            note(batch, -1)
            batch.settle()
            done.update(job.key for job in kept)

    queues = [another(queue, backend, two, retry=Retry(base=0.01, cap=0.02)) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(done), set(done.values())) == (240, {1})
    assert max(most.values()) == 2
    assert backend.rows("mails_keys") == []


# --- order ---------------------------------------------------------------------------------------------------


@KINDS
def test_jobs_of_a_key_are_done_in_their_order_also_through_retries(
    backend: Backend, clock: Clock, kind: dict[str, Any]
) -> None:
    queue = mails(backend, PerKey("customer", in_order=True), [7, 8, 7, 7, 8], kind, now=clock.sql)
    with queue.claim(9) as batch:
        assert ids(batch) == [1, 2]
        batch.done(*(job for job in batch.jobs if job.key == 2))
        batch.fail(next(job for job in batch.jobs if job.key == 1), "no", retry_in=60)
    clock.now += timedelta(seconds=1)
    with queue.claim(9) as batch:
        assert ids(batch) == [5]
        batch.done()
    assert not queue.claim(9)
    clock.now += timedelta(seconds=60)
    for key in (1, 3, 4):
        with queue.claim(9) as batch:
            assert ids(batch) == [key]
            batch.fail(batch[0], "dead", retry=False) if key == 1 else batch.done()
        clock.now += timedelta(seconds=1)
    assert not queue.claim(9)


def test_a_failed_job_may_be_skipped(backend: Backend, clock: Clock) -> None:
    per_key = PerKey("customer", in_order=True, after_failure="skip")
    queue = mails(backend, per_key, [7, 7], now=clock.sql)
    with queue.claim(9) as batch:
        batch.fail(batch[0], "no", retry_in=60)
    clock.now += timedelta(seconds=1)
    assert ids(queue.claim(9)) == [2]


def test_the_order_of_a_key_is_that_of_the_queue(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=1))
    queue.enqueue([{"id": n, "customer": 7, "priority": -n} for n in (1, 2, 3)])
    for key in (3, 2, 1):
        with queue.claim(9) as batch:
            assert ids(batch) == [key]
            batch.done()


# --- turns ---------------------------------------------------------------------------------------------------


def test_a_key_with_few_jobs_waits_for_one_batch_of_one_with_many(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer"), [7] * 300)
    assert customers(queue.claim(50)) == {7: 50}
    backend.insert("mails", [{"id": 1_000 + n, "customer": 8} for n in range(3)])
    backend.wait_for(lambda: queue.claim(1) and 8 in key_rows(backend), "the new key has a turn")
    found = [customers(queue.claim(50)) for _ in range(2)]
    assert sum(each.get(8, 0) for each in found) == 3, found


def test_shares_are_by_weight(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", weights={7: 3, 8: 1}), [7] * 300 + [8] * 300)
    total = Counter[int]()
    backend.wait_for(lambda: queue.claim(1) and len(key_rows(backend)) == 2, "both keys have a turn")
    for _ in range(8):
        with queue.claim(30) as batch:
            total.update(customers(batch))
            batch.done()
    assert 2 < total[7] / total[8] < 4, total


def test_without_turns_a_key_goes_on_until_it_has_no_job(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", fair=False), [7] * 60 + [8] * 60)
    found = []
    for _ in range(6):
        with queue.claim(20) as batch:
            found += sorted(customers(batch))
            batch.done()
    assert found in ([7, 7, 7, 8, 8, 8], [8, 8, 8, 7, 7, 7])


def test_a_key_whose_jobs_are_all_due_later_waits_for_the_first(backend: Backend, clock: Clock) -> None:
    queue = mails(backend, PerKey("customer", at_most=5), now=clock.sql)
    queue.enqueue([{"id": n, "customer": 7, "run_at": clock.now + timedelta(seconds=10 * n)} for n in (1, 2)])
    assert not queue.claim(9)
    queue.enqueue({"id": 3, "customer": 7, "run_at": clock.now})
    backend.wait_for(lambda: ids(queue.claim(9)) == [3], "a job that is due now is found all the same")
    clock.now += timedelta(seconds=10)
    assert ids(queue.claim(9)) == [1]


def test_a_claim_leaves_the_turns_of_keys_that_its_predicate_excludes(backend: Backend) -> None:
    one = PerKey("customer", at_most=1)
    queue = mails(backend, one, [7, 8, 9])
    other = another(queue, backend, one)
    with queue.claim(9, MAILS.c.customer == 8) as batch:
        assert ids(batch) == [2]
        assert not queue.claim(9, MAILS.c.customer == 8)
        assert ids(other.claim(9)) == [1, 3]
        batch.done()
    assert [customers(each) for each in queue.batches(9, MAILS.c.customer == 8, drain=True)] == []


def test_keys_without_a_job_have_no_turn(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer"), range(450))
    total = 0
    for batch in queue.batches(100, drain=True):
        with batch:
            total += len(batch)
            batch.done()
    assert (total, backend.rows("mails_keys")) == (450, [])


# --- rates ---------------------------------------------------------------------------------------------------


def test_a_rate_is_kept_by_the_databases_clock(backend: Backend, clock: Clock) -> None:
    paced = PerKey("customer", rate="60/min", burst=3)
    queue = mails(backend, paced, [7] * 20 + [8], now=clock.sql)
    other = another(queue, backend, paced, now=clock.sql)
    assert customers(queue.claim(50)) == {7: 3, 8: 1}
    assert other.claim(50).contended
    for seconds, jobs in [(0.9, 0), (0.2, 1), (0.5, 0), (1.5, 2), (100.0, 3)]:
        clock.now += timedelta(seconds=seconds)
        assert len(other.claim(50)) == jobs, seconds


def test_a_drain_waits_for_the_rate(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", rate="20/s", burst=1), [7] * 5)
    sizes = []
    for batch in queue.batches(10, drain=True, poll=0.05):
        with batch:
            sizes.append(len(batch))
            batch.done()
    assert sizes == [1] * 5


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"columns": ()},
        {"columns": ""},
        {"at_most": 0},
        {"at_most": True},
        {"at_most": 2, "in_order": True},
        {"rate": "many"},
        {"rate": "0/s"},
        {"rate": "5/year"},
        {"burst": 2},
        {"weights": {7: 0}},
        {"weights": {7: 2}, "fair": False},
        {"weights": {(7, 8): 2}},
        {"after_failure": "skip"},
    ],
)
def test_values_that_do_not_go_together(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="per_key"):
        PerKey(**{"columns": "customer", **given})


def test_what_it_does_not_go_with(backend: Backend) -> None:
    one = PerKey("customer", at_most=1)
    with pytest.raises(ValueError, match="needs hold='lease'"):
        backend.bare_queue(MAILS, per_key=one, hold="transaction")
    with pytest.raises(ValueError, match="give a PerKey"):
        backend.bare_queue(MAILS, per_key="customer")


def test_jobs_of_a_small_key_are_found_whatever_statistics_say(backend: Backend) -> None:
    """Where nearly all rows are of one key, a planner may read an index of the order, and so each row."""
    queue = mails(backend, PerKey("customer"), [*[7] * MANY, 8])
    backend.run("INSERT INTO mails_keys (customer) VALUES (7), (8)")
    backend.analyze("mails")
    statements = queue._consumer.plans.key_statements
    assert statements is not None
    values = {"claimjobs_per_keys": [8], PART.format(0): 8, "claimjobs_each": 100}
    with backend.engine.connect() as connection:
        for statement in (statements.jobs(), statements.waiting):
            assert len(connection.execute(statement, values).all()) == 1
            assert backend.rows_read(connection, statement, values) <= FEW_ROWS, str(statement)


# --- with suspects, with sleeping consumers, without key rows, explained ------------------------------------


def test_suspects_are_claimed_alone_and_keep_to_the_limit(backend: Backend, clock: Clock) -> None:
    two = PerKey("customer", at_most=2)
    queue = mails(backend, two, [7, 7, 8, 8], now=clock.sql, retry=Retry(base=0.0, cap=0.0))

    assert len(spoil(queue, 4)) == 4
    clock.now += timedelta(seconds=5)
    assert len(queue.claim(4)) == 2  # half of them


def test_a_row_that_no_claim_can_take_is_found_behind_a_key_that_waits(backend: Backend) -> None:
    """The candidates of a claim per key are not the first jobs of the order."""
    in_order = PerKey("customer", in_order=True)
    queue = mails(backend, in_order, [*[7] * 70, 8, 9], retry=Retry(base=600.0, cap=600.0))
    with queue.claim(1) as batch:
        batch.fail(batch[0], "not now")
    refuse_where(backend, "UPDATE ON mails", "NEW.id = 71", "not this")
    found = [queue.claim(10) for _ in range(3)]
    assert [ids(batch) for batch in found if batch] == [[72]]


def test_jobs_behind_the_suspects_of_a_key_wait_for_them(backend: Backend) -> None:
    """Nobody has these suspects locked: they are claimed without fresh jobs beside them."""
    queue = mails(backend, PerKey("customer", at_most=2), [7, 8, 8, 8], retry=Retry(base=0.0, cap=0.0))
    backend.run("UPDATE mails SET suspect = 2 WHERE id IN (2, 3)")
    first = queue.claim(10)
    assert ids(first) == [1]
    finish(first)
    assert ids(queue.claim(10)) == [2]


@KINDS
def test_suspects_that_wait_for_the_jobs_in_hand_are_next(backend: Backend, kind: dict[str, Any]) -> None:
    """A key with suspects is not behind all others, although a claim has met it."""
    queue = mails(backend, PerKey("customer"), [7, 7], kind, retry=Retry(base=0.0, cap=0.0))
    spoil(queue, 2)
    backend.insert("mails", [{"id": number, "customer": 8} for number in range(3, 12)])
    in_hand = queue.claim(1, where="customer = 8")
    assert not queue.claim(1)
    in_hand.settle()
    assert ids(queue.claim(1)) == [1]


def test_jobs_whose_batch_failed_between_search_and_lock_are_taken_in_halves(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=4), [7, 7, 8, 8], bind=backend.new_engine())
    fail = "UPDATE mails SET suspect = 3 WHERE id < 4"
    with before_the_lock(queue.engine, "mails", lambda: backend.run(fail)):
        batch = queue.claim(4)
    assert (ids(batch), batch.jobs[0].suspect) == ([1], 3)


def test_a_sleeping_consumer_is_woken_and_finds_a_new_key(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=1), liveness=Liveness(lease=2.0))
    found: list[int] = []

    def work() -> None:
        for batch in queue.batches(5, poll=0.2):
            with batch:
                found.extend(ids(batch))
                batch.done()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for key in (1, 2, 3):
            backend.insert("mails", [{"id": key, "customer": key}])
            backend.wait_for(lambda key=key: key in found, "it is found")  # type: ignore[misc]
    finally:
        queue.stop()
        thread.join(60)


@KINDS
def test_a_job_of_a_key_that_was_to_be_later_is_work(backend: Backend, clock: Clock, kind: dict[str, Any]) -> None:
    """An idle owner asks that. The key row is about a job of next year."""
    queue = mails(backend, PerKey("customer"), kind=kind, now=clock.sql)
    queue.enqueue([{"id": 1, "customer": 7, "run_at": clock.now + timedelta(days=365)}])
    assert not queue.claim()
    assert not queue.claim()

    def is_work() -> bool:
        work = sa.select(queue._consumer.plans.plan(None).has_work)
        with backend.engine.connect() as connection:
            return connection.scalar(work) is not None

    assert not is_work()
    backend.insert("mails", [{"id": 2, "customer": 7, "run_at": clock.now - timedelta(seconds=1)}])
    assert is_work()
    with queue.claim() as batch:
        batch.fail(batch[0], "not yet", retry_in=5)
    clock.now += timedelta(seconds=6)
    assert is_work()


@KINDS
def test_explain_shows_its_statements(backend: Backend, kind: dict[str, Any]) -> None:
    queue = mails(backend, PerKey("customer", at_most=2), [7, 7, 8], kind)
    explained = queue.explain()
    shown = {phase.name for phase in explained.phases}
    assert {"key rows", "claimed", "find", "lock"} <= shown, explained.findings
    queue.check()


def test_a_limit_holds_though_the_table_of_keys_is_emptied(backend: Backend) -> None:
    queue = mails(backend, PerKey("customer", at_most=2), [7] * 5)
    assert len(queue.claim(9)) == 2
    backend.run("DELETE FROM mails_keys")
    assert len(queue.claim(9)) == 0

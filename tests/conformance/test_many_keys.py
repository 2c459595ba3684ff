"""Many keys of `per_key`: none is passed over for ever, no drain ends too early or too late, and rates are kept."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, PerKey, key_tables, make, side_car_tables
from claimjobs.claim import key_locking, key_search
from claimjobs.claim.claim_plan import ClaimPlan
from claimjobs.claim.strategy import ClaimResult
from claimjobs.errors import BadArgument
from claimjobs.statements import key_rows as key_statements
from claimjobs.table.definitions import shared_tables
from tests.backends import Backend, Clock
from tests.conformance.owners import hold_of
from tests.conformance.refusals import refuse_where
from tests.conformance.test_per_key import MAILS, ids, mails


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were thousands of keys: a claim reads few key rows, and a search few keys."""
    monkeypatch.setattr(key_locking, "MOST_ROWS", 10)
    monkeypatch.setattr(key_search, "JOBS_PER_PAGE", 5)
    for seconds in ("BESIDE_CLAIMS_SECONDS", "SEARCH_PAUSE_FACTOR", "LONGEST_SEARCH_PAUSE_SECONDS"):
        monkeypatch.setattr(key_search, seconds, 0.0)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("fair", [True, False])
def test_a_job_behind_many_keys_of_other_predicates_is_claimed(backend: Backend, fair: bool) -> None:
    queue = mails(backend, PerKey("customer", fair=fair), range(45), where="d = 'mine'")
    for customer in range(45):  # a key row each, whatever the predicate
        backend.run(f"INSERT INTO mails_keys (customer) VALUES ({customer})")
    backend.run("UPDATE mails SET d = 'mine' WHERE customer = 44")
    claims = [queue.claim(3) for _ in range(8)]
    assert [ids(batch) for batch in claims if batch] == [[45]]


@pytest.mark.usefixtures("small_steps")
def test_jobs_behind_many_keys_are_found_by_two_predicates_in_turn(backend: Backend) -> None:
    """As two loops of a program claim. Each goes on where its own last claim ended."""
    queue, found = mails(backend, PerKey("customer"), range(45)), list[int]()
    backend.insert("mails_keys", [{"customer": customer} for customer in range(45)])
    backend.run("UPDATE mails SET d = 'mine' WHERE customer = 44")
    backend.run("UPDATE mails SET d = 'yours' WHERE customer = 43")
    for where in ["d = 'mine'", "d = 'yours'"] * 8:
        found += ids(queue.claim(3, where=where))
    assert sorted(found) == [44, 45]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("fair", [True, False])
def test_a_row_that_no_claim_can_take_is_left_behind_many_keys(backend: Backend, fair: bool) -> None:
    """The claims that search for it begin where the claim began that met it."""
    queue = mails(backend, PerKey("customer", fair=fair), [*range(45), 44], where="d = 'mine'")
    backend.insert("mails_keys", [{"customer": customer} for customer in range(45)])
    backend.run("UPDATE mails SET d = 'mine' WHERE customer = 44")
    refuse_where(backend, "UPDATE ON mails", "NEW.id = 45", "not this")
    claims = [queue.claim(3) for _ in range(12)]
    assert [ids(batch) for batch in claims if batch] == [[46]]


@pytest.mark.usefixtures("small_steps")
def test_a_drain_ends_beside_many_keys_of_other_predicates(backend: Backend) -> None:
    queue, done = mails(backend, PerKey("customer"), range(25), where="customer = 3"), list[int]()
    for batch in queue.batches(drain=True):
        with batch:
            done += ids(batch)
            batch.done()
    assert done == [4]
    assert queue.stats().not_in_queue == 24


@pytest.mark.usefixtures("small_steps")
def test_a_drain_finds_the_follow_up_of_its_last_job(backend: Backend) -> None:
    """Its key is before the place where the search for new keys is."""
    queue, done = mails(backend, PerKey("customer")), list[int]()
    queue.enqueue({"id": n, "customer": n, "run_at": datetime(2100, 1, 1, tzinfo=UTC)} for n in range(10, 40))
    backend.insert("mails", [{"id": 50, "customer": 50}])
    for batch in queue.batches(drain=True):
        with batch:
            if 50 in ids(batch):
                backend.insert("mails", [{"id": 1, "customer": 1}])
            done += ids(batch)
            batch.done()
    assert done == [50, 1]


def test_a_search_through_very_many_keys_takes_several_transactions(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's connection is needed for its heartbeat, too. An idle loop does not rest between them."""
    monkeypatch.setattr(key_search, "JOBS_PER_PAGE", 5)
    monkeypatch.setattr(key_search, "MOST_SKIPPED", 1)
    monkeypatch.setattr(key_locking, "EMPTY_CLAIM_SECONDS", 0.0)
    queue = mails(backend, PerKey("customer"))
    queue.enqueue({"id": n, "customer": n, "run_at": datetime(2100, 1, 1, tzinfo=UTC)} for n in range(12))
    hold, goes_on = hold_of(queue), list[bool]()
    claim = hold.claim

    def noting(size: int, plan: ClaimPlan) -> ClaimResult:
        claimed = claim(size, plan)
        goes_on.append(claimed.goes_on)
        return claimed

    monkeypatch.setattr(hold, "claim", noting)
    assert not queue.claim().contended
    assert (len(goes_on) > 3, goes_on[-1]) == (True, False)


@pytest.mark.usefixtures("small_steps")
def test_a_function_as_predicate_forgets_no_search(backend: Backend) -> None:
    queue, done = mails(backend, PerKey("customer"), [n % 30 for n in range(300)]), set[int]()
    for _ in range(60):
        with queue.claim(2, where=_always) as batch:
            done |= {job["customer"] for job in batch.jobs}
            batch.done()
    assert len(done) == 30


def _always() -> sa.ColumnElement[bool]:
    return sa.text("customer >= 0")  # type: ignore[return-value]


def test_a_rate_is_kept_when_a_key_has_no_job_for_a_while(backend: Backend, clock: Clock) -> None:
    queue = mails(backend, PerKey("customer", rate="2/h", burst=2), now=clock.sql)
    claimed = 0
    for number in range(1, 6):
        queue.enqueue([{"id": number, "customer": 7}])
        for _ in range(2):
            with queue.claim() as batch:
                claimed += len(batch)
                batch.done()
    assert claimed == 2
    clock.now += timedelta(minutes=31)
    assert len(queue.claim()) == 1


def test_a_drain_does_not_wait_for_the_rate_of_a_key_without_jobs(backend: Backend) -> None:
    queue, done = mails(backend, PerKey("customer", rate="1/h"), [7]), list[int]()
    for batch in queue.batches(drain=True):
        with batch:
            done += ids(batch)
            batch.done()
    assert done == [1]


def test_a_drain_does_not_wait_for_keys_that_are_held_back_and_have_no_job_for_it(backend: Backend) -> None:
    """Their jobs are those of another predicate, or were cancelled."""
    queue = mails(backend, PerKey("customer", rate="1/d"), [7, 7, 8])
    assert len(queue.claim(9, where="customer = 7")) == 1
    assert queue.claim(9, where="customer = 7").contended
    eight = "customer = 8"
    assert [ids(batch) for batch in (queue.claim(9, where=eight), queue.claim(9, where=eight))] == [[3], []]
    assert not queue.claim(9, where=eight).contended
    queue.cancel([2])
    assert not queue.claim(9).contended


@pytest.mark.parametrize("side_car", [False, True])
def test_a_drain_ends_beside_other_jobs_that_have_no_instant(backend: Backend, side_car: bool) -> None:
    """They are due, and not a moment later."""
    state = sa.Column("state", sa.String(10), nullable=False, server_default="unclaimed")
    numbers = (sa.Column(name, sa.Integer, nullable=name == "owner") for name in ("customer", "owner"))
    own = sa.Table("own", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), state, *numbers)
    for name, columns in {"own_found": ("customer", "id"), "own_by_key": ("state", "customer", "id")}.items():
        sa.Index(name, *(own.c[column] for column in columns))
    own.create(backend.engine)
    make(backend.engine, side_car_tables(backend.engine, "own") if side_car else shared_tables())
    kind: dict[str, Any] = {"side_car": True} if side_car else {"columns": Columns(status="state", owner_id="owner")}
    make(backend.engine, key_tables(backend.engine, own, ["customer"], **kind))
    backend.insert("own", [{"id": 1, "customer": 7}, {"id": 2, "customer": 8}])
    queue = backend.bare_queue(own, per_key=PerKey("customer"), where="customer = 8", on_done="keep", **kind)
    with queue.claim() as batch:
        assert ids(batch) == [2]
        batch.done()
    found = [queue.claim() for _ in range(3)]
    assert not any(found)
    assert not found[-1].contended


def test_an_idle_loop_claims_if_more_jobs_of_keys_that_wait_are_due_than_its_check_reads(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_statements, "SOME_JOBS", 5)
    queue = mails(backend, PerKey("customer", in_order=True), [1] * 5)  # one of them fails
    with queue.claim() as batch:
        batch.fail(batch[0], "not now", retry_in=3_600)
    assert not queue.claim()

    def may_be_work() -> bool:
        with backend.engine.connect() as connection:
            return connection.scalar(sa.select(queue._consumer.plans.plan(None).has_work)) is not None

    assert not may_be_work()
    backend.insert("mails", [{"id": 6, "customer": 1}, {"id": 7, "customer": 2}])
    assert may_be_work()


def test_weights_are_of_keys_as_the_database_compares_them(backend: Backend) -> None:
    """A map has texts, and so has who copies a key from a page."""
    queue = mails(backend, PerKey("customer", weights={"7": 3}), [6] * 60 + [7] * 60)
    customers = Counter(job["customer"] for job in queue.claim(40).jobs)
    assert customers == {6: 7, 7: 20}
    with pytest.raises(BadArgument, match="'seven' is no value of column 'customer'"):
        backend.bare_queue(MAILS, per_key=PerKey("customer", weights={"seven": 3})).claim()

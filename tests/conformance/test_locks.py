"""What a claim and a settle lock, and how the database finds the rows: the cost that does not show in a small test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from claimjobs import Queue, job_table
from claimjobs.claim.locking import FindAndLock
from claimjobs.claim.strategy import ClaimRequest, ClaimStrategy
from claimjobs.dialects.types import database_now
from claimjobs.statements import owners, settle
from claimjobs.statements.claim import Parts, lock, mark
from claimjobs.statements.find import Selection, find, keyset_order_of
from claimjobs.table.claim_index import claim_index
from claimjobs.table.definitions import OWNER_TABLE, article_table, owner_table
from claimjobs.table.roles import ColumnRoles, roles_of
from tests.backends import Backend, Servers
from tests.conformance.jobs import by_hand, jobs
from tests.flavours import FAMILIES
from tests.plans import Plan

JOBS = article_table()
WAITING = 20_000
SIZE = 100
CANDIDATES = 800


@pytest.fixture(scope="module", params=FAMILIES)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """One database for all tests here: they undo what they do, and 20,000 rows take a while."""
    lent = servers.lend(request.param)
    yield lent
    lent.close()


@pytest.fixture(scope="module")
def queue(backend: Backend) -> Queue:
    """One with many waiting jobs, of several priorities, and some that another owner has in hand."""
    queue = backend.queue(JOBS)
    with backend.engine.begin() as connection:
        rows = [{**job, "priority": n % 3} for n, job in enumerate(jobs(WAITING))]
        connection.execute(sa.insert(JOBS), rows)
        others = {"status": "claimed", "owner_id": 42, "priority": 0}
        connection.execute(sa.insert(JOBS), [{**job, **others} for job in jobs(500)])
    backend.analyze()
    return queue


def claimed_by_hand(backend: Backend, connection: sa.Connection, queue: Queue) -> list[Any]:
    algorithm: ClaimStrategy = queue._consumer.plans.plan(None).strategy
    claimed = algorithm.claim(connection, queue.owner_id, ClaimRequest(SIZE, CANDIDATES))
    assert len(claimed.jobs) == SIZE
    assert claimed.candidates == (
        claimed.examined if backend.has("lock of what is found") else CANDIDATES
    )  # it took all it wanted
    return [job.key for job in claimed.jobs]


def test_a_claim_locks_what_it_takes_and_not_what_it_looked_at(backend: Backend, queue: Queue) -> None:
    with by_hand(backend) as connection:
        claimed_by_hand(backend, connection, queue)
        assert backend.locked() == SIZE


@pytest.mark.requires("row lock table")
def test_a_claim_takes_no_other_locks_in_any_index(backend: Backend, queue: Queue) -> None:
    with by_hand(backend) as connection:
        claimed_by_hand(backend, connection, queue)
        locks = backend.lock_table()
        assert len(locks) <= SIZE + 2, locks[:20]
        assert {index for index, _ in locks} == {"PRIMARY"}
        assert {mode for _, mode in locks} == {"X,REC_NOT_GAP"}


SETTLES = ["delete", "keep", "release", "retry", "bury"]


def statement(kind: str, roles: ColumnRoles, backend: Backend, keys: list[Any]) -> Any:
    if kind == "retry":
        failures = dict.fromkeys(keys, settle.Failure("again", 60.0))
        return settle.retry(reach(roles, backend), database_now(), failures)
    if kind == "bury":
        return settle.mark_dead(reach(roles, backend), database_now(), dict.fromkeys(keys, settle.Failure("never")))
    if kind == "keep":
        return settle.keep(reach(roles, backend), database_now())
    write: Any = getattr(settle, kind)
    return write(reach(roles, backend))


def reach(roles: ColumnRoles, backend: Backend) -> settle.SettleGuard:
    return settle.SettleGuard(roles, backend.dialect, roles.mine)


@pytest.mark.parametrize("kind", SETTLES)
def test_a_settle_locks_its_own_jobs_only(backend: Backend, queue: Queue, kind: str) -> None:
    batch = queue.claim(SIZE)
    keys = [job.key for job in batch.jobs]
    with by_hand(backend) as connection:
        connection.execute(
            statement(kind, roles_of(JOBS), backend, keys), {"claimjobs_keys": keys, "claimjobs_me": queue.owner_id}
        )
        if backend.has("row lock table"):
            assert sorted(backend.lock_table()) == [("PRIMARY", "X,REC_NOT_GAP")] * SIZE
        assert backend.locked() == SIZE
    batch.settle()


def test_looking_which_jobs_are_still_held_locks_those_only(backend: Backend, queue: Queue) -> None:
    batch = queue.claim(SIZE)
    keys = [job.key for job in batch.jobs]
    with by_hand(backend) as connection:
        held = connection.execute(
            settle.lock_mine(reach(roles_of(JOBS), backend)), {"claimjobs_keys": keys, "claimjobs_me": queue.owner_id}
        ).all()
        assert len(held) == SIZE
        if backend.has("row lock table"):
            assert len(backend.lock_table()) <= SIZE + 2, backend.lock_table()[:20]
        assert backend.locked() == SIZE
    batch.settle()


def test_what_is_lost_costs_no_locks_on_the_jobs_of_others(backend: Backend, queue: Queue) -> None:
    """The way through `lock_mine`: where nothing is returned, a count that is too small is looked into."""
    batch, theirs = queue.claim(SIZE), backend.queue(JOBS)
    with theirs.claim(SIZE) as other, by_hand(backend) as connection:
        connection.execute(sa.select(JOBS).where(JOBS.c.id == other[0].key).with_for_update()).all()
        backend.run("DELETE FROM jobs WHERE id = :id", id=batch[3].key)
        batch.done()
        batch.settle()  # would wait for the lock of the other, or deadlock with it
    assert [job.key for job in batch.lost] == [batch[3].key]


# --- plans -------------------------------------------------------------------------------------------------


def test_candidates_come_in_order_from_the_claim_index_without_a_sort(backend: Backend, queue: Queue) -> None:
    roles = roles_of(JOBS)
    with by_hand(backend) as connection:
        selection = Selection(roles.due(database_now()), roles.default_order)
        plan = backend.plan(connection, find(roles, selection), {"claimjobs_limit": CANDIDATES})
    assert plan.indexes == ("jobs_claim",), plan.text
    assert not plan.sorts, plan.text
    assert not plan.scans, plan.text


def test_phase_2_goes_through_the_primary_key(backend: Backend, queue: Queue) -> None:
    roles = roles_of(JOBS)
    selection = Selection(roles.due(database_now()), roles.default_order)
    with by_hand(backend) as connection:
        keys = connection.scalars(find(roles, selection), {"claimjobs_limit": CANDIDATES}).all()
        given = {"claimjobs_candidates": keys, "claimjobs_size": SIZE}
        locking = backend.plan(connection, lock(roles, backend.dialect, selection, Parts([*JOBS.columns], [])), given)
        taken = {"claimjobs_keys": list(keys[:SIZE]), "claimjobs_me": queue.owner_id}
        marking = backend.plan(connection, mark(roles, backend.dialect, database_now(), owner_table()), taken)
    for plan in (locking, marking):
        goes_by_key(backend, plan)


def goes_by_key(backend: Backend, plan: Plan, table: str = "jobs") -> None:
    """Through the primary key; any index will do where only the rows that are wanted are locked."""
    fit = {backend.primary_key_of(table), backend.primary_key_of(OWNER_TABLE)}
    if not backend.has("locks what it reads"):
        fit.add(f"{table}_claim")
    assert plan.indexes, plan.text
    assert set(plan.indexes) <= fit, plan.text
    assert not plan.scans, plan.text


@pytest.mark.parametrize("kind", SETTLES)
def test_a_settle_goes_through_the_primary_key(backend: Backend, queue: Queue, kind: str) -> None:
    keys = list(range(1, SIZE + 1))
    with by_hand(backend) as connection:
        plan = backend.plan(
            connection, statement(kind, roles_of(JOBS), backend, keys), {"claimjobs_keys": keys, "claimjobs_me": 1}
        )
    goes_by_key(backend, plan)


def looks(queue: Queue, backend: Backend) -> dict[str, Any]:
    """Where claims begin: at the head, and beyond a place in the order."""
    algorithm: Any = queue._consumer.plans.plan(None).strategy
    return {"head": None, "beyond": algorithm.keyset_order.place({"priority": 1, "id": WAITING // 2})}


@pytest.mark.parametrize("begin", ["head", "beyond"])
@pytest.mark.requires("one statement")
def test_a_claim_in_one_statement_does_the_same(backend: Backend, queue: Queue, begin: str) -> None:
    algorithm: Any = queue._consumer.plans.plan(None).strategy
    request = ClaimRequest(SIZE, SIZE, looks(queue, backend)[begin])
    given = {**request.find_parameters, "claimjobs_size": SIZE, "claimjobs_me": queue.owner_id}
    with by_hand(backend) as connection:
        plan = backend.plan(connection, algorithm.form_for(request).statement, given)
    assert set(plan.indexes) <= {"jobs_claim", "jobs_pkey", f"{OWNER_TABLE}_pkey"}, plan.text
    assert not plan.scans, plan.text


@pytest.mark.parametrize("begin", ["head", "beyond"])
@pytest.mark.requires("lock of what is found")
def test_a_lock_of_what_it_finds_reads_the_claim_index_and_the_primary_key(
    backend: Backend, queue: Queue, begin: str
) -> None:
    request = ClaimRequest(SIZE, CANDIDATES, looks(queue, backend)[begin])
    selection = Selection(queue.roles.due(database_now()), queue.roles.default_order)
    algorithm: Any = FindAndLock(queue._access.backend, selection)
    with by_hand(backend) as connection:
        plan = backend.plan(
            connection, algorithm.form_for(request).statement, {**request.find_parameters, "claimjobs_size": SIZE}
        )
    by_key = set() if backend.has("lock in order") else {backend.primary_key_of("jobs")}
    assert {index for index in plan.indexes if index} == {"jobs_claim", *by_key}, plan.text


@pytest.mark.parametrize("falling", [False, True])
def test_a_look_from_beyond_a_place_reads_nothing_before_it(backend: Backend, queue: Queue, falling: bool) -> None:
    roles = roles_of(JOBS)
    order = [column.desc() if falling else column for column in roles.default_order]
    selection = Selection(roles.due(database_now()), order)
    walk = keyset_order_of(selection)
    assert walk is not None
    begun = walk.after(selection, backend.dialect)
    last = {"priority": 0, "id": 1} if falling else {"priority": 2, "id": WAITING}
    given = {"claimjobs_limit": SIZE, **walk.place(last)}
    with by_hand(backend) as connection:
        read = backend.rows_read(connection, find(roles, begun), given)
    assert read <= SIZE + 10


def test_a_look_from_beyond_a_place_in_a_mixed_order_reads_nothing_before_it(backend: Backend, queue: Queue) -> None:
    """Half of the 20,000 jobs are before it. A planner may pass over the other priorities, in the primary key."""
    roles = roles_of(JOBS)
    selection = Selection(roles.due(database_now()), [JOBS.c.priority.desc(), JOBS.c.id])
    walk = keyset_order_of(selection)
    assert walk is not None
    given = {"claimjobs_limit": SIZE, **walk.place({"priority": 1, "id": WAITING // 2})}
    with another_claim_index(backend, selection.order), by_hand(backend) as connection:
        read = backend.rows_read(connection, find(roles, walk.after(selection, backend.dialect)), given)
    assert read <= 4 * SIZE


@contextmanager
def another_claim_index(backend: Backend, order: Sequence[sa.ColumnElement[Any]]) -> Iterator[None]:
    """The claim index of a queue on the same table that has another order."""
    index = claim_index(roles_of(JOBS), order)
    assert index is not None
    index.name = quoted_name("jobs_claim_other", quote=None)
    with backend.engine.begin() as connection:
        connection.execute(sa.schema.CreateIndex(index))
    backend.analyze()
    try:
        yield
    finally:
        with backend.engine.begin() as connection:
            connection.execute(sa.schema.DropIndex(index))


def test_what_an_owner_holds_is_found_without_reading_the_whole_queue(backend: Backend, queue: Queue) -> None:
    with by_hand(backend) as connection:
        plan = backend.plan(connection, owners.held(roles_of(JOBS)), {"claimjobs_me": 42})
    assert "jobs_claim" in plan.indexes, plan.text
    assert not plan.scans, plan.text


def test_a_key_of_several_columns_goes_through_its_primary_key_too(backend: Backend) -> None:
    table = job_table(
        "parts",
        sa.MetaData(),
        sa.Column("customer", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    )
    queue = backend.queue(table)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(table), [{"customer": n // 10, "part": n % 10} for n in range(5_000)])
    backend.analyze("parts")
    roles = roles_of(table)
    keys = [(n // 10, n % 10) for n in range(SIZE)]
    with by_hand(backend) as connection:
        plan = backend.plan(
            connection, settle.delete(reach(roles, backend)), {"claimjobs_keys": keys, "claimjobs_me": 1}
        )
        goes_by_key(backend, plan, "parts")
        claimed = queue._consumer.plans.plan(None).strategy.claim(
            connection, queue.owner_id, ClaimRequest(SIZE, CANDIDATES)
        )
        assert len(claimed.jobs) == SIZE
        assert backend.locked("parts") == SIZE


@pytest.mark.parametrize("kind", SETTLES)
def test_a_settle_does_not_wait_for_others_rows_in_a_small_table(backend: Backend, kind: str) -> None:
    """A planner may take a few rows for so few that it reads them all."""
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(5))
    theirs, mine = queue.claim(2), queue.claim(2)
    keys = [job.key for job in mine.jobs]
    with by_hand(backend) as stranger, by_hand(backend) as connection:
        stranger.execute(sa.select(JOBS).where(JOBS.c.id.in_([job.key for job in theirs.jobs])).with_for_update())
        connection.execute(sa.text(backend.dialect.sessions.settings(1.0)[0]))
        given = {"claimjobs_keys": keys, "claimjobs_me": queue.owner_id}
        connection.execute(settle.lock_mine(reach(roles_of(JOBS), backend)), given)
        connection.execute(statement(kind, roles_of(JOBS), backend, keys), given)
    mine.settle()
    theirs.settle()

"""Claims beside other claims: each job in one hand, and everyone finds work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.claim.candidate_range import TRIES, Overfetch
from claimjobs.claim.locking import FindThenLock
from claimjobs.claim.strategy import ClaimRequest
from claimjobs.dialects import Key
from claimjobs.statements.claim import Parts, lock
from claimjobs.statements.find import Selection, find
from claimjobs.table.definitions import article_table
from claimjobs.table.roles import roles_of
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import hold_of

JOBS = article_table()


@contextmanager
def lock_held(backend: Backend, *those: str) -> Iterator[None]:
    """Another session holds the locks of these jobs, as one in the middle of its claim does."""
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as other, other.begin():
        for id_ in other.scalars(sa.select(JOBS.c.id).where(JOBS.c.d.in_(those))).all():
            # One at a time: given several, a planner may read (and so lock) the whole of a small table.
            other.execute(sa.select(JOBS).where(JOBS.c.id == id_).with_for_update()).all()
        yield


def test_two_queues_in_turn_share_no_job(backend: Backend) -> None:
    one, other = backend.queue(), backend.queue()
    one.enqueue(jobs(6))
    with one.claim(2) as a, other.claim(2) as b, one.claim(2) as c:
        assert [names(a), names(b), names(c)] == [["0000", "0001"], ["0002", "0003"], ["0004", "0005"]]
        assert not other.claim()
        assert one.owner_id != other.owner_id


def test_locked_jobs_are_passed_over_without_waiting(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(5))
    with lock_held(backend, "0000", "0002"), queue.claim(5) as batch:
        assert names(batch) == ["0001", "0003", "0004"]
    assert queue.report.collisions == 2


def test_an_empty_batch_tells_all_in_other_hands_from_nothing_there(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(3))
    with lock_held(backend, "0000", "0001", "0002"):
        batch = queue.claim(2)
        assert not batch
        assert batch.contended
        assert queue.report.claims == queue.report.empty_claims == TRIES
    with queue.claim() as batch:
        assert len(batch) == 3
    assert not queue.claim().contended


def test_a_drain_outlasts_jobs_that_are_locked(backend: Backend) -> None:
    """A job that another session merely has locked may come free: a drain must not end without it."""
    queue = backend.queue()
    queue.enqueue(jobs(1))
    found: list[str] = []

    def drain() -> None:
        for batch in queue.batches(drain=True):
            with batch:
                found.extend(job.d for job in batch)

    with lock_held(backend, "0000"):
        drainer = threading.Thread(target=drain)
        drainer.start()
        backend.wait_for(lambda: queue.report.claims > 2 * TRIES, "the drain looks again")
        assert drainer.is_alive()
        assert not found
    drainer.join(120)
    assert found == ["0000"]


# --- between the two phases --------------------------------------------------------------------------------


def two_phases(backend: Backend, connection: sa.Connection) -> tuple[list[Key], sa.Select[tuple[int]]]:
    """Phase 1 as `FindThenLock` sends it, and phase 2 to be sent when the test has come between."""
    roles = roles_of(JOBS)
    ready = roles.due(sa.func.now()) if backend.family == "postgres" else roles.state.job_is("unclaimed")
    selection = Selection(ready, roles.default_order)
    found = connection.execute(find(roles, selection), {"claimjobs_limit": 10})
    return [row[0] for row in found], lock(roles, backend.dialect, selection, Parts([*roles.table.columns], []))


@contextmanager
def at_dialects_isolation(backend: Backend) -> Iterator[sa.Connection]:
    with backend.engine.connect() as connection:
        connection.execution_options(isolation_level=backend.dialect.isolation)
        with connection.begin():
            yield connection


def test_what_was_claimed_between_the_phases_is_left_alone(backend: Backend) -> None:
    other = backend.queue()
    other.enqueue(jobs(6))
    with at_dialects_isolation(backend) as connection:
        candidates, phase_2 = two_phases(backend, connection)
        with other.claim(2) as taken:
            given = {"claimjobs_candidates": candidates, "claimjobs_size": 3}
            locked = connection.execute(phase_2, given).mappings().all()
            assert names(taken) == ["0000", "0001"]
            assert [row["d"] for row in locked] == ["0002", "0003", "0004"]
            connection.rollback()


def test_what_was_done_between_the_phases_is_not_there_any_more(backend: Backend) -> None:
    other = backend.queue()
    other.enqueue(jobs(3))
    with at_dialects_isolation(backend) as connection:
        candidates, phase_2 = two_phases(backend, connection)
        with other.claim(2) as taken:
            taken.done()
        given = {"claimjobs_candidates": candidates, "claimjobs_size": 3}
        assert [row["d"] for row in connection.execute(phase_2, given).mappings()] == ["0002"]


def test_what_stopped_being_wanted_between_the_phases_is_left_alone(backend: Backend) -> None:
    """The recheck is of the whole predicate, not of the status alone."""
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(3))
    roles = queue._access.backend.roles
    ready = sa.and_(roles.state.job_is("unclaimed"), roles.table.c.e == "")
    phases = FindThenLock(queue._access.backend, Selection(ready, roles.default_order))
    with at_dialects_isolation(backend) as connection:
        candidates = phases._finder.rows(connection, ClaimRequest(10, 10))
        backend.run("UPDATE jobs SET e = 'cancelled' WHERE d = '0001'")
        left = phases.lock_candidates(connection, candidates, ClaimRequest(10, 10), {})
        assert names(left.jobs) == ["0000", "0002"]


GATES = dict.fromkeys(("mysql", "mariadb"), "get_lock(concat('{0}', length(e) * 0), 20) = 1") | {
    "postgres": "pg_advisory_xact_lock(4711 + length(e) * 0) IS NOT NULL"
}
"""A predicate that is true of every row, as soon as somebody lets go of a lock. It names a column: so it is asked when
a row has been read, and with it all that the statement is going to see has been settled."""


@contextmanager
def gate_closed(backend: Backend, gate: str) -> Iterator[None]:
    """Whoever asks the predicate waits, until the block is left."""
    with backend.engine.connect() as other:
        other.execute(sa.text(f"SELECT 1 FROM (SELECT '' AS e) AS any_row WHERE {gate}")).all()
        yield
        other.invalidate()  # the session's end lets go


def waits_at_the_gate(backend: Backend) -> bool:
    if backend.family == "postgres":
        return backend.someone_waits_for_a_lock()
    asked = "SELECT 1 FROM information_schema.processlist WHERE db = database() AND state = 'User lock'"
    with backend.engine.connect() as connection:
        return connection.execute(sa.text(asked)).first() is not None


def test_what_others_do_while_a_claim_reads_its_candidates_is_seen_when_it_locks_them(backend: Backend) -> None:
    """One job was claimed, one was done, one was changed: the claim has read them as they were, and takes none."""
    gate = GATES[backend.family].format(sa.make_url(backend.url).database)
    queue, other = backend.queue(where=sa.text(f"e = '' AND {gate}")), backend.queue()
    other.enqueue(jobs(5))
    found: list[list[str]] = []

    def claim() -> None:
        with queue.claim(5) as batch:
            found.append(names(batch))

    claiming = threading.Thread(target=claim)
    with gate_closed(backend, gate):
        claiming.start()
        backend.wait_for(lambda: waits_at_the_gate(backend), "it has read a candidate")
        taken = other.claim(1)
        backend.run("DELETE FROM jobs WHERE d = '0001'")
        backend.run("UPDATE jobs SET e = 'cancelled' WHERE d = '0002'")
    claiming.join(120)
    assert (names(taken), found) == (["0000"], [["0003", "0004"]])
    taken.done()
    taken.settle()
    assert taken.lost == ()


@pytest.mark.requires("one statement")
def test_a_claim_of_one_statement_rechecks_what_changed_while_it_ran(backend: Backend) -> None:
    """A job that is claimed and let go between the snapshot and the lock is not claimed a second time."""
    queue, other = backend.queue(), backend.queue()
    queue.enqueue(jobs(2_000))
    stop = threading.Event()
    taken: list[str] = []

    def beside() -> None:
        while not stop.is_set():
            with other.claim(3) as batch:
                taken.extend(job.d for job in batch)

    neighbour = threading.Thread(target=beside)
    neighbour.start()
    mine: list[str] = []
    try:
        for batch in queue.batches(3, drain=True):
            with batch:
                mine.extend(job.d for job in batch)
    finally:
        stop.set()
        neighbour.join()
    assert sorted(mine + taken) == [job["d"] for job in jobs(2_000)]
    assert taken


# --- everyone finds work -----------------------------------------------------------------------------------


def test_ten_queues_on_one_head_all_find_work(backend: Backend) -> None:
    """Each claims while the claims of those before it are still uncommitted: the worst that can happen."""
    queues = [backend.queue(JOBS) for _ in range(10)]
    queues[0].enqueue(jobs(200))
    held: list[list[str]] = []
    with in_the_middle_of_claims(backend, queues, held), backend.queue(JOBS).claim(5) as batch:
        assert names(batch) == [f"{n:04}" for n in range(50, 55)]
    assert [name for batch in held for name in batch] == [f"{n:04}" for n in range(50)]


@contextmanager
def in_the_middle_of_claims(backend: Backend, queues: list[Queue], held: list[list[str]]) -> Iterator[None]:
    """Each queue has locked its five jobs and has not yet committed."""
    connections = []
    try:
        for queue in queues:
            connection = backend.engine.connect().execution_options(isolation_level=backend.dialect.isolation)
            connections.append(connection)
            connection.begin()
            algorithm = queue._consumer.plans.plan(None).strategy
            claimed = algorithm.claim(connection, queue.owner_id, ClaimRequest(5, 100))
            assert len(claimed.jobs) == 5
            held.append(names(claimed.jobs))
        yield
    finally:
        for connection in connections:
            connection.close()


def test_a_claim_that_meets_only_other_hands_looks_further(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(40))
    with lock_held(backend, *(f"{n:04}" for n in range(30))):
        with queue.claim(2) as batch:
            assert names(batch) == ["0030", "0031"]
        assert (1 if backend.has("lock in order") else 2) <= queue.report.claims <= TRIES


@pytest.mark.parametrize("count", [2, 3, 50])
def test_the_first_of_more_candidates_are_taken_however_the_rows_lie(backend: Backend, count: int) -> None:
    """With over-fetch, phase 2 has a choice: it must not go by the way the database happens to read."""
    queue = backend.queue(JOBS)
    queue.enqueue({**job, "priority": -number} for number, job in enumerate(jobs(count)))
    backend.analyze()
    algorithm = queue._consumer.plans.plan(None).strategy
    with at_dialects_isolation(backend) as connection:
        if backend.has("planner switches"):
            connection.exec_driver_sql("SET LOCAL enable_nestloop = off").close()
            connection.exec_driver_sql("SET LOCAL enable_mergejoin = off").close()
        claimed = algorithm.claim(connection, queue.owner_id, ClaimRequest(1, count))
        assert claimed.candidates == (count if counts_all(backend) else claimed.examined)
        assert names(claimed.jobs) == [f"{count - 1:04}"]
        connection.rollback()


def test_a_batch_is_in_order_also_from_a_table_that_seems_small(backend: Backend) -> None:
    """Rows that came and went leave figures behind by which a database may choose to read the whole table."""
    queue = backend.queue(JOBS)
    for _ in range(3):
        queue.enqueue({**job, "priority": number % 2} for number, job in enumerate(jobs(3)))
        with queue.claim(3) as batch:
            assert names(batch) == ["0000", "0002", "0001"]
            batch.done()


def counts_all(backend: Backend) -> bool:
    """Whether a claim that took all it wanted tells how many candidates there were, too."""
    return not backend.has("lock of what is found")


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.requires("count of collisions")
def test_collisions_are_what_was_met_on_the_way(backend: Backend, size: int) -> None:
    """Counted alike by every algorithm that knows: candidates before the last job taken that were in other hands."""
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(20))
    algorithm = queue._consumer.plans.plan(None).strategy
    with lock_held(backend, "0000", "0001", "0003", "0015"), at_dialects_isolation(backend) as connection:
        claimed = algorithm.claim(connection, queue.owner_id, ClaimRequest(size, 12))
        assert claimed.candidates == (12 if counts_all(backend) else claimed.examined)
        assert claimed.examined == {1: 3, 4: 7}[size]
        assert claimed.collisions == {1: 2, 4: 3}[size]
        connection.rollback()


def test_a_claim_that_falls_short_has_met_all_the_rest(backend: Backend) -> None:
    queue = backend.queue(JOBS)
    queue.enqueue(jobs(5))
    algorithm = queue._consumer.plans.plan(None).strategy
    with lock_held(backend, "0001", "0004"), at_dialects_isolation(backend) as connection:
        claimed = algorithm.claim(connection, queue.owner_id, ClaimRequest(5, 10))
        assert names(claimed.jobs) == ["0000", "0002", "0003"]
        assert (claimed.candidates, claimed.examined, claimed.collisions) == (5, 5, 2)
        connection.rollback()


@pytest.mark.requires("count of collisions")
def test_over_fetch_grows_where_claims_collide_and_goes_back_where_they_do_not(backend: Backend) -> None:
    queue = backend.queue()
    queue.enqueue(jobs(300))
    overfetch: Overfetch = hold_of(queue)._range._overfetch
    with lock_held(backend, *(f"{n:04}" for n in range(30))):
        queue.claim(4).settle()
        assert overfetch.factor > 4
    for _ in range(40):
        queue.claim(4).settle()
    assert overfetch.limit(4) == 4

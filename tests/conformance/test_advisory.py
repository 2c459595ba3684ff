"""Claims by advisory locks: the same jobs in one hand each, and no lock left behind, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue
from claimjobs.batch.transaction_hold import TransactionHold
from claimjobs.dialects import Dialect
from claimjobs.errors import BadPredicate, BatchRolledBack, NoOpenTransaction, SessionsNotOurs
from claimjobs.options import Liveness
from claimjobs.signals import Cancelled
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import still

JOBS = article_table()
HOLDS = ["lease", "transaction"]
LOCKS = ["rows", "advisory"]
TRY = ("pg_try_advisory_lock(wanted", "get_lock(wanted")
"""An owner's own lock comes from no list."""


@pytest.fixture(params=HOLDS)
def hold(request: pytest.FixtureRequest) -> Any:
    return request.param


def advisory(backend: Backend, hold: Any, **options: Any) -> Queue:
    return backend.queue(**{"lock": "advisory", "hold": hold, "bind": backend.new_engine(), **options})


def held_while(hold: str, count: int) -> int:
    """How many advisory locks there are while so many jobs are in hand."""
    return count if hold == "transaction" else 0


@contextmanager
def at_locking(queue: Queue, act: Callable[[], object], event: str = "before_cursor_execute") -> Iterator[list[str]]:
    """Run `act` once, between phase 1 and the locks; with `after_cursor_execute` between these and the recheck."""
    sent: list[str] = []

    def look(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if any(words in statement for words in TRY):
            sent.append(statement)
            if len(sent) == 1:
                act()

    sa.event.listen(queue.engine, event, look)
    try:
        yield sent
    finally:
        sa.event.remove(queue.engine, event, look)


def take_all(queue: Queue, size: int) -> None:
    with queue.claim(size) as batch:
        assert len(batch) == size
        batch.done()


# --- claiming ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", LOCKS)
def test_a_claim_takes_jobs_in_order_and_they_are_done(backend: Backend, hold: Any, lock: Any) -> None:
    queue = backend.queue(lock=lock, hold=hold)
    queue.enqueue(jobs(5))
    done: list[str] = []
    for batch in queue.batches(2, drain=True):
        with batch:
            done += [job.d for job in batch]
    assert done == ["0000", "0001", "0002", "0003", "0004"]
    assert backend.rows() == []
    assert queue.report.done == 5


def test_two_consumers_share_no_job_and_find_the_next_ones(backend: Backend, hold: Any) -> None:
    one, other = advisory(backend, hold), advisory(backend, hold)
    one.enqueue(jobs(6))
    with one.claim(2) as a, other.claim(2) as b, one.claim(2) as c:
        assert [names(a), names(b), names(c)] == [["0000", "0001"], ["0002", "0003"], ["0004", "0005"]]
        assert backend.advisory_locks() == held_while(hold, 6)
        assert not other.claim()
    assert backend.advisory_locks() == 0


def test_a_claim_says_who_has_it_by_lease_and_locks_no_row_by_transaction(backend: Backend, hold: Any) -> None:
    queue = advisory(backend, hold)
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        assert backend.locked() == 0
        [row] = backend.rows()
        by_lease = hold == "lease"
        assert (row["status"], row["owner_id"]) == (("claimed", queue.owner_id) if by_lease else ("unclaimed", None))
        if by_lease:
            assert (batch[0].status, batch[0].owner_id) == ("claimed", queue.owner_id)


def test_the_locks_are_let_go_of_after_the_commit(backend: Backend, hold: Any) -> None:
    """Whoever has the lock next must see what was written."""
    queue = still(advisory(backend, hold)) if hold == "lease" else advisory(backend, hold)
    queue.enqueue(jobs(3))
    queue.claim(1).settle()
    with counted(queue.engine) as sent:
        take_all(queue, 3)
    kinds = [statement.split()[0] if "unlock" not in statement else "free" for statement in sent]
    kinds = ["free" if "release_lock" in sent[place] else kind for place, kind in enumerate(kinds)]
    assert kinds.count("free") == 1
    assert "COMMIT" in kinds[: kinds.index("free")]


@pytest.mark.parametrize(("hold", "others"), [("lease", "rows"), ("lease", "advisory"), ("transaction", "advisory")])
def test_every_job_is_done_exactly_once(backend: Backend, hold: Any, others: Any) -> None:
    """Beside others that hold by lease: for those it does not matter what they lock."""
    queues = [advisory(backend, hold) for _ in range(3)]
    queues += [advisory(backend, "lease", lock=others) for _ in range(3)]
    queues[0].enqueue(jobs(900))
    done: list[str] = []
    threads = [threading.Thread(target=drain, args=(queue, done), daemon=True) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(done) == [job["d"] for job in jobs(900)]
    assert sum(queue.report.done for queue in queues) == 900
    assert backend.rows() == []
    assert backend.advisory_locks() == 0


def drain(queue: Queue, done: list[str]) -> None:
    for batch in queue.batches(7, drain=True):
        with batch:
            done += [job.d for job in batch]
        assert not batch.lost


def test_claims_in_vain_never_take_what_an_advisory_lock_protects(backend: Backend) -> None:
    """After some claims in vain a consumer claims in another way, which must ask for the same locks."""
    one, other = advisory(backend, "transaction"), advisory(backend, "lease")
    one.enqueue(jobs(3))
    with one.claim(3) as batch:
        assert [len(other.claim(3)) for _ in range(20)] == [0] * 20
        batch.done()
    assert backend.rows() == []


def test_two_descriptions_of_a_table_share_its_locks(backend: Backend) -> None:
    one, other = advisory(backend, "transaction"), advisory(backend, "transaction", table=JOBS)
    one.enqueue(jobs(2))
    with backend.engine.connect() as connection:
        home = connection.execute(backend.dialect.key_locks.schema_of(one.table)).scalar_one()
    third = backend.bare_queue(f"{home}.jobs", lock="advisory", hold="transaction", bind=backend.new_engine())
    with one.claim():
        assert not other.claim()
        assert not third.claim()


KEYS: dict[str, tuple[sa.types.TypeEngine[Any], list[Any]]] = {
    "uuid": (sa.Uuid(), [UUID(int=number) for number in (1, 2, 3)]),
    "text": (sa.String(20), ["a", "1", 'Ä"\\']),
    "number": (sa.BigInteger(), [-1, 7, 1 << 40]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type_and_of_several_columns(backend: Backend, hold: Any, kind: str) -> None:
    type_, values = KEYS[kind]
    table = sa.Table(
        "parts",
        sa.MetaData(),
        sa.Column("a", type_, primary_key=True, autoincrement=False),
        sa.Column("b", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("owner_id", sa.Integer),
        mysql_charset="utf8mb4",
    )
    backend.make()
    table.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(table), [{"a": value, "b": b} for value in values for b in (1, 2)])
    columns = Columns(key=("a", "b"))
    one, other = (
        backend.bare_queue(
            table, lock="advisory", hold=hold, columns=columns, bind=backend.new_engine(), on_done="delete"
        )
        for _ in range(2)
    )
    with one.claim(3) as a, other.claim(10) as b:
        assert len(a) == len(b) == 3
        a.done()
        b.done()
    assert not one.claim()


# --- the recheck -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_done", ["delete", "keep"])
def test_what_was_done_before_the_lock_was_had_is_not_done_again(backend: Backend, hold: Any, on_done: Any) -> None:
    """S4's snapshot race: the lock is free because the job is done, which phase 1 could not know."""
    one, other = advisory(backend, hold), advisory(backend, hold, on_done=on_done)
    one.enqueue(jobs(5))
    with at_locking(one, lambda: take_all(other, 2)), one.claim(5) as batch:
        assert names(batch) == ["0002", "0003", "0004"]
        assert backend.advisory_locks() == held_while(hold, 3)  # S4's leak: those of the first two are free
        batch.done()
    assert batch.lost == ()


def test_others_are_tried_in_place_of_what_the_recheck_refused(backend: Backend, hold: Any) -> None:
    one, other = advisory(backend, hold), advisory(backend, hold)
    one.enqueue(jobs(8))
    find_more(one, hold)
    with at_locking(one, lambda: take_all(other, 2)) as rounds, one.claim(2) as batch:
        assert names(batch) == ["0002", "0003"]
        assert len(rounds) == 2
        assert backend.advisory_locks() == held_while(hold, 2)


def find_more(queue: Queue, hold: str) -> None:
    """As if the last claims had met others on their way."""
    hand: Any = queue._parts.hold
    hand._range._overfetch.factor = 4.0


def test_jobs_that_another_consumer_has_claimed_by_row_locks_are_left_alone(backend: Backend) -> None:
    one, other = advisory(backend, "lease"), advisory(backend, "lease", lock="rows")
    one.enqueue(jobs(4))
    held: list[Any] = []
    with at_locking(one, lambda: held.append(other.claim(2))), one.claim(4) as batch:
        assert names(held[0]) == ["0000", "0001"]
        assert names(batch) == ["0002", "0003"]
    held[0].done()
    held[0].settle()
    assert held[0].lost == ()


def test_an_owner_that_was_declared_dead_claims_under_a_new_id(backend: Backend) -> None:
    queue = still(advisory(backend, "lease"))
    queue.enqueue(jobs(2))
    before = queue.owner_id
    backend.run("UPDATE claimjobs_owners SET died = beat WHERE id = :id", id=before)
    with queue.claim() as batch:
        assert len(batch) == 2
        assert {row["owner_id"] for row in backend.rows()} == {queue.owner_id}
        assert queue.owner_id != before
        assert backend.advisory_locks() == 0
    backend.run("DELETE FROM claimjobs_owners WHERE id = :id", id=before)


def test_suspects_are_taken_in_halves(backend: Backend, hold: Any) -> None:
    queue = advisory(backend, hold)
    backend.insert("jobs", jobs(4, suspect=4))
    with queue.claim(4) as batch:
        assert len(batch) == 2


# --- how many locks, and what is left of them ------------------------------------------------------------------


def test_a_claim_of_n_holds_n_locks_at_most(backend: Backend, hold: Any) -> None:
    one, other = advisory(backend, hold), advisory(backend, hold)
    one.enqueue(jobs(40))
    find_more(one, hold)
    most = [0]

    def look(*_: Any) -> None:
        most[0] = max(most[0], backend.advisory_locks() - held_while(hold, 3))

    with other.claim(3):
        sa.event.listen(one.engine, "after_cursor_execute", look)
        with one.claim(5) as batch:
            assert len(batch) == 5
        sa.event.remove(one.engine, "after_cursor_execute", look)
    assert most == [5]


def test_nothing_is_left_behind_by_many_claims(backend: Backend, hold: Any) -> None:
    one, other = advisory(backend, hold), advisory(backend, hold)
    one.enqueue(jobs(60))
    for number in range(40):
        with pytest.raises(ZeroDivisionError), one.claim(1 + number % 5), other.claim(2):
            raise ZeroDivisionError
        with pytest.raises(BadPredicate):
            one.claim(3, where=sa.text("no_such_column = 1"))
        assert not one.claim(3, where=sa.text("d = 'nobody'"))
        with pytest.raises(Cancelled), other.claim(2):
            raise Cancelled
        backend.run("UPDATE jobs SET suspect = 0, attempts = 0, status = 'unclaimed', run_at = '2020-01-01'")
    assert backend.advisory_locks() == 0
    one.claim(10)
    one.close()
    assert backend.advisory_locks() == 0


def test_one_session_takes_no_lock_twice_where_keys_share_one(backend: Backend, hold: Any) -> None:
    queue = advisory(backend, hold, dialect=one_lock_for_all(backend.dialect))
    other = advisory(backend, hold, dialect=one_lock_for_all(backend.dialect))
    queue.enqueue(jobs(9))
    find_more(queue, hold)
    with queue.claim(2) as batch:
        assert names(batch) == ["0000"]
        if hold == "transaction":
            assert not other.claim(2)
        batch.done()
    assert backend.advisory_locks() == 0
    with other.claim(2) as batch:
        assert names(batch) == ["0001"]


def one_lock_for_all(dialect: Dialect) -> Dialect:
    class OneLock(type(dialect.key_locks)):  # type: ignore[misc]
        def lock_of(self, table: str, key: str) -> Any:
            return super().lock_of(table, "1")

    class WithOneLock(type(dialect)):  # type: ignore[misc]
        key_locks = OneLock()

    return WithOneLock()


def test_the_locks_of_several_queues_in_one_database_are_apart(backend: Backend, hold: Any) -> None:
    """S4: rows of two tables have the same ids."""
    queues = [backend.queue(table, lock="advisory", hold=hold) for table in ("jobs", "mails")]
    for queue in queues:
        queue.enqueue(jobs(3))
    with queues[0].claim() as a, queues[1].claim() as b:
        assert len(a) == len(b) == 3
        assert [job.id for job in a.jobs] == [job.id for job in b.jobs]


def test_a_deadlock_leaves_no_lock(backend: Backend) -> None:
    queue = advisory(backend, "lease")
    queue.enqueue(jobs(40))
    found: list[str] = []
    with stranger(backend) as connection:
        # The heavier one lives: whoever has written more, or looks for deadlocks later.
        connection.execute(sa.update(JOBS).where(JOBS.c.id > 1).values(e="theirs"))
        claimer = threading.Thread(target=lambda: found.extend(names(queue.claim(2))))
        claimer.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the claim meets the stranger")
        connection.execute(sa.update(JOBS).where(JOBS.c.id == 1).values(e="theirs"))
        backend.wait_for(lambda: queue.report.transients["deadlock"], "the deadlock is seen")
    claimer.join(120)
    assert found == ["0000", "0001"]
    assert backend.advisory_locks() == 0


def test_a_handler_that_closes_the_connection_gives_no_lock_away(backend: Backend) -> None:
    """In the pool the session would keep them, for whoever has it next."""
    queue = advisory(backend, "transaction")
    queue.enqueue(jobs(3))
    batch = queue.claim()
    batch.connection.close()
    backend.wait_for(lambda: backend.advisory_locks() == 0, "its locks are free")
    with pytest.raises(NoOpenTransaction, match="its handler committed, rolled back or closed it"):
        batch.settle()
    with queue.claim() as again:
        assert len(again) == 3
        again.done()
    assert queue.stats().left == 0


@contextmanager
def stranger(backend: Backend) -> Iterator[sa.Connection]:
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        if backend.family == "postgres":
            connection.execute(sa.text("SET deadlock_timeout = '1min'"))
        yield connection
        connection.rollback()


def test_a_session_that_is_lost_in_a_claim_takes_its_locks_with_it(backend: Backend, hold: Any) -> None:
    queue = advisory(backend, hold)
    queue.enqueue(jobs(3))
    queue.claim(1).settle()
    end = lambda: end_claimer(backend, queue)  # noqa: E731
    with at_locking(queue, end, "after_cursor_execute"), queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        assert queue.report.transients["connection lost"]
        backend.wait_for(lambda: backend.advisory_locks() == held_while(hold, 2), "the old session's locks are free")
        batch.done()
    assert batch.lost == ()
    assert backend.advisory_locks() == 0


def end_claimer(backend: Backend, queue: Queue) -> None:
    """End the session that claims, as an administrator would."""
    hand = queue._parts.hold
    connector: Any = hand._busy[0] if isinstance(hand, TransactionHold) else hand._connector
    driver = connector._connection.connection.driver_connection
    session = driver.info.backend_pid if backend.family == "postgres" else driver.thread_id()
    with backend.engine.connect() as connection:
        connection.execute(backend.dialect.sessions.end_session(session))


def test_a_session_that_is_ended_frees_its_jobs(backend: Backend) -> None:
    one, other = advisory(backend, "transaction"), advisory(backend, "transaction")
    one.enqueue(jobs(2))
    batch = one.claim()
    end_claimer(backend, one)
    backend.wait_for(lambda: backend.advisory_locks() == 0, "its locks are free")
    with other.claim() as again:
        assert names(again) == ["0000", "0001"]
        again.done()
    batch.done()
    with pytest.raises(BatchRolledBack, match="connection lost"):
        batch.settle()


def test_an_error_in_letting_go_ends_the_session_and_with_it_the_locks(backend: Backend, hold: Any) -> None:
    queue = advisory(backend, hold)
    queue.enqueue(jobs(2))

    def fail(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "pg_advisory_unlock" in statement or "release_lock" in statement:
            raise sa.exc.OperationalError(statement, {}, Exception("no"))

    sa.event.listen(queue.engine, "before_cursor_execute", fail)
    take_all(queue, 2)
    sa.event.remove(queue.engine, "before_cursor_execute", fail)
    backend.wait_for(lambda: backend.advisory_locks() == 0, "its locks are free")
    queue.enqueue(jobs(1))
    take_all(queue, 1)


# --- where there can be none -------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
def test_where_sessions_are_not_ours_a_claim_says_so(backend: Backend, hold: Any, declared: bool) -> None:
    if declared:
        queue = advisory(backend, hold, liveness=Liveness(session_lock=False))
    else:
        queue = advisory(backend, hold, dialect=not_ours(backend.dialect))
    queue.enqueue(jobs(1))
    with pytest.raises(SessionsNotOurs, match="lock='rows'"):
        queue.claim()
    assert backend.rows()[0]["status"] == "unclaimed"


def not_ours(dialect: Dialect) -> Dialect:
    class Shared(type(dialect.sessions)):  # type: ignore[misc]
        def is_as_greeted(self, connection: sa.Connection) -> bool:
            return False

    class Pooled(type(dialect)):  # type: ignore[misc]
        sessions = Shared()

    return Pooled()


def test_a_lock_of_another_kind_is_refused(backend: Backend) -> None:
    with pytest.raises(ValueError, match="'rows', 'advisory'"):
        backend.bare_queue(lock="table")

"""Claims by advisory locks: the same jobs in one hand each, and no lock left behind, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs import Columns, Queue
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.dialects import Dialect
from claimjobs.errors import BadArgument, BadPredicate, BatchRolledBack, NoOpenTransaction, SessionsShared
from claimjobs.lease.transaction_hold import TransactionHold
from claimjobs.signals import Cancelled
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names

pytestmark = pytest.mark.one_server("contrib: the rest of the suites runs it on every database")

JOBS = article_table()
TRY = ("pg_try_advisory_lock(wanted", "get_lock(wanted")
"""An owner's own lock comes from no list."""


def advisory(backend: Backend, **options: Any) -> Queue:
    return backend.queue(**{"locking": AdvisoryLocks(), "hold": "transaction", "bind": backend.new_engine(), **options})


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


def test_a_claim_takes_jobs_in_order_and_they_are_done(backend: Backend) -> None:
    queue = advisory(backend)
    queue.enqueue(jobs(5))
    done: list[str] = []
    for batch in queue.batches(2, drain=True):
        with batch:
            done += [job.d for job in batch]
    assert done == ["0000", "0001", "0002", "0003", "0004"]
    assert backend.rows() == []
    assert queue.report.done == 5


@pytest.mark.parametrize("wrote", [True, False])
@pytest.mark.parametrize("on_done", ["keep", "delete"])
def test_a_job_that_was_cancelled_or_dropped_meanwhile_is_lost(backend: Backend, on_done: Any, *, wrote: bool) -> None:
    """No row is locked, so nothing keeps others from writing it."""
    worker, operator = advisory(backend, on_done=on_done), advisory(backend)
    worker.enqueue(jobs(3))
    with worker.claim(3) as batch:
        first, second, third = (job.key for job in batch.jobs)
        if wrote:
            assert batch.connection.scalar(sa.select(sa.func.count()).select_from(JOBS)) == 3
        assert set(operator.cancel([first, second], "gone")) == {first, second}
        assert operator.jobs.drop([second]) == 1
        batch.done()
    assert [job.key for job in batch.lost] == [first, second]
    assert (worker.report.done, worker.report.lost) == (1, 2)
    states = {row["id"]: row["status"] for row in backend.rows()}
    assert states == {first: "dead", **({third: "done"} if on_done == "keep" else {})}


def test_two_consumers_share_no_job_and_find_the_next_ones(backend: Backend) -> None:
    one, other = advisory(backend), advisory(backend)
    one.enqueue(jobs(6))
    with one.claim(2) as a, other.claim(2) as b, one.claim(2) as c:
        assert [names(a), names(b), names(c)] == [["0000", "0001"], ["0002", "0003"], ["0004", "0005"]]
        assert backend.advisory_locks() == 6
        assert not other.claim()
    assert backend.advisory_locks() == 0


def test_a_claim_locks_no_row_and_writes_none(backend: Backend) -> None:
    queue = advisory(backend)
    queue.enqueue(jobs(1))
    with queue.claim():
        assert backend.locked() == 0
        [row] = backend.rows()
        assert (row["status"], row["owner_id"]) == ("unclaimed", None)


def test_the_locks_are_let_go_of_after_the_commit(backend: Backend) -> None:
    """Whoever has the lock next must see what was written."""
    queue = advisory(backend)
    queue.enqueue(jobs(3))
    queue.claim(1).settle()
    with counted(queue.engine) as sent:
        take_all(queue, 3)
    kinds = [statement.split()[0] if "unlock" not in statement else "free" for statement in sent]
    kinds = ["free" if "release_lock" in sent[place] else kind for place, kind in enumerate(kinds)]
    assert kinds.count("free") == 1
    assert "COMMIT" in kinds[: kinds.index("free")]


def test_every_job_is_done_exactly_once(backend: Backend) -> None:
    queues = [advisory(backend) for _ in range(6)]
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
    one, other = advisory(backend), advisory(backend)
    one.enqueue(jobs(3))
    with one.claim(3) as batch:
        assert [len(other.claim(3)) for _ in range(20)] == [0] * 20
        batch.done()
    assert backend.rows() == []


def test_two_descriptions_of_a_table_share_its_locks(backend: Backend) -> None:
    one, other = advisory(backend), advisory(backend, table=JOBS)
    one.enqueue(jobs(2))
    with backend.engine.connect() as connection:
        home = backend.dialect.table_rules.locate(connection, one.table).schema
    third = backend.bare_queue(f"{home}.jobs", locking=AdvisoryLocks(), hold="transaction", bind=backend.new_engine())
    with one.claim():
        assert not other.claim()
        assert not third.claim()


KEYS: dict[str, tuple[sa.types.TypeEngine[Any], list[Any]]] = {
    "uuid": (sa.Uuid(), [UUID(int=number) for number in (1, 2, 3)]),
    "text": (sa.String(20), ["a", "1", 'Ä"\\']),
    "number": (sa.BigInteger(), [-1, 7, 1 << 40]),
    "bytes": (
        sa.LargeBinary().with_variant(mysql.VARBINARY(60), "mysql", "mariadb"),
        [b"with a beginning that is the same for all: " + bytes([n]) for n in (0, 39, 255)],
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type_and_of_several_columns(backend: Backend, kind: str) -> None:
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
            table,
            locking=AdvisoryLocks(),
            hold="transaction",
            columns=columns,
            bind=backend.new_engine(),
            on_done="delete",
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
def test_what_was_done_before_the_lock_was_had_is_not_done_again(backend: Backend, on_done: Any) -> None:
    """S4's snapshot race: the lock is free because the job is done, which phase 1 could not know."""
    one, other = advisory(backend), advisory(backend, on_done=on_done)
    one.enqueue(jobs(5))
    with at_locking(one, lambda: take_all(other, 2)), one.claim(5) as batch:
        assert names(batch) == ["0002", "0003", "0004"]
        assert backend.advisory_locks() == 3  # S4's leak: those of the first two are free
        batch.done()
    assert batch.lost == ()


def test_others_are_tried_in_place_of_what_the_recheck_refused(backend: Backend) -> None:
    one, other = advisory(backend), advisory(backend)
    one.enqueue(jobs(8))
    find_more(one)
    with at_locking(one, lambda: take_all(other, 2)) as rounds, one.claim(2) as batch:
        assert names(batch) == ["0002", "0003"]
        assert len(rounds) == 2
        assert backend.advisory_locks() == 2


def find_more(queue: Queue) -> None:
    """As if the last claims had met others on their way."""
    hand: Any = queue._consumer.hold
    hand._range._overfetch.factor = 4.0


def test_suspects_are_taken_in_halves(backend: Backend) -> None:
    queue = advisory(backend)
    backend.insert("jobs", jobs(4, suspect=4))
    with queue.claim(4) as batch:
        assert len(batch) == 2


def test_jobs_whose_batch_failed_before_the_lock_was_had_are_left_to_the_next_claim(backend: Backend) -> None:
    queue = advisory(backend)
    backend.insert("jobs", jobs(4))
    with (
        at_locking(queue, lambda: backend.run("UPDATE jobs SET suspect = 3 WHERE d < '0003'")),
        queue.claim(4) as fresh,
    ):
        assert names(fresh) == ["0003"]
        fresh.done()
    with queue.claim(4) as batch:
        assert names(batch) == ["0000"]
    assert backend.advisory_locks() == 0


# --- how many locks, and what is left of them ------------------------------------------------------------------


def test_a_claim_of_n_holds_n_locks_at_most(backend: Backend) -> None:
    one, other = advisory(backend), advisory(backend)
    one.enqueue(jobs(40))
    find_more(one)
    most = [0]

    def look(*_: Any) -> None:
        most[0] = max(most[0], backend.advisory_locks() - 3)

    with other.claim(3):
        sa.event.listen(one.engine, "after_cursor_execute", look)
        with one.claim(5) as batch:
            assert len(batch) == 5
        sa.event.remove(one.engine, "after_cursor_execute", look)
    assert most == [5]


def test_nothing_is_left_behind_by_many_claims(backend: Backend) -> None:
    one, other = advisory(backend), advisory(backend)
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


def test_one_session_takes_no_lock_twice_where_keys_share_one(backend: Backend) -> None:
    queue = advisory(backend, dialect=one_lock_for_all(backend.dialect))
    other = advisory(backend, dialect=one_lock_for_all(backend.dialect))
    queue.enqueue(jobs(9))
    find_more(queue)
    with queue.claim(2) as batch:
        assert names(batch) == ["0000"]
        assert not other.claim(2)
        batch.done()
    assert backend.advisory_locks() == 0
    with other.claim(2) as batch:
        assert names(batch) == ["0001"]


def one_lock_for_all(dialect: Dialect) -> Dialect:
    class OneLock(type(dialect.sessions)):  # type: ignore[misc]
        def key_lock(self, table: str, key: str) -> Any:
            return super().key_lock(table, "1")

    class WithOneLock(type(dialect)):  # type: ignore[misc]
        sessions = OneLock()

    return WithOneLock()


def test_the_locks_of_several_queues_in_one_database_are_apart(backend: Backend) -> None:
    """S4: rows of two tables have the same ids."""
    queues = [backend.queue(table, locking=AdvisoryLocks(), hold="transaction") for table in ("jobs", "mails")]
    for queue in queues:
        queue.enqueue(jobs(3))
    with queues[0].claim() as a, queues[1].claim() as b:
        assert len(a) == len(b) == 3
        assert [job.id for job in a.jobs] == [job.id for job in b.jobs]


def test_a_handler_that_closes_the_connection_gives_no_lock_away(backend: Backend) -> None:
    """In the pool the session would keep them, for whoever has it next."""
    queue = advisory(backend)
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


def test_a_session_that_is_lost_in_a_claim_takes_its_locks_with_it(backend: Backend) -> None:
    queue = advisory(backend)
    queue.enqueue(jobs(3))
    queue.claim(1).settle()
    end = lambda: end_claimer(backend, queue)  # noqa: E731
    with at_locking(queue, end, "after_cursor_execute"), queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        assert queue.report.transients["connection lost"]
        backend.wait_for(lambda: backend.advisory_locks() == 2, "the old session's locks are free")
        batch.done()
    assert batch.lost == ()
    assert backend.advisory_locks() == 0


def end_claimer(backend: Backend, queue: Queue) -> None:
    """End the session that claims, as an administrator would."""
    hold = queue._consumer.hold
    assert isinstance(hold, TransactionHold)
    connector: Any = hold._busy[0]
    driver = connector._connection.connection.driver_connection
    session = driver.info.backend_pid if backend.family == "postgres" else driver.thread_id()
    with backend.engine.connect() as connection:
        connection.execute(backend.dialect.sessions.end_session(session))


def test_a_session_that_is_ended_frees_its_jobs(backend: Backend) -> None:
    one, other = advisory(backend), advisory(backend)
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


def test_an_error_in_letting_go_ends_the_session_and_with_it_the_locks(backend: Backend) -> None:
    queue = advisory(backend)
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


def test_where_sessions_may_be_shared_a_claim_says_so(backend: Backend) -> None:
    queue = advisory(backend, dialect=not_ours(backend.dialect))
    queue.enqueue(jobs(1))
    with pytest.raises(SessionsShared, match="behind_pooler=True"):
        queue.claim()
    trusting = advisory(backend, dialect=not_ours(backend.dialect), locking=AdvisoryLocks(behind_pooler=True))
    with trusting.claim() as batch:
        assert len(batch) == 1
    assert backend.rows()[0]["status"] == "unclaimed"


@pytest.mark.parametrize("how", ["replace", "postpone", "again"])
def test_an_event_for_a_job_in_hand_would_be_lost_so_it_is_refused(backend: Backend, how: Any) -> None:
    with pytest.raises(BadArgument, match="AdvisoryLocks takes none: leave out"):
        advisory(backend).enqueue(jobs(1), unique="d", on_duplicate=how)


def not_ours(dialect: Dialect) -> Dialect:
    class Shared(type(dialect.sessions)):  # type: ignore[misc]
        def is_as_greeted(self, connection: sa.Connection) -> bool:
            return False

    class Pooled(type(dialect)):  # type: ignore[misc]
        sessions = Shared()

    return Pooled()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hold": "lease"}, "locking=AdvisoryLocks needs hold='transaction'"),
        ({"claims": "batches", "hold": "lease"}, "locking=AdvisoryLocks needs hold='transaction'"),
        ({"side_car": True, "hold": "lease"}, "locking is not for a side-car"),
        ({"locking": AdvisoryLocks}, "give a Locking, such as AdvisoryLocks"),
    ],
    ids=str,
)
def test_what_does_not_go_with_advisory_locks_is_refused(anywhere: Backend, options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        advisory(anywhere, **options)


def test_the_parameter_that_was_dropped_names_what_replaces_it(anywhere: Backend) -> None:
    with pytest.raises(TypeError, match=r"locking=AdvisoryLocks\(\) of claimjobs.contrib.advisory_locks"):
        Queue(anywhere.engine, lock="advisory")  # type: ignore[arg-type]

"""An enqueue wakes idle owners when its transaction has been committed, and never fails for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs import side_car_tables
from claimjobs.lease.sleeper import WakeReason
from claimjobs.options import Liveness
from claimjobs.table.create import make
from tests.backends import Backend, poll, wait_for
from tests.conformance.jobs import counted, jobs, statements_with
from tests.conformance.owners import JOBS, await_beat, hold_of, session_of
from tests.conformance.sleepers import PATIENT, Consumer

QUICK = Liveness(lease=2.0)

pytestmark = pytest.mark.usefixtures("every_notifier_ends")


# --- who is woken ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_when_called")
def test_an_enqueue_wakes_a_sleeper(backend: Backend) -> None:
    those = ("one", "two", "three")
    with Consumer(backend) as consumer:
        for number, name in enumerate(those, 1):
            consumer.falls_asleep()
            backend.queue().enqueue({"d": name, "e": ""})
            consumer.does(*those[:number])


@pytest.mark.usefixtures("only_when_called")
def test_one_row_does_not_wake_them_all(backend: Backend) -> None:
    consumers = [Consumer(backend) for _ in range(5)]
    with all_of(consumers):
        for each in consumers:
            each.falls_asleep()
        claims = [each.queue.report.claims for each in consumers]
        backend.queue().enqueue(jobs(1))
        backend.wait_for(lambda: any(each.done for each in consumers), "it is done")
        backend.wait_for(lambda: all(each.is_asleep() for each in consumers), "all sleep")
        woken = [each for each, before in zip(consumers, claims, strict=True) if each.queue.report.claims > before]
        assert 1 <= len(woken) <= 2
        backend.queue().enqueue(jobs(1_000))
        backend.wait_for(lambda: sum(len(each.done) for each in consumers) == 1_001, "all are done")
        backend.wait_for(
            lambda: all(each.queue.report.claims > before for each, before in zip(consumers, claims, strict=True)),
            "all were woken for ten batches",
        )


@contextmanager
def all_of(consumers: list[Consumer]) -> Iterator[None]:
    for each in consumers:
        each.__enter__()
    try:
        yield
    finally:
        for each in consumers:
            each.__exit__()


@pytest.mark.usefixtures("only_when_called")
def test_a_side_car_is_slept_beside_as_well(backend: Backend) -> None:
    table = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("d", sa.Text))
    table.create(backend.engine)
    make(backend.engine, side_car_tables(backend.engine, table))
    queue = backend.bare_queue(table, side_car=True, liveness=PATIENT)
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
        backend.bare_queue(table, side_car=True).enqueue({"d": "one"})
        consumer.does("one")


@pytest.mark.usefixtures("only_when_called")
def test_a_predicate_that_changes_is_asked_again_when_called(backend: Backend) -> None:
    letters = iter("xxyyyyyyyyyyyy")
    queue = backend.queue(where=lambda: JOBS.c.d == next(letters, "y"), liveness=PATIENT)
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
        backend.queue().enqueue({"d": "y", "e": ""})
        consumer.does("y")


# --- when --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_callers_transaction_calls_when_it_is_committed(backend: Backend, kind: str) -> None:
    """Not before; and not at all when it is rolled back."""
    producer = backend.queue()
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        looks = consumer.queue.report.empty_claims
        with lent(backend.engine, kind) as connection:
            producer.enqueue(jobs(3), connection)
            connection.rollback()
            producer.enqueue({"d": "kept", "e": ""}, connection)
            assert consumer.queue.report.empty_claims == looks
            assert consumer.is_asleep()
            connection.commit()
        consumer.does("kept")
        consumer.falls_asleep()
        # Two that found nothing, with the job's settle and after it: it was not called for what was rolled back.
        assert consumer.queue.report.empty_claims == looks + 2


@contextmanager
def lent(engine: sa.Engine, kind: str) -> Iterator[Any]:
    if kind == "session":
        with Session(engine) as session:
            yield session
    else:
        with engine.connect() as connection:
            yield connection


@pytest.mark.usefixtures("only_when_called")
def test_nobody_is_interrupted_before_the_commit_is_over(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    if not backend.dialect.interrupts:
        pytest.skip(f"{backend.name} lacks calls that interrupt: its calls are part of the transaction")
    engine, woken = backend.new_engine(), list[bool]()
    producer, commit = backend.queue(bind=engine), engine.dialect.do_commit
    with Consumer(backend) as consumer:
        consumer.falls_asleep()

        def slow(line: Any) -> None:
            with contextlib.suppress(TimeoutError):
                poll(lambda: not consumer.is_asleep(), 1.0)
            woken.append(not consumer.is_asleep())
            commit(line)

        with engine.connect() as connection:
            producer.enqueue(jobs(1), connection)
            monkeypatch.setattr(engine.dialect, "do_commit", slow)
            connection.commit()
        consumer.does("0000")
    assert woken[0] is False


def test_a_call_that_comes_late_interrupts_nothing(backend: Backend) -> None:
    """Whoever was asleep a moment ago may be claiming by now."""
    if not backend.dialect.interrupts:
        pytest.skip(f"{backend.name} lacks calls that interrupt: its calls are part of the transaction")
    queue, answers = backend.queue(liveness=PATIENT), list[Any]()
    hand, lock = hold_of(queue), sa.literal("claimjobs test")
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
    session = session_of(backend, queue.owner_id)
    assert session is not None
    working = threading.Thread(
        target=lambda: answers.append(
            hand._connector.transaction(lambda c: c.scalar(sa.select(sa.func.get_lock(lock, 20))))
        )
    )
    with backend.engine.connect() as other:
        other.execute(sa.select(sa.func.get_lock(lock, 0)))
        working.start()
        wait_for(lambda: consumer.runs("get_lock("), "it is in the middle of a statement")
        with contextlib.suppress(sa.exc.DBAPIError):
            other.execute(backend.dialect.sessions.interrupt(session))
        other.execute(sa.select(sa.func.release_lock(lock)))
        working.join(120)
    assert answers == [1]
    assert not queue.report.transients


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("moment", ["before it falls asleep", "before it looks once more"])
def test_what_is_enqueued_while_it_falls_asleep_is_found(
    backend: Backend, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer saw nobody asleep, or called somebody who did not listen yet."""
    producer, queue = backend.queue(), backend.queue(liveness=PATIENT)
    owner, rows = hold_of(queue).owner.row, jobs(1)
    mark_asleep = owner.mark_asleep

    def meanwhile(connection: sa.Connection) -> bool:
        if moment == "before it falls asleep" and rows:
            producer.enqueue(rows.pop())
        marked = mark_asleep(connection)
        if rows:
            producer.enqueue(rows.pop())
        return marked

    monkeypatch.setattr(owner, "mark_asleep", meanwhile)
    with Consumer(backend, queue) as consumer:
        consumer.does("0000")


def test_a_call_just_before_it_waits_is_not_lost_for_long(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is heard, or the next look is soon."""
    producer, queue = backend.queue(), backend.queue(liveness=PATIENT)
    sleeper, rows = hold_of(queue).owner.sleeper, jobs(1)
    check = sleeper._check

    def looks(*given: Any, **options: Any) -> WakeReason | None:
        why = check(*given, **options)
        if why is None and rows:
            producer.enqueue(rows.pop())
        return why

    monkeypatch.setattr(sleeper, "_check", looks)
    with Consumer(backend, queue) as consumer:
        consumer.does("0000")


# --- what a call does to the enqueue that makes it ---------------------------------------------------------


def test_a_producer_that_may_not_look_for_sleepers_enqueues_all_the_same(backend: Backend) -> None:
    """Also into a transaction that holds more than that."""
    producer = backend.queue()
    producer._access.enqueuer.notifier._wake_unless_trigger = sa.select(sa.column("id")).select_from(sa.text("nowhere"))
    with Consumer(backend, backend.queue(), poll=0.1) as consumer:
        consumer.falls_asleep()
        with backend.engine.begin() as connection:
            producer.enqueue(jobs(1), connection)
            producer.enqueue({"d": "two", "e": ""}, connection)
        backend.wait_for(lambda: sorted(consumer.done) == ["0000", "two"], "they are found by a look")


def test_a_call_that_fails_after_the_commit_fails_no_enqueue(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    if not backend.dialect.interrupts:
        pytest.skip(f"{backend.name} lacks calls that interrupt: its calls are part of the transaction")
    producer = backend.queue()
    with Consumer(backend, backend.queue(), poll=0.1) as consumer:
        consumer.falls_asleep()
        monkeypatch.setattr(type(backend.dialect.sessions), "interrupt", _breaks)
        assert producer.enqueue(jobs(1)) == 1
        consumer.does("0000")


def _breaks(_dialect: Any, session: int) -> sa.Executable:
    return sa.text(f"SELECT {session:d} FROM nowhere")


def test_a_commit_in_two_phases_calls_nobody(anywhere: Backend) -> None:
    """The server would refuse to prepare it."""
    engine = anywhere.new_engine()
    producer = anywhere.queue(bind=engine)
    producer.enqueue(jobs(1))
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        with counted(engine) as sent:
            assert producer.enqueue(jobs(1), connection) == 1
        transaction.rollback()
    assert not statements_with(sent, "claimjobs_owners")


def test_an_owner_can_beat_while_a_serializable_transaction_has_enqueued(backend: Backend) -> None:
    """Its reads may lock what they read, until it ends."""
    producer, queue = backend.queue(), backend.queue(liveness=QUICK)
    with backend.engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        producer.enqueue(jobs(1), connection)
        for _ in range(2):
            await_beat(backend, queue.owner_id)
        connection.rollback()

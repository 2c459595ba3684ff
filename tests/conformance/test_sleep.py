"""An idle owner sleeps until an enqueue calls it; where nobody can call it, it looks."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs import Queue, side_car_tables
from claimjobs.lease.sleeper import WakeReason
from claimjobs.options import HoldKind, Liveness
from claimjobs.queue.idle_backoff import IdleBackoff
from claimjobs.table.create import make
from tests.backends import Backend, poll, wait_for
from tests.conformance.jobs import counted, jobs
from tests.conformance.owners import (
    JOBS,
    await_beat,
    declare_dead,
    end_session,
    hold_of,
    owner_row,
    session_of,
    states,
    stranger_holds,
)
from tests.conformance.sleepers import NEVER, PATIENT, Consumer
from tests.conformance.test_liveness import consumer
from tests.docs.pooler import pooler

QUICK = Liveness(lease=2.0)
LEASE_ONLY = Liveness(session_lock=False)


pytestmark = pytest.mark.usefixtures("_others_look_as_ever")


@pytest.fixture
def _others_look_as_ever() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name == "claimjobs notifier"]


# --- called ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_when_called")
def test_an_enqueue_wakes_a_sleeper(backend: Backend) -> None:
    those = ("one", "two", "three")
    with Consumer(backend) as consumer:
        for number, name in enumerate(those, 1):
            consumer.falls_asleep()
            backend.queue().enqueue({"d": name, "e": ""})
            consumer.does(*those[:number])


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
            other.execute(backend.dialect.waking.interrupt(session))
        other.execute(sa.select(sa.func.release_lock(lock)))
        working.join(20)
    assert answers == [1]
    assert not queue.report.transients


@contextmanager
def lent(engine: sa.Engine, kind: str) -> Iterator[Any]:
    if kind == "session":
        with Session(engine) as session:
            yield session
    else:
        with engine.connect() as connection:
            yield connection


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("moment", ["before it falls asleep", "before it looks once more"])
def test_what_is_enqueued_while_it_falls_asleep_is_found(
    backend: Backend, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer saw nobody asleep, or called somebody who did not listen yet."""
    producer, queue = backend.queue(), backend.queue(liveness=PATIENT)
    owner, rows = hold_of(queue).owner, jobs(1)
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
    idle_wait, rows = hold_of(queue).sleeper._idle_wait, jobs(1)
    check = idle_wait._check

    def looks(*given: Any, **options: Any) -> WakeReason | None:
        why = check(*given, **options)
        if why is None and rows:
            producer.enqueue(rows.pop())
        return why

    monkeypatch.setattr(idle_wait, "_check", looks)
    with Consumer(backend, queue) as consumer:
        consumer.does("0000")


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


# --- what it costs -----------------------------------------------------------------------------------------


def test_who_always_finds_work_writes_nothing_about_sleep(anywhere: Backend) -> None:
    engine = anywhere.new_engine()
    queue = anywhere.queue(bind=engine, liveness=PATIENT)
    queue.enqueue(jobs(20))
    assert queue.owner_id
    with counted(engine) as sent:
        for batch in queue.batches(2):
            with batch:
                batch.done()
            if not anywhere.rows():
                break
    assert not [statement for statement in sent if "asleep=coalesce" in statement or "awake" in statement]


def test_while_nobody_sleeps_an_enqueue_only_asks(backend: Backend) -> None:
    """One statement, which calls nobody."""
    engine = backend.new_engine()
    busy, producer = backend.queue(), backend.queue(bind=engine)
    assert busy.owner_id
    producer.enqueue(jobs(1))
    with counted(engine) as sent:
        producer.enqueue(jobs(500))
    assert len([statement for statement in sent if "claimjobs_owners" in statement]) == 1
    assert not [statement for statement in sent if statement.startswith(("KILL", "NOTIFY"))]
    with counted(engine) as sent:
        producer.enqueue([])
    assert not [statement for statement in sent if "claimjobs_owners" in statement]


def test_a_sleeper_sends_little(backend: Backend) -> None:
    """A look a cycle and no transaction around it; every other cycle a sign of life."""
    engine = backend.new_engine()
    with Consumer(backend, backend.queue(bind=engine, liveness=QUICK)) as consumer:
        consumer.falls_asleep()
        with counted(engine) as sent:
            backend.wait_for(lambda: len(of(sent, "awake")) >= 8, "it has glanced about eight times", 20)
        cycles = len(of(sent, "awake"))
        assert 1 <= len(of(sent, "UPDATE")) <= cycles / 2 + 1
        assert len(of(sent, "sleep(")) <= cycles + 1
        assert len(sent) == cycles + len(of(sent, "UPDATE")) + len(of(sent, "sleep("))


def of(sent: list[str], word: str) -> list[str]:
    return [statement for statement in sent if word in statement]


# --- woken for something else --------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("how", ["stop", "drain"])
def test_stopping_ends_a_sleep(backend: Backend, how: str) -> None:
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        getattr(consumer.queue, how)()
        backend.wait_for(lambda: consumer.is_over, "the loop ends", 5)
        backend.wait_for(lambda: not consumer.is_asleep(), "nobody sleeps any more", 5)
    closing = threading.Thread(target=consumer.queue.close)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()


@pytest.mark.usefixtures("only_when_called")
def test_a_queue_that_is_closed_while_it_sleeps_does_not_wait(backend: Backend) -> None:
    consumer = Consumer(backend)
    with consumer:
        consumer.falls_asleep()
        hand = hold_of(consumer.queue)
        consumer.queue._control._stopped = True  # whoever waits for the call is not told
        closing = threading.Thread(target=hand.close)
        closing.start()
        closing.join(5)
        assert not closing.is_alive()


def leads(backend: Backend) -> Queue:
    """A queue whose heart has settled: it beats after 12 s at the earliest."""
    queue = backend.queue(liveness=PATIENT)
    heart = hold_of(queue).heartbeat
    backend.wait_for(lambda: heart._leads, "it leads")
    return queue


def test_a_loop_that_waits_no_longer_is_called_no_longer(backend: Backend) -> None:
    queue = leads(backend)
    assert list(queue.batches(poll=NEVER, idle=0.3)) == []
    backend.wait_for(lambda: owner_row(backend, queue.owner_id)["asleep"] is None, "others know that it is up")


def test_a_loop_that_drains_does_not_sleep(backend: Backend) -> None:
    """Not even while all that is left is locked by somebody."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(2))
    with counted(engine) as sent, Consumer(backend, queue, size=1, drain=True, poll=0.1) as consumer:
        with stranger_holds(backend, "0001"):
            consumer.does("0000")
            backend.wait_for(lambda: queue.report.empty_claims > 5, "it looks again and again")
        backend.wait_for(lambda: consumer.is_over, "it ends")
    assert consumer.done == ["0000", "0001"]
    assert not of(sent, "awake")


def test_who_was_called_for_nothing_looks_before_it_sleeps_again(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lying down and getting up are written: after short sleeps that costs more than to look."""
    monkeypatch.setattr(IdleBackoff, "may_sleep", property(lambda _: False))
    engine = anywhere.new_engine()
    queue = anywhere.queue(bind=engine)
    with counted(engine) as sent:
        assert list(queue.batches(poll=0.05, idle=0.5)) == []
    assert not of(sent, "awake")


@pytest.mark.usefixtures("only_when_called")
def test_another_thread_of_the_queue_need_not_wait(backend: Backend) -> None:
    """Neither to claim nor to settle; and who sleeps is called again after that."""
    queue = backend.queue(liveness=PATIENT)
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
        backend.run("INSERT INTO jobs (d, e) VALUES ('plain', '')")  # by somebody who calls nobody
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(_done_by(queue)))
        other.start()
        other.join(5)
        assert found == [1]
        consumer.falls_asleep()
        backend.queue().enqueue({"d": "called", "e": ""})
        consumer.does("called")


def _done_by(queue: Queue) -> int:
    with queue.claim(1) as batch:
        batch.done()
        return len(batch)


def test_who_is_at_work_is_not_called(backend: Backend) -> None:
    with Consumer(backend, leads(backend)) as consumer:
        consumer.falls_asleep()
        consumer.busy.clear()
        backend.queue().enqueue(jobs(1))
        consumer.does("0000")
        backend.wait_for(lambda: owner_row(backend, consumer.queue.owner_id)["asleep"] is None, "others know")
        consumer.busy.set()
        consumer.falls_asleep()
        assert owner_row(backend, consumer.queue.owner_id)["asleep"] is not None


# --- trouble -------------------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_while_it_sleeps(backend: Backend) -> None:
    queue = backend.queue(liveness=QUICK)
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
        me = queue.owner_id
        end_session(backend, me)
        backend.wait_for(lambda: session_of(backend, me) is not None, "it comes back")
        consumer.falls_asleep()
        backend.queue().enqueue(jobs(1))
        consumer.does("0000")
    assert queue.owner_id == me
    assert queue.report.transients["connection lost"] == 1


def test_declared_dead_while_it_sleeps(backend: Backend) -> None:
    queue = backend.queue(liveness=QUICK)
    with Consumer(backend, queue) as consumer:
        consumer.falls_asleep()
        before = queue.owner_id
        declare_dead(backend, before)
        backend.wait_for(lambda: queue.owner_id > before, "it has a new id")
        consumer.falls_asleep()
        backend.queue().enqueue(jobs(1))
        consumer.does("0000")
    queue.reclaim()


def test_sleepers_take_over_from_a_process_that_is_killed(database: Backend) -> None:
    """Nobody is awake who would look as often as ever; the jobs that come back call."""
    database.queue().enqueue(jobs(2))
    with consumer(database, size=2) as (process, owner_id), Consumer(database, database.queue()) as sleeper:
        sleeper.falls_asleep()
        process.kill()
        process.wait()
        wait_for(lambda: sorted(sleeper.done) == ["0000", "0001"], "they are done")
        assert owner_row(database, owner_id) is None


def test_what_an_unknown_owner_holds_is_found_by_sleepers(backend: Backend) -> None:
    with Consumer(backend, backend.queue(liveness=QUICK)) as consumer:
        consumer.falls_asleep()
        backend.run(
            "INSERT INTO jobs (d, e, status, owner_id) VALUES ('stray', '', 'claimed', :owner)",
            owner=consumer.queue.owner_id + 4_711,
        )
        consumer.does("stray")


def test_a_producer_that_may_not_look_for_sleepers_enqueues_all_the_same(backend: Backend) -> None:
    """Also into a transaction that holds more than that."""
    producer = backend.queue()
    producer._parts.enqueuer.notifier._choose = sa.select(sa.column("id")).select_from(sa.text("nowhere"))
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
        monkeypatch.setattr(type(backend.dialect.waking), "interrupt", _breaks)
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
    assert not of(sent, "claimjobs_owners")


def test_an_owner_can_beat_while_a_serializable_transaction_has_enqueued(backend: Backend) -> None:
    """Its reads may lock what they read, until it ends."""
    producer, queue = backend.queue(), backend.queue(liveness=QUICK)
    with backend.engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        producer.enqueue(jobs(1), connection)
        for _ in range(2):
            await_beat(backend, queue.owner_id)
        connection.rollback()


# --- where nobody can be called ------------------------------------------------------------------------------


@contextmanager
def direct(backend: Backend) -> Iterator[dict[str, Any]]:
    del backend
    yield {"liveness": LEASE_ONLY}


@contextmanager
def pooled(backend: Backend) -> Iterator[dict[str, Any]]:
    with pooler(backend.url) as url:
        engine = backend.new_engine_to(url)
        yield {"bind": engine}
        engine.dispose()


@pytest.mark.parametrize("hold", ["lease", "transaction"])
@pytest.mark.parametrize("way", [direct, pooled], ids=["by lease alone", "behind a pooler"])
def test_who_cannot_be_called_looks(backend: Backend, way: Callable[[Backend], Any], hold: HoldKind) -> None:
    with way(backend) as options:
        queue = backend.queue(hold=hold, **options)
        with Consumer(backend, queue, poll=0.05) as consumer:
            backend.wait_for(lambda: queue.report.empty_claims > 5, "it looks again and again")
            assert [owner.id for owner in queue.stats().owners if owner_row(backend, owner.id)["asleep"]] == []
            backend.queue().enqueue(jobs(1))
            consumer.does("0000")
        queue.close()


def test_a_sleeper_of_another_account_is_left_to_look(backend: Backend) -> None:
    """A call that is an interrupt is for the sessions of the same user only."""
    if not backend.dialect.interrupts:
        pytest.skip(f"{backend.name} lacks calls that interrupt: it notifies other accounts as well")
    backend.make()
    name = f"cj_{random.randrange(10**9)}"
    backend.run(f"CREATE USER {name} IDENTIFIED BY 'secret'")
    database = sa.make_url(backend.url).database
    try:
        backend.run(f"GRANT ALL ON {database}.* TO {name}")
        url = sa.make_url(backend.url).set(username=name, password="secret")
        engine = backend.new_engine_to(url.render_as_string(hide_password=False))
        stranger = backend.new_engine_to(url.render_as_string(hide_password=False))
        queue = backend.queue(bind=engine)
        with Consumer(backend, queue, poll=0.1) as consumer:
            consumer.falls_asleep()
            session = session_of(backend, queue.owner_id)
            Queue(backend.engine).enqueue(jobs(1))
            consumer.does("0000")
        assert session_of(backend, queue.owner_id) == session
        queue.close()
        engine.dispose()
        stranger.dispose()
    finally:
        backend.run(f"DROP USER {name}")


def test_jobs_that_come_due_are_found_without_a_call(backend: Backend) -> None:
    queue = backend.queue()
    with Consumer(backend, queue, poll=0.2) as consumer:
        consumer.falls_asleep()
        backend.run("INSERT INTO jobs (d, e) VALUES ('plain', '')")
        consumer.does("plain")
    assert states(backend) == []

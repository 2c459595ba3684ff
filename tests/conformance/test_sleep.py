"""An idle owner sleeps: what that costs, what ends a sleep; where nobody can wake it, it checks for work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.options import HoldKind, Liveness
from claimjobs.queue.batch_loop import IdleBackoff
from tests.backends import Backend, wait_for
from tests.conformance.consumer_process import consumer
from tests.conformance.jobs import counted, jobs, statements_with
from tests.conformance.owners import declare_dead, end_session, hold_of, owner_row, session_of, states, stranger_holds
from tests.conformance.sleepers import NEVER, PATIENT, Consumer
from tests.docs.pooler import pooler

QUICK = Liveness(lease=2.0)
UNHURRIED = Liveness(lease=5.0)
"""The server ends the session of an owner that is silent for a lease: on a busy machine that takes seconds."""
LEASE_ONLY = Liveness(session_lock=False)

pytestmark = pytest.mark.usefixtures("every_notifier_ends")


# --- what it costs -----------------------------------------------------------------------------------------


def test_who_always_finds_work_writes_nothing_about_sleep(anywhere: Backend) -> None:
    engine = anywhere.new_engine()
    queue = anywhere.queue(bind=engine, liveness=PATIENT)
    queue.enqueue(jobs(20))
    assert queue.owner_id
    with counted(engine, of_all_threads=True) as sent:
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
    """A look a cycle and no transaction around it; every other cycle a sign of life. The server ends the session of an
    owner that is silent for a lease, so a busy machine needs a long one."""
    engine = backend.new_engine()
    with Consumer(backend, backend.queue(bind=engine, liveness=Liveness(lease=5.0))) as consumer:
        consumer.falls_asleep()
        with counted(engine, of_all_threads=True) as sent:
            backend.wait_for(lambda: len(statements_with(sent, "awake")) >= 8, "it has glanced about eight times")
        cycles = len(statements_with(sent, "awake"))
        assert 1 <= len(statements_with(sent, "UPDATE")) <= cycles / 2 + 1
        assert len(statements_with(sent, "sleep(")) <= cycles + 1
        assert len(sent) == cycles + len(statements_with(sent, "UPDATE")) + len(statements_with(sent, "sleep("))


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.requires("table collation")
def test_a_time_limit_of_the_account_ends_no_sleep(backend: Backend) -> None:
    """A sign of life ends it, after a quarter of a lease."""
    limit = "max_statement_time = 0.1" if backend.name.startswith("mariadb") else "max_execution_time = 100"
    engine = backend.new_engine(connect_args={"init_command": f"SET SESSION {limit}"})
    with Consumer(backend, backend.queue(bind=engine, liveness=Liveness(lease=5.0))) as consumer:
        consumer.falls_asleep()
        with counted(engine, of_all_threads=True) as sent:
            backend.wait_for(
                lambda: len(statements_with(sent, "UPDATE")) >= 3, "it has shown three times that it lives"
            )
        assert len(statements_with(sent, "sleep(")) <= 8, sent
        backend.wait_for(consumer.is_asleep, "it sleeps on after its sign of life")


# --- who sleeps, and who does not --------------------------------------------------------------------------


def test_a_loop_that_drains_does_not_sleep(backend: Backend) -> None:
    """Not even while all that is left is locked by somebody."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(2))
    with counted(engine, of_all_threads=True) as sent, ExitStack() as running:
        with stranger_holds(backend, "0001"):
            consumer = running.enter_context(Consumer(backend, queue, size=1, drain=True, poll=0.1))
            consumer.does("0000")
            backend.wait_for(lambda: queue.report.empty_claims > 5, "it looks again and again")
        backend.wait_for(lambda: consumer.is_over, "it ends")
    assert consumer.done == ["0000", "0001"]
    assert not statements_with(sent, "awake")


def test_who_was_called_for_nothing_looks_before_it_sleeps_again(
    anywhere: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lying down and getting up are written: after short sleeps that costs more than to look."""
    monkeypatch.setattr(IdleBackoff, "may_sleep", property(lambda _: False))
    engine = anywhere.new_engine()
    queue = anywhere.queue(bind=engine)
    with counted(engine, of_all_threads=True) as sent:
        assert list(queue.batches(poll=0.05, idle=0.5)) == []
    assert not statements_with(sent, "awake")


def leads(backend: Backend) -> Queue:
    """A queue whose heart has settled: it beats after 12 s at the earliest."""
    queue = backend.queue(liveness=PATIENT)
    heart = hold_of(queue).owner
    backend.wait_for(lambda: heart.row.leads, "it leads")
    return queue


def test_a_loop_that_waits_no_longer_is_called_no_longer(backend: Backend) -> None:
    queue = leads(backend)
    assert list(queue.batches(poll=NEVER, idle=0.3)) == []
    backend.wait_for(lambda: owner_row(backend, queue.owner_id)["asleep"] is None, "others know that it is up")


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


# --- what ends a sleep -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("how", ["stop", "drain"])
def test_stopping_ends_a_sleep(backend: Backend, how: str) -> None:
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        getattr(consumer.queue, how)()
        backend.wait_for(lambda: consumer.is_over, "the loop ends")
        backend.wait_for(lambda: not consumer.is_asleep(), "nobody sleeps any more")
    closing = threading.Thread(target=consumer.queue.close)
    closing.start()
    closing.join(120)
    assert not closing.is_alive()


@pytest.mark.usefixtures("only_when_called")
def test_a_queue_that_is_closed_while_it_sleeps_does_not_wait(backend: Backend) -> None:
    consumer = Consumer(backend)
    with consumer:
        consumer.falls_asleep()
        hand = hold_of(consumer.queue)
        consumer.queue._control.stopped = True  # whoever waits for the call is not told
        closing = threading.Thread(target=hand.close)
        closing.start()
        closing.join(120)
        assert not closing.is_alive()


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
        other.join(120)
        assert found == [1]
        consumer.falls_asleep()
        backend.queue().enqueue({"d": "called", "e": ""})
        consumer.does("called")


def _done_by(queue: Queue) -> int:
    with queue.claim(1) as batch:
        batch.done()
        return len(batch)


def test_a_connection_that_is_lost_while_it_sleeps(backend: Backend) -> None:
    queue = backend.queue(liveness=UNHURRIED)
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


# --- sleepers find what dead and unknown owners hold -------------------------------------------------------


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


# --- where nobody can be called ----------------------------------------------------------------------------


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


@pytest.mark.parametrize("due", ["one", "other"])
@pytest.mark.pair("the condition that is checked is that of one of two loops")
def test_jobs_that_come_due_are_found_for_each_of_two_loops(backend: Backend, due: str) -> None:
    queue = backend.queue(liveness=PATIENT)
    wheres = [sa.text(f"d = '{name}'") for name in ("one", "other")]
    with ExitStack() as loops:
        one, other = (Consumer(backend, queue, where=where, poll=0.2) for where in wheres)
        loops.enter_context(one).falls_asleep()
        loops.enter_context(other)
        wait_for(lambda: other.sleeper._waiting == 2 and other.is_asleep(), "both sleep")
        backend.run(f"INSERT INTO jobs (d, e) VALUES ('{due}', '')")  # by somebody who calls nobody
        (one if due == "one" else other).does(due)
    assert states(backend) == []

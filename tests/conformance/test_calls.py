"""Who is called, and who looks for himself because nobody could hear a call."""

from __future__ import annotations

import contextlib
import threading

import pytest
import sqlalchemy as sa

from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import JOBS, hold_of
from tests.conformance.refusals import refusal, refused_after
from tests.conformance.sleepers import PATIENT, Consumer

QUICK = Liveness(lease=2.0)


@pytest.mark.usefixtures("only_when_called")
def test_all_that_a_transaction_enqueued_counts_when_consumers_are_called(backend: Backend) -> None:
    """200 rows are work for two and one row for one more: not for as many as the last row alone is."""
    consumers = [Consumer(backend, size=1) for _ in range(4)]
    with contextlib.ExitStack() as running:
        for each in consumers:
            running.enter_context(each)
        for each in consumers:
            each.falls_asleep()
            each.busy.clear()  # who was woken stays at work: each of them takes one job
        producer = backend.queue()
        with backend.engine.begin() as connection:
            producer.enqueue(jobs(300), connection)
            producer.enqueue({"d": "last", "e": ""}, connection)
        backend.wait_for(lambda: all(each.done for each in consumers), "all four were called")
        for each in consumers:
            each.queue.stop()


@pytest.mark.usefixtures("only_when_called")
def test_a_loop_whose_heart_is_stuck_looks_for_itself(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody lies down for it, so nobody calls; after a lease it does not rely on that any more."""
    monkeypatch.setattr("claimjobs.queue.batch_loop.HEARTBEAT_CHECK_SECONDS", 0.1)
    queue = backend.queue(liveness=QUICK)
    stuck, free = threading.Event(), threading.Event()

    def sticks(**_: float) -> None:
        stuck.set()
        free.wait(120)

    monkeypatch.setattr(hold_of(queue), "maintain", sticks)
    assert stuck.wait(120)
    try:
        with Consumer(backend, queue) as consumer:
            backend.wait_for(lambda: consumer.sleeper._waiting, "it waits to be called")
            backend.bare_queue(hold="transaction").enqueue(jobs(1))
            consumer.does("0000")
    finally:
        free.set()


@pytest.mark.usefixtures("only_when_called")
def test_only_consumers_of_that_table_are_called(backend: Backend) -> None:
    with Consumer(backend, backend.queue("emails", liveness=PATIENT)) as other, Consumer(backend) as consumer:
        for each in (other, consumer):
            each.falls_asleep()
        looks = other.queue.report.empty_claims
        backend.queue().enqueue(jobs(500))
        backend.wait_for(lambda: len(consumer.done) == 500, "they are done")
        backend.queue("emails").enqueue(jobs(1))
        other.does("0000")
        other.falls_asleep()
        # Two that found nothing, with the job's settle and after it: it was not called for the other table's rows.
        assert other.queue.report.empty_claims == looks + 2


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("how", ["refused", "cut off"])
def test_a_call_that_fails_in_passing_is_not_the_last(backend: Backend, how: str) -> None:
    """Its rows are committed, and found some time; those that come next call again."""
    engine = backend.new_engine()
    producer = backend.queue(bind=engine)
    producer.check()
    statement = refusal(backend, "deadlock") if how == "refused" else ENDS_ITS_SESSION[backend.family]
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        with refused_after(engine, "claimjobs_owners", statement):
            assert producer.enqueue(jobs(1)) == 1
        producer.enqueue({"d": "next", "e": ""})
        backend.wait_for(lambda: sorted(consumer.done) == ["0000", "next"], "both are done")


ENDS_ITS_SESSION = dict.fromkeys(("mysql", "mariadb"), "KILL CONNECTION_ID()") | {
    "postgres": "SELECT pg_terminate_backend(pg_backend_pid())"
}


def test_what_is_done_after_a_sleep_is_a_transaction_again(backend: Backend) -> None:
    """While it slept each statement committed itself; a claim that did so would let go of its locks in the middle."""
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        backend.queue().enqueue(jobs(1))
        consumer.does("0000")
        consumer.falls_asleep()

    def writes(connection: sa.Connection) -> None:
        connection.execute(sa.insert(JOBS), {"d": "half", "e": ""})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hold_of(consumer.queue)._connector.transaction(writes)
    assert backend.rows() == []

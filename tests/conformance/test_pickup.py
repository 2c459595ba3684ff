"""From an `enqueue` to the handler: what is sent for it, counted at the driver and on the line."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.database.connect import engine_of
from claimjobs.errors import BadRow
from servers.proxy import Proxy
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, way_of_a_claim
from tests.conformance.sleepers import PATIENT, Consumer

PREPARED = 10
"""So often a statement was sent, after which psycopg prepares no more of them."""


def words(sent: list[str]) -> list[str]:
    """The first word of each statement."""
    return [statement.split()[0] for statement in sent]


# --- the producer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 10, 500])
def test_an_enqueue_is_an_insert_its_end_and_the_question_who_sleeps(anywhere: Backend, count: int) -> None:
    """No savepoint: what is refused first is undone with the transaction."""
    engine = anywhere.new_engine()
    queue = anywhere.queue(bind=engine)
    queue.enqueue(jobs(1))
    with counted(engine) as sent:
        queue.enqueue(jobs(count))
    inserted = [] if anywhere.has("copies") and count > 100 else ["INSERT"]
    asked = [word for word in words(sent) if word != "ROLLBACK"]
    assert [word for word in asked if word != "SELECT"] == [*inserted, "COMMIT"]
    assert asked[-2:] == ["COMMIT", "SELECT"]


@pytest.mark.parametrize("rested", [False, True])
def test_round_trips_of_an_enqueue_of_one_row(backend: Backend, monkeypatch: pytest.MonkeyPatch, rested: bool) -> None:
    """Seen on the line: of a connection that rested it is asked whether it lives; the pool rolls back after it."""
    with Proxy(backend.url) as proxy, Consumer(backend) as consumer:
        queue = backend.queue(bind=engine_of(proxy.url))
        for _ in range(PREPARED):
            queue.enqueue(jobs(1))
        backend.wait_for(lambda: len(consumer.done) == PREPARED, "they are done")
        consumer.falls_asleep()
        if rested:
            monkeypatch.setattr("claimjobs.database.connect.FRESH_SECONDS", 0.0)
        before = proxy.round_trips
        queue.enqueue({"d": "last", "e": ""})
        trips = proxy.round_trips - before
        backend.wait_for(lambda: consumer.done[-1] == "last", "it was called")
        queue.engine.dispose()
    insert_ask = 2
    commit_call_rollback = 0 if backend.dialect.switches_autocommit_freely else 3
    assert trips == rested + insert_ask + commit_call_rollback


def test_a_callers_transaction_keeps_its_savepoint(backend: Backend) -> None:
    """It may hold more than these rows, and goes on after one that does not fit."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(1))
    with engine.begin() as connection, counted(engine) as sent:
        queue.enqueue({"d": "", "e": ""}, connection)
        assert words(sent)[:3] == ["SAVEPOINT", "INSERT", "RELEASE"]


# --- what it promises all the same ---------------------------------------------------------------------------


def committed(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


@pytest.mark.parametrize("level", [None, "AUTOCOMMIT", "SERIALIZABLE"])
def test_all_rows_or_none_whatever_the_engine_is_set_to(backend: Backend, level: str | None) -> None:
    engine = backend.new_engine(isolation_level=level) if level else backend.new_engine()
    queue = backend.queue(bind=engine)

    def rows() -> Any:
        yield from jobs(2)
        yield {"d": "of another shape", "e": "", "priority": 1}
        raise LookupError

    with pytest.raises(LookupError):
        queue.enqueue(rows())
    with pytest.raises(BadRow, match=r"^row 3: "):
        queue.enqueue([*jobs(2), {"d": None, "e": ""}])
    assert committed(backend) == []
    queue.enqueue({"d": "one", "e": ""})
    queue.enqueue(iter(jobs(2)))
    assert committed(backend) == ["one", "0000", "0001"]
    engine.dispose()


@pytest.mark.parametrize("of_a_list", [False, True])
def test_a_single_row_that_does_not_fit_is_told(backend: Backend, of_a_list: bool) -> None:
    queue, bad = backend.queue(), {"d": "x" * 65, "e": ""}
    rows: Any = [bad] if of_a_list else bad
    told: list[BadRow] = []
    assert queue.enqueue(rows, on_bad=told.append) == 0
    with pytest.raises(BadRow, match=r"^row 1: ") as error:
        queue.enqueue(rows)
    assert [(each.line, each.reason, each.row) for each in told] == [(1, error.value.reason, bad)]
    assert queue.enqueue({"d": "good", "e": ""}) == 1
    assert committed(backend) == ["good"]


@pytest.mark.parametrize("place", [0, 1, 4])
def test_of_a_few_rows_in_a_transaction_of_our_own_only_the_bad_one_is_left_out(backend: Backend, place: int) -> None:
    """The first chunk is undone with the transaction, the parts of it with savepoints."""
    rows = jobs(5)
    rows[place]["d"] = None
    told: list[int] = []
    more: list[Any] = [{"d": None, "e": "", "priority": 2}, {"d": "last", "e": "", "priority": 2}]
    assert backend.queue().enqueue([*rows, *more], on_bad=lambda bad: told.append(bad.line)) == 5
    assert told == [place + 1, 6]
    assert committed(backend) == [*(row["d"] for row in rows if row["d"]), "last"]


@pytest.mark.usefixtures("only_when_called")
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "REPEATABLE READ"])
def test_sleepers_are_called_whatever_the_producer_is_set_to(backend: Backend, level: str) -> None:
    engine = backend.new_engine(isolation_level=level)
    with Consumer(backend) as consumer:
        consumer.falls_asleep()
        backend.queue(bind=engine).enqueue({"d": "one", "e": ""})
        consumer.does("one")
    engine.dispose()


def test_the_question_who_sleeps_waits_for_nobody(backend: Backend) -> None:
    """Not for an owner that is giving a sign of life, whatever the producer is set to."""
    engine = backend.new_engine(isolation_level="SERIALIZABLE")
    producer, owner = backend.queue(bind=engine), backend.queue(liveness=PATIENT)
    producer.enqueue(jobs(1))
    beats = sa.text("SELECT 1 FROM claimjobs_owners WHERE id = :id FOR UPDATE").bindparams(id=owner.owner_id)
    enqueueing = threading.Thread(target=producer.enqueue, args=[jobs(1)])
    with backend.engine.begin() as other:
        other.execute(beats)
        enqueueing.start()
        enqueueing.join(120)
        assert not enqueueing.is_alive()
    engine.dispose()


def test_a_question_that_fails_after_the_commit_fails_no_enqueue(backend: Backend) -> None:
    producer = backend.queue()
    producer._access.enqueuer.notifier._wake_unless_trigger = sa.select(sa.column("id")).select_from(sa.text("nowhere"))
    assert [producer.enqueue(rows) for rows in (jobs(1), jobs(3))] == [1, 3]
    assert len(committed(backend)) == 4


# --- the sleeper ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_when_called")
def test_what_a_call_sends_until_the_job_is_in_hand(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that falls short asks how many candidates there were; what was sleeping gets up in one statement."""
    # A slow machine may take longer than that.
    monkeypatch.setattr("claimjobs.lease.sleeper.STAYS_MARKED_SECONDS", 60.0)
    engine = backend.new_engine()
    sent_before: list[list[str]] = []
    with Consumer(backend, backend.queue(bind=engine, liveness=PATIENT)) as consumer:
        consumer.falls_asleep()
        with counted(engine, of_all_threads=True) as sent:
            consumer.on_batch = lambda: sent_before.append(words(sent))
            backend.queue().enqueue(jobs(1))
            consumer.does("0000")
    claim, get_up = (
        way_of_a_claim(backend),
        ["COMMIT"] if backend.dialect.switches_autocommit_freely else ["SET", "COMMIT"],
    )
    counts = [] if claim[1:2] == ["SELECT"] else ["SELECT"]
    plans = [] if backend.dialect.sessions.forget_plans is None else ["DISCARD"]  # there may be more rows by now
    pause = ["SELECT", *plans, "COMMIT"]  # whoever wakes asks whether the queue is paused
    assert sorted(sent_before[0]) == sorted([*get_up, *pause, *claim, *counts])

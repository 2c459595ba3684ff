"""Signs of life of an owner: its heartbeat, its session lock, the progress of its batch."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import SessionsShared
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs
from tests.conformance.owners import (
    LONG_AGO,
    age,
    await_beat,
    end_session,
    hearts,
    hold_of,
    owner_row,
    session_of,
    states,
    still,
    write_owner,
)

QUICK = Liveness(lease=2.0)
PATIENT = Liveness(lease=60.0)
"""Nothing in these tests lasts so long: with it the session lock alone can have told."""
LEASE_ONLY = Liveness(session_lock=False)

pytestmark = pytest.mark.usefixtures("no_heart_outlives_its_test")


# --- an owner's row and its heartbeat ----------------------------------------------------------------------


def test_an_owner_tells_who_it_is_and_that_it_lives(backend: Backend) -> None:
    queue = backend.queue(liveness=QUICK)
    row = owner_row(backend, queue.owner_id)
    assert (row["host"], row["pid"], row["claims"], row["lease"]) == (socket.gethostname(), os.getpid(), "jobs", 2.0)
    # MySQL says in whole seconds how long it has been running: just after its start that is up to a second too late.
    late = timedelta(seconds=0 if backend.dialect.sessions.knows_start_exactly else 1)
    assert row["server_since"] < row["started"] + late
    assert row["died"] is None
    assert session_of(backend, queue.owner_id) is not None
    [owner] = queue.stats().owners
    assert (owner.lock, owner.lease) == ("held", 2.0)
    for _ in range(2):
        await_beat(backend, queue.owner_id)


def test_a_heart_ends_with_its_queue(backend: Backend) -> None:
    with backend.queue() as queue:
        assert queue.owner_id
        assert hearts() == ["claimjobs heartbeat of jobs"]
    assert hearts() == []


def test_a_queue_that_is_forgotten_leaves_nothing_behind(backend: Backend) -> None:
    backend.queue().enqueue(jobs(2))
    queue = backend.queue()
    me = queue.owner_id
    assert queue.claim(1)
    backend._queues.remove(queue)
    del queue
    gc.collect()
    assert hearts() == []
    assert owner_row(backend, me) is None
    backend.wait_for(lambda: session_of(backend, me) is None, "its session ends")
    assert states(backend) == ["unclaimed", "unclaimed"]


def test_a_queue_whose_last_reference_is_dropped_by_its_own_heart_leaves_nothing_behind(backend: Backend) -> None:
    """The cyclic garbage collector runs in any thread, also in the heart's, there in the middle of a transaction."""
    queue = backend.queue(liveness=QUICK)
    me = queue.owner_id
    owner = hold_of(queue).owner
    last = [queue]
    backend._queues.remove(queue)
    del queue
    live_on = owner._live_on

    def drop_it(connection: sa.Connection) -> None:
        live_on(connection)
        last.clear()

    owner._live_on = drop_it  # type: ignore[method-assign]
    backend.wait_for(lambda: not last, "the heart beats")
    backend.wait_for(lambda: not hearts() and owner_row(backend, me) is None, "it leaves")
    backend.wait_for(lambda: session_of(backend, me) is None, "its session ends")


def test_idle_queues_send_few_statements(backend: Backend) -> None:
    """A beat and a look each, and no more: counted while every one of them beats five times."""
    engine = backend.new_engine(pool_size=20)
    queues = [backend.queue(bind=engine, liveness=QUICK) for _ in range(6)]
    for queue in queues:
        queue.claim(1)
    with counted(engine, of_all_threads=True) as sent:
        began = time.monotonic()
        for _ in range(5):
            await_beat(backend, queues[0].owner_id)
        seconds = time.monotonic() - began
    statements = [statement for statement in sent if statement not in ("COMMIT", "ROLLBACK")]
    # Each beat is at most three statements (beat, who leads, look), each with a fifth of a lease between.
    most_beats = len(queues) * (seconds / QUICK.beat / 0.8 + 1)
    assert 5 <= len(statements) <= 3 * most_beats


# --- a session lock, or the lease alone --------------------------------------------------------------------


def test_after_a_restart_of_the_server_a_free_lock_alone_tells_nothing(backend: Backend) -> None:
    """Every lock is free then: owners have what is left of their lease to come back."""
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(1))
    me, batch = queue.owner_id, queue.claim(1)
    end_session(backend, me)
    write_owner(backend, me, server_since=LONG_AGO)
    assert {owner.id: owner.lock for owner in queue.stats().owners} == {me: "free", other.owner_id: "held"}
    assert other.reclaim() == 0
    hold_of(queue).owner._connector.transaction(lambda connection: connection.execute(sa.select(1)))
    assert queue.owner_id == me
    assert owner_row(backend, me)["server_since"] != LONG_AGO
    assert session_of(backend, me) is not None
    end_session(backend, me)
    write_owner(backend, me, server_since=LONG_AGO)
    age(backend, me)
    assert other.reclaim() == 1
    batch.settle()
    assert batch.lost == batch.jobs


def test_where_the_server_keeps_no_session_lock_the_lease_alone_counts(backend: Backend) -> None:
    """A server may grant such locks without keeping them: then a free lock is no sign of a dead owner."""
    keeper = backend.queue(dialect=forgetful(backend.dialect), liveness=PATIENT)
    keeper.enqueue(jobs(1))
    batch = keeper.claim()
    assert owner_row(backend, keeper.owner_id)["server_since"] is None
    assert backend.queue(dialect=forgetful(backend.dialect), liveness=PATIENT).reclaim() == 0
    batch.done()


def forgetful(dialect: Dialect) -> Dialect:
    """A dialect of a server on which nobody ever holds a session lock."""

    class Forgotten(type(dialect.sessions)):  # type: ignore[misc]
        def lock_holder(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
            return sa.literal(None, sa.Integer)

    class Forgetful(type(dialect)):  # type: ignore[misc]
        sessions = Forgotten()

    return Forgetful()


@pytest.mark.parametrize("name", ["locks_are_seen", "lock_holder"])
def test_a_session_lock_that_is_demanded_and_does_not_work_is_refused(backend: Backend, name: str) -> None:
    """As in a group with several primaries, and on a server that grants such locks and keeps none."""
    queue = backend.queue(dialect=without_locks(backend.dialect, name), liveness=Liveness(session_lock=True))
    for begin in (queue.check, queue.claim):
        with pytest.raises(SessionsShared, match="a session lock cannot work here"):
            begin()
    backend.queue(liveness=Liveness(session_lock=True)).check()


def without_locks(dialect: Dialect, name: str) -> Dialect:
    """A dialect to which this method of its sessions answers as a server without working locks does."""
    sessions = type("Lockless", (type(dialect.sessions),), {name: lambda *_: False if "seen" in name else sa.null()})
    changed: Dialect = type("WithoutLocks", (type(dialect),), {"sessions": sessions()})()
    return changed


def test_by_its_lease_alone(backend: Backend) -> None:
    """As behind a pooler: no session lock is taken, no setting made in what may be a stranger's session."""
    engine = backend.new_engine()
    with counted(engine, of_all_threads=True) as sent:
        queue = still(backend.queue(bind=engine, liveness=LEASE_ONLY))
        queue.enqueue(jobs(1))
        me, batch = queue.owner_id, queue.claim(1)
    settings = [setting.split("=")[0] for setting in backend.dialect.sessions.settings(1.0)]
    assert settings
    assert not [statement for statement in sent if any(setting in statement for setting in settings)]
    assert not [statement for statement in sent if "lock(" in statement.lower()]
    assert [owner.lock for owner in queue.stats().owners] == ["none"]
    assert session_of(backend, me) is None
    other = still(backend.queue(liveness=LEASE_ONLY))
    assert other.reclaim() == 0
    age(backend, me)
    assert other.reclaim() == 1
    batch.settle()
    assert batch.lost == batch.jobs


# --- progress ----------------------------------------------------------------------------------------------


def test_a_batch_without_progress_ends_the_signs_of_life(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Others get its jobs, its owner is told once; when it goes on after all it does so under a new id."""
    hangs = threading.Semaphore(0)
    queue, other = backend.queue(liveness=QUICK), backend.queue(liveness=QUICK)
    queue.on_hang = hangs.release
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    assert other.owner_id
    hold_of(queue).heartbeat._working_since = time.monotonic() - QUICK.max_batch_time - 1
    assert hangs.acquire(timeout=120)
    assert other._control.woken(120)
    assert owner_row(backend, me) is None
    assert not hangs.acquire(blocking=False), "told once"
    assert [record.message for record in caplog.records if "the handler hangs" in record.message] != []
    batch.settle()
    assert batch.lost == batch.jobs
    backend.wait_for(lambda: owner_row(backend, queue.owner_id) is not None, "it beats again")
    assert queue.owner_id > me


def test_an_on_hang_that_fails_ends_no_heartbeat(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    queue = backend.queue(liveness=QUICK)
    queue.on_hang = lambda: 1 / 0  # type: ignore[assignment]
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    heart = hold_of(queue).heartbeat
    heart._working_since = time.monotonic() - QUICK.max_batch_time - 1
    backend.wait_for(lambda: [each for each in caplog.records if each.getMessage() == "on_hang failed"], "it is told")
    assert heart._thread.is_alive()
    batch.extend()
    before = owner_row(backend, queue.owner_id)["beat"]
    backend.wait_for(lambda: owner_row(backend, queue.owner_id)["beat"] > before, "it beats")
    batch.release()
    batch.settle()


def test_an_error_that_nobody_expects_ends_no_heartbeat(
    backend: Backend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = backend.queue(liveness=QUICK)
    assert queue.owner_id
    monkeypatch.setattr(hold_of(queue), "release_forgotten", lambda: 1 / 0)
    backend.wait_for(lambda: [each for each in caplog.records if each.levelname == "ERROR"], "it is told")
    assert "no heartbeat: division by zero" in caplog.messages
    monkeypatch.undo()
    before = owner_row(backend, queue.owner_id)["beat"]
    backend.wait_for(lambda: owner_row(backend, queue.owner_id)["beat"] > before, "it beats")


def test_progress_keeps_the_signs_of_life(backend: Backend) -> None:
    """Each job passed, each word about one, and `extend()` where neither happens for long."""
    queue = still(backend.queue())
    queue.enqueue(jobs(4))
    heart = hold_of(queue).heartbeat

    def goes_on() -> bool:
        progressed, heart._working_since = heart._working_since, 0.0
        return progressed is None or progressed > 0

    batch = queue.claim(4)
    assert goes_on()
    assert not goes_on()
    batch.extend()
    assert goes_on()
    working = iter(batch)
    next(working)
    assert not goes_on(), "the first job has not been passed yet"
    next(working)
    assert goes_on()
    batch.fail(batch[2], "broken")
    assert goes_on()
    batch.settle()
    assert heart._working_since is None, "nothing in hand"
    assert not heart._hangs()


def test_waiting_for_jobs_is_not_hanging(backend: Backend) -> None:
    queue = still(backend.queue(liveness=Liveness(max_batch_time=1e-9)))
    queue.claim()
    heart = hold_of(queue).heartbeat
    assert not heart._hangs()
    queue.enqueue(jobs(1))
    batch = queue.claim()
    assert heart._hangs()
    batch.settle()
    assert not heart._hangs()


def test_the_log_names_the_next_step(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads that an owner died learns what became of its jobs; that a handler hangs, where they go."""
    caplog.set_level(logging.WARNING, "claimjobs")
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(1))
    queue.claim()
    hold_of(queue).heartbeat._working_since = -1e9
    assert hold_of(queue).heartbeat._hangs()
    age(backend, queue.owner_id)
    other.reclaim()
    text = " ".join(caplog.messages)
    assert "others get its jobs" in text
    assert "1 job reclaimed" in text

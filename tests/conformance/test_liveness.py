"""Signs of life of an owner: its heartbeat, its session lock, the progress of its batch."""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Job, Queue
from claimjobs.dialects import Dialect
from claimjobs.errors import ServerUnreachable, SessionsShared
from claimjobs.options import HoldKind, Liveness, Retry
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import (
    JOBS,
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


def test_a_lock_of_another_database_is_no_sign_of_life(backend: Backend) -> None:
    """A copy of a database has the same numbers of tables and of owners."""
    backend.requires("schemas")  # where they are within a database, advisory locks are, too
    me = still(backend.queue()).owner_id
    end_session(backend, me)
    with backend.engine.connect() as connection:
        table = connection.scalar(sa.text("SELECT 'claimjobs_owners'::regclass::oid::integer"))
    elsewhere = sa.create_engine(sa.make_url(backend.url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with elsewhere.connect() as connection:
        connection.execute(sa.text("SELECT pg_advisory_lock(:table, :owner)"), {"table": table, "owner": me})
        assert [owner.lock for owner in backend.bare_queue().stats().owners] == ["free"]
    elsewhere.dispose()
    assert backend.bare_queue().reclaim() == 0


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
    backend.forgets_batches = True
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
    backend.forgets_batches = True
    queue = backend.queue(liveness=QUICK)
    me = queue.owner_id
    owner = hold_of(queue).owner.row
    last = [queue]
    backend._queues.remove(queue)
    del queue
    is_alive = owner._is_alive

    def drop_it(connection: sa.Connection) -> bool:
        alive = is_alive(connection)
        last.clear()
        return alive

    owner._is_alive = drop_it  # type: ignore[method-assign]
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
    hold_of(queue).owner.row.connector.transaction(lambda connection: connection.execute(sa.select(1)))
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
    assert not [statement for statement in sent if re.search(r"\bget_lock\(|advisory_lock\(", statement.lower())]
    assert [owner.lock for owner in queue.stats().owners] == ["none"]
    assert session_of(backend, me) is None
    other = still(backend.queue(liveness=LEASE_ONLY))
    assert other.reclaim() == 0
    age(backend, me)
    assert other.reclaim() == 1
    batch.settle()
    assert batch.lost == batch.jobs


# --- progress ----------------------------------------------------------------------------------------------


def hang(queue: Queue, *batches: Batch) -> None:
    """Let the handlers of these batches have made no progress since long ago."""
    for batch in batches:
        held = hold_of(queue).held.of(batch._claimed)
        assert held is not None
        held.progressed_at = time.monotonic() - queue.settings.liveness.max_batch_time - 1


def test_a_batch_without_progress_is_given_to_others_and_no_other_batch(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread of its Queue works on: its progress hides no hang, and its jobs are not touched. The owner is told
    once, and goes on under its id; what the handler settles after all is refused.
    """
    hangs = threading.Semaphore(0)
    queue = backend.queue(liveness=QUICK)
    queue.on_hang = hangs.release
    queue.enqueue(jobs(4))
    me, hung, works = queue.owner_id, queue.claim(2), queue.claim(2)
    hang(queue, hung)
    assert hangs.acquire(timeout=120)
    works.extend()
    backend.wait_for(lambda: states(backend).count("unclaimed") == 2, "others can have its jobs")
    assert [row["suspect"] for row in backend.rows()] == [2, 2, 0, 0]
    assert [vars(record)["jobs"] for record in caplog.records if "the handler hangs" in record.message] == [2]
    again = queue.claim(1)
    assert not again, "suspects are held by nobody who holds other jobs"
    works.done()
    works.settle()
    again = queue.claim(2)
    assert (names(again), again[0]["suspect"]) == (["0000"], 2)
    hung.done()
    hung.settle()
    assert hung.lost == hung.jobs
    again.done()
    again.settle()
    assert (works.lost, again.lost, queue.owner_id) == ((), (), me)
    assert not hangs.acquire(blocking=False), "told once"
    assert [row["d"] for row in backend.rows()] == ["0001"]


def test_a_job_whose_handler_hangs_alone_is_charged_and_in_the_end_dead(backend: Backend) -> None:
    told: list[str] = []
    queue = backend.queue(
        liveness=QUICK, retry=Retry(attempts=2, base=0), on_dead=lambda job, error: told.append(str(error))
    )
    queue.enqueue(jobs(1))
    for attempt in (1, 2):
        hung = queue.claim(1)
        hang(queue, hung)
        backend.wait_for(lambda: backend.rows()[0]["status"] != "claimed", "it is given up")
        assert backend.rows()[0]["attempts"] == attempt
        hung.settle()
        assert hung.lost == hung.jobs
    assert backend.rows()[0]["status"] == "dead"
    queue.claim(1)
    assert len(told) == 1
    assert told[0].startswith("its handler made no progress for 36")


def test_an_on_hang_that_takes_long_delays_no_heartbeat(backend: Backend) -> None:
    queue, gate = backend.queue(liveness=QUICK), threading.Event()

    def tell_somebody() -> None:
        gate.wait(120)

    queue.on_hang = tell_somebody
    queue.enqueue(jobs(1))
    me, batch = queue.owner_id, queue.claim(1)
    hang(queue, batch)
    try:
        backend.wait_for(lambda: states(backend) == ["unclaimed"], "the job is given up", seconds=10.0)
        for _ in range(2):
            await_beat(backend, me)
    finally:
        gate.set()
    assert queue.owner_id == me


def test_of_several_hangs_those_wait_for_which_a_heartbeat_has_no_time(backend: Backend) -> None:
    queue, gate = still(backend.queue(liveness=QUICK)), threading.Event()
    queue.on_hang = lambda: gate.wait(120)  # type: ignore[assignment]
    queue.enqueue(jobs(3))
    hang(queue, *(queue.claim(1) for _ in range(3)))
    try:
        for given_up in (1, 2, 3):
            hold_of(queue).maintain()
            assert states(backend).count("unclaimed") == given_up
    finally:
        gate.set()


def test_a_job_that_was_cancelled_before_it_hung_has_not_failed(backend: Backend) -> None:
    told: list[Job] = []
    queue = still(backend.queue(retry=Retry(attempts=1), on_dead=lambda job, _: told.append(job)))
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    backend.queue().cancel([batch[0].key])
    hang(queue, batch)
    hold_of(queue).maintain()
    assert not queue.claim(1)
    assert (told, states(backend)) == ([], ["dead"])


def test_a_heartbeat_that_is_late_is_written_between_two_dead_owners(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = hold_of(still(backend.queue())).owner
    beats: list[None] = []

    def takes_long(_: object) -> int:
        owner._next_beat = 0.0
        return 0

    monkeypatch.setattr(owner.row, "beat", lambda: beats.append(None))
    for found in ("dead", "unknown"):
        monkeypatch.setattr(owner.reaper, found, lambda: [1, 2])
    monkeypatch.setattr(owner.reaper, "reclaim_or_log", takes_long)
    owner.row.try_to_lead()
    owner._reclaim_dead()
    assert len(beats) == 4


def test_an_on_hang_that_fails_ends_no_heartbeat(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    queue = backend.queue(liveness=QUICK)
    queue.on_hang = lambda: 1 / 0  # type: ignore[assignment]
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    hang(queue, batch)
    backend.wait_for(lambda: [each for each in caplog.records if each.getMessage() == "on_hang failed"], "it is told")
    assert hold_of(queue).owner.thread.is_alive()
    await_beat(backend, queue.owner_id)
    backend.wait_for(lambda: states(backend) == ["unclaimed"], "the job is given up")


def test_an_error_that_nobody_expects_ends_no_heartbeat(
    backend: Backend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = backend.queue(liveness=QUICK)
    assert queue.owner_id
    monkeypatch.setattr(hold_of(queue), "maintain", lambda **_: 1 / 0)
    backend.wait_for(lambda: [each for each in caplog.records if each.levelname == "ERROR"], "it is told")
    assert "no heartbeat: division by zero" in caplog.messages
    monkeypatch.undo()
    await_beat(backend, queue.owner_id)


def test_progress_is_that_of_its_batch(anywhere: Backend) -> None:
    """Each job passed, each word about one, and `extend()` where neither happens for long."""
    queue = still(anywhere.queue())
    queue.enqueue(jobs(6))
    batch, other = queue.claim(4), queue.claim(2)
    hang(queue, batch, other)

    def hanging() -> list[int]:
        found = [len(held.claimed.jobs) for held in hold_of(queue).held.hanging(Liveness.max_batch_time)]
        hang(queue, batch, other)
        return found

    assert hanging() == [4, 2]
    batch.extend()
    assert hanging() == [2]
    working = iter(batch)
    next(working)
    assert hanging() == [4, 2], "the first job has not been passed yet"
    next(working)
    assert hanging() == [2]
    batch.fail(batch[2], "broken")
    assert hanging() == [2]
    other.settle()
    batch.settle()
    assert not hold_of(queue).held


def test_waiting_is_not_hanging(anywhere: Backend) -> None:
    """For jobs, for the end of the batch before, for the database."""
    queue = still(anywhere.queue(liveness=Liveness(max_batch_time=1e-9, patience=0)))
    queue.claim()
    held = hold_of(queue).held
    assert not list(held.hanging(1e-9))
    queue.enqueue(jobs(3))
    batch = queue.claim(1)
    ahead = queue._consumer.claim(1, None, ahead=True)
    assert [each.claimed for each in held.hanging(1e-9)] == [batch._claimed]
    with anywhere.engine.begin() as stranger:
        stranger.execute(sa.select(JOBS).where(JOBS.c.id == batch[0].key).with_for_update()).all()
        settle = threading.Thread(target=batch.settle)
        settle.start()
        anywhere.wait_for(lambda: not list(held.hanging(1e-9)), "its settle waits for a row")
    settle.join()
    ahead.extend()
    assert [each.claimed for each in held.hanging(1e-9)] == [ahead._claimed]
    ahead.settle()


def test_the_time_of_an_outage_does_not_count(anywhere: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may wait for the same database."""
    queue = anywhere.queue(liveness=QUICK)
    queue.on_hang = lambda: pytest.fail("an outage is no hang")
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    heartbeat, tries = hold_of(queue).owner, threading.Semaphore(0)

    def unreachable() -> None:
        tries.release()
        raise ServerUnreachable("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(heartbeat, "_beat_if_due", unreachable)
        assert tries.acquire(timeout=120)
        hang(queue, batch)
        heartbeat._written_at -= QUICK.max_batch_time
        assert tries.acquire(timeout=120)
    await_beat(anywhere, queue.owner_id)
    assert states(anywhere) == ["claimed"]
    batch.done()
    batch.settle()
    assert batch.lost == ()


# --- batches that nobody settles ---------------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_batch_that_is_dropped_without_a_settle_is_released(
    backend: Backend, caplog: pytest.LogCaptureFixture, hold: HoldKind
) -> None:
    """Also while another batch of the Queue is worked on."""
    backend.forgets_batches = True
    queue = backend.queue(liveness=QUICK, hold=hold)
    queue.enqueue(jobs(4))
    kept, dropped = queue.claim(2), queue.claim(2)
    assert len(dropped) == 2
    del dropped
    gc.collect()
    if hold == "lease":  # with a transaction nobody beats: the next claim rolls it back, and gets the jobs
        backend.wait_for(lambda: states(backend).count("unclaimed") == 2, "others can have its jobs")
        assert "a batch of 2 jobs was dropped without a settle: they are released" in caplog.messages
    again = queue.claim(4)
    assert names(again) == ["0002", "0003"]
    for batch in (kept, again):
        batch.done()
        batch.settle()
        assert batch.lost == ()
    assert backend.rows() == []


def test_the_log_names_the_next_step(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads that an owner died learns what became of its jobs."""
    caplog.set_level(logging.WARNING, "claimjobs")
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(1))
    batch = queue.claim()
    age(backend, queue.owner_id)
    other.reclaim()
    assert "1 job reclaimed" in " ".join(caplog.messages)
    batch.settle()
    assert batch.lost == batch.jobs

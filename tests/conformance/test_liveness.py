"""Owners live, die and come back: what the dead held goes on, and what they still say is refused."""

from __future__ import annotations

import gc
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import claimjobs
from claimjobs import Queue, Retry
from claimjobs.claim.strategy import ClaimRequest, OwnerDead
from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.errors import SessionsShared
from claimjobs.lease.reaper import Reaper
from claimjobs.options import Liveness
from claimjobs.table.definitions import FIRST_OWNER
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import (
    LONG_AGO,
    age,
    await_beat,
    declare_dead,
    end_session,
    hold_of,
    owner_row,
    session_of,
    states,
    still,
    stranger_holds,
    write_owner,
)
from tests.conformance.sleepers import Consumer

QUICK = Liveness(lease=2.0)
PATIENT = Liveness(lease=60.0)
"""Nothing in these tests lasts so long: with it the session lock alone can have told."""
LEASE_ONLY = Liveness(session_lock=False)
HERE = str(Path(claimjobs.__file__).parents[1])


@pytest.fixture(autouse=True)
def _no_heart_outlives_its_test() -> Iterator[None]:
    yield
    if hearts():  # of a queue that waits for the collector, which looks at all that there is
        gc.collect()


def hearts() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("claimjobs heart")]


def reaper_of(queue: Queue) -> Reaper:
    return hold_of(queue).heartbeat._reaper


# --- signs of life -----------------------------------------------------------------------------------------


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
    with counted(engine) as sent:
        began = time.monotonic()
        for _ in range(5):
            await_beat(backend, queues[0].owner_id)
        seconds = time.monotonic() - began
    statements = [statement for statement in sent if statement not in ("COMMIT", "ROLLBACK")]
    # Each beat is at most three statements (beat, who leads, look), each with a fifth of a lease between.
    most_beats = len(queues) * (seconds / QUICK.beat / 0.8 + 1)
    assert 5 <= len(statements) <= 3 * most_beats


# --- a process dies ----------------------------------------------------------------------------------------

CLAIMS_AND_WAITS = """
import sys
from claimjobs import Queue
from claimjobs.options import Liveness
queue = Queue({url!r}, liveness=Liveness(lease=60))
batch = queue.claim({size})
print(queue.owner_id, len(batch), flush=True)
sys.stdin.read()
"""


@contextmanager
def consumer(backend: Backend, size: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process with `size` jobs in hand, and its owner id."""
    program = CLAIMS_AND_WAITS.format(url=backend.url, size=size)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    ) as process:
        try:
            assert process.stdout is not None
            owner_id, held = process.stdout.readline().split()
            assert int(held) == size
            yield process, int(owner_id)
        finally:
            process.kill()


def test_what_a_killed_process_held_is_handed_back_at_once(database: Backend) -> None:
    """By the heart of another consumer, which has nothing else to do; long before any lease is over."""
    queue = database.queue(liveness=PATIENT)
    queue.enqueue(jobs(3))
    with consumer(database, size=2) as (process, owner_id):
        assert queue.owner_id
        assert session_of(database, owner_id) is not None
        process.kill()
        process.wait()
        assert queue._control.woken(10)
    assert states(database) == ["unclaimed"] * 3
    assert owner_row(database, owner_id) is None


def test_killed_while_nobody_else_is_there_the_next_consumer_finds_the_jobs(database: Backend) -> None:
    database.queue().enqueue(jobs(2))
    with consumer(database, size=2) as (process, _):
        process.kill()
        process.wait()
    found: list[str] = []
    for batch in database.queue().batches():
        with batch:
            found += [job.d for job in batch]
        if len(found) == 2:
            break
    assert sorted(found) == ["0000", "0001"]


# --- the database's clock is set ---------------------------------------------------------------------------


def test_a_heartbeat_from_the_future_that_does_not_change_is_silence(backend: Backend) -> None:
    """The server's clock was set back by an hour after it; there is no session lock that could tell."""
    dead = still(backend.queue(liveness=Liveness(lease=2.0, session_lock=False)))
    dead.enqueue(jobs(3))
    batch = dead.claim(2)
    write_owner(backend, dead.owner_id, beat=in_an_hour(backend))
    living = backend.queue(liveness=QUICK)
    before = living.owner_id
    assert living._control.woken(20)
    assert owner_row(backend, dead.owner_id) is None
    assert states(backend) == ["unclaimed"] * 3
    assert living.owner_id == before
    batch.settle()
    assert batch.lost == batch.jobs


def test_a_sleeper_that_looks_after_others_sees_a_heartbeat_from_the_future(backend: Backend) -> None:
    dead = still(backend.queue(liveness=Liveness(lease=2.0, session_lock=False)))
    dead.enqueue(jobs(2))
    batch = dead.claim(2)
    with Consumer(backend, backend.queue(liveness=QUICK)) as consumer:
        consumer.falls_asleep()
        write_owner(backend, dead.owner_id, beat=in_an_hour(backend))
        backend.wait_for(lambda: sorted(consumer.done) == ["0000", "0001"], "the jobs go on", 20)
    batch.settle()


def in_an_hour(backend: Backend) -> datetime:
    with backend.engine.connect() as connection:
        now: datetime = connection.execute(sa.select(database_now())).scalar_one()
    return now + timedelta(hours=1)


# --- declared dead while it lives --------------------------------------------------------------------------


def test_a_silent_owner_is_dead_though_its_lock_is_held(backend: Backend) -> None:
    """Its session is ended, its late settle refused and reported; then it goes on under a new id."""
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(4))
    before, batch = queue.owner_id, queue.claim(3)
    assert other.reclaim() == 0
    age(backend, before)
    assert session_of(backend, before) is not None
    assert other.reclaim() == 3
    assert owner_row(backend, before) is None
    backend.wait_for(lambda: session_of(backend, before) is None, "its session ends")
    with batch:
        batch.done(batch[0])
        batch.fail(batch[1], "broken")
    assert batch.lost == batch.jobs
    assert (queue.report.lost, queue.report.done, queue.report.retried, queue.report.released) == (3, 0, 0, 0)
    assert states(backend) == ["unclaimed"] * 4
    assert queue.owner_id > before
    with queue.claim(1) as again:
        assert len(again) == 1
        assert {row["owner_id"] for row in backend.rows()} == {None, queue.owner_id}
    assert again.lost == ()


@pytest.mark.parametrize("how", ["marked", "taken out"])
@pytest.mark.parametrize("then", ["beats", "claims"])
def test_an_owner_declared_dead_goes_on_under_a_new_id(
    backend: Backend, how: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(2))
    before = queue.owner_id
    if how == "marked":
        declare_dead(backend, before)
    else:
        backend.run("DELETE FROM claimjobs_owners")
    if then == "beats":
        hold_of(queue).owner.beat()
        assert queue.owner_id > before
    batch = queue.claim(2)
    assert queue.owner_id > before
    assert {row["owner_id"] for row in backend.rows()} == {queue.owner_id}
    assert session_of(backend, queue.owner_id) is not None
    assert f"owner {before} was declared dead; going on under a new id" in caplog.messages
    with batch:
        batch.done()
    assert batch.lost == ()
    queue.reclaim()


def test_a_claim_in_the_name_of_a_dead_owner_takes_nothing(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(3))
    me, strategy = queue.owner_id, queue._parts.plan(None).strategy
    declare_dead(backend, me)
    with backend.engine.connect().execution_options(isolation_level=backend.dialect.isolation) as connection:
        for owner_id in (me, me + 1_000):
            with pytest.raises(OwnerDead), connection.begin():
                strategy.claim(connection, owner_id, ClaimRequest(2, 2))
    assert states(backend) == ["unclaimed"] * 3
    assert backend.locked() == 0
    queue.reclaim()


def test_an_owner_that_beats_while_it_is_looked_at_is_left_alone(backend: Backend) -> None:
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    age(backend, me)
    reaper = reaper_of(other)
    [seen] = reaper.dead()
    hold_of(queue).owner.beat()
    assert reaper.reclaim(seen) == 0
    assert owner_row(backend, me)["died"] is None
    with batch:
        batch.done()
    assert batch.lost == ()
    assert queue.owner_id == me


def test_what_comes_again_into_the_hand_that_lost_it_stays_there(backend: Backend) -> None:
    """The late settle of a batch that was lost says nothing of the same jobs, claimed anew under another id."""
    queue, other = still(backend.queue(retry=Retry(base=0.0))), still(backend.queue())
    queue.enqueue(jobs(1))
    before = queue.claim(1)
    end_session(backend, queue.owner_id)
    assert other.reclaim() == 1
    again = queue.claim(1)
    before.settle()
    assert before.lost == before.jobs
    assert not queue.claim(1)
    assert states(backend) == ["claimed"]
    with again:
        again.done()
    assert again.lost == ()


# --- reclaiming --------------------------------------------------------------------------------------------


def test_two_reapers_reclaim_each_owner_once(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    dead = [still(backend.queue()) for _ in range(4)]
    dead[0].enqueue(jobs(12))
    batches = [queue.claim(3) for queue in dead]
    age(backend, *(queue.owner_id for queue in dead))
    together = threading.Barrier(2)
    counts: list[int] = []

    def reclaim(reaper: Queue) -> None:
        together.wait(10)
        counts.append(reaper.reclaim())

    threads = [threading.Thread(target=reclaim, args=[backend.queue()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(counts) == 12
    assert states(backend) == ["unclaimed"] * 12
    assert [row["attempts"] for row in backend.rows()] == [0] * 12
    told = sorted(message for message in caplog.messages if "is dead" in message)
    assert told == [f"owner {queue.owner_id} is dead: 3 jobs reclaimed" for queue in dead]
    for batch in batches:
        batch.settle()
        assert batch.lost == batch.jobs


def test_jobs_that_a_stranger_has_locked_are_left_for_the_next_look(backend: Backend) -> None:
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(3))
    me, _ = queue.owner_id, queue.claim(3)
    age(backend, me)
    with stranger_holds(backend, "0001"):
        assert other.reclaim() == 2
        assert states(backend) == ["unclaimed", "claimed", "unclaimed"]
        assert owner_row(backend, me)["died"] is not None
        assert other.reclaim() == 0
    assert other.reclaim() == 1
    assert states(backend) == ["unclaimed"] * 3
    assert owner_row(backend, me) is None


def test_of_several_jobs_none_is_charged_though_a_stranger_has_locked_all_but_one(backend: Backend) -> None:
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(3))
    queue.claim(3)
    age(backend, queue.owner_id)
    with stranger_holds(backend, "0001", "0002"):
        assert other.reclaim() == 1
    with stranger_holds(backend, "0001"):
        assert other.reclaim() == 1
    assert other.reclaim() == 1
    assert [row["attempts"] for row in backend.rows()] == [0, 0, 0]


def hold(backend: Backend, name: str, owner_id: int) -> None:
    backend.run("UPDATE jobs SET status = 'claimed', owner_id = :owner WHERE d = :name", owner=owner_id, name=name)


def test_what_unknown_owners_hold_is_handed_back_but_not_what_other_programs_do(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(3))
    hold(backend, "0000", FIRST_OWNER + 4_711)
    hold(backend, "0001", FIRST_OWNER - 1)
    assert queue.reclaim() == 1
    assert states(backend) == ["unclaimed", "claimed", "unclaimed"]
    assert queue.reclaim() == 0


@pytest.mark.parametrize("liveness", [QUICK, Liveness(lease=2.0, session_lock=False)], ids=["locks", "lease only"])
def test_hearts_find_what_unknown_owners_hold(backend: Backend, liveness: Liveness) -> None:
    queue = backend.queue(liveness=liveness)
    queue.enqueue(jobs(1))
    hold(backend, "0000", FIRST_OWNER + 4_711)
    assert queue.owner_id
    backend.wait_for(lambda: states(backend) == ["unclaimed"], "it is handed back")


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
        def lock_holder(self, lock: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
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
    with counted(engine) as sent:
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


# --- what becomes of its jobs ------------------------------------------------------------------------------


def left_behind(backend: Backend, count: int, retry: Retry) -> int:
    """Jobs in the hand of an owner that dies; how many were handed back."""
    queue, other = still(backend.queue(retry=retry)), still(backend.queue(retry=retry))
    queue.claim(count)
    age(backend, queue.owner_id)
    return other.reclaim()


def test_a_job_that_was_alone_in_a_dead_hand_is_charged(backend: Backend) -> None:
    retry = Retry(attempts=3, base=600)
    backend.queue().enqueue(jobs(1))
    due = backend.rows()[0]["run_at"]
    assert left_behind(backend, 1, retry) == 1
    [row] = backend.rows()
    assert (row["status"], row["attempts"], row["suspect"], row["owner_id"]) == ("unclaimed", 1, 1, None)
    assert "died while it held this job" in row["last_error"]
    assert len(still(backend.queue()).claim()) == 1, "after the first death it is available at once"
    backend.run("UPDATE jobs SET status = 'unclaimed', owner_id = NULL")
    assert left_behind(backend, 1, retry) == 1
    [row] = backend.rows()
    assert (row["status"], row["attempts"]) == ("unclaimed", 2)
    assert (row["run_at"] - due).total_seconds() >= 300
    backend.run("UPDATE jobs SET run_at = :due", due=due)
    assert left_behind(backend, 1, retry) == 1
    [row] = backend.rows()
    assert (row["status"], row["attempts"], row["owner_id"]) == ("dead", 3, None)


def test_of_several_jobs_in_a_dead_hand_none_is_charged(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(5))
    assert left_behind(backend, 4, Retry(attempts=1, base=600)) == 4
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [
        *[("unclaimed", 0, 4)] * 4,
        ("unclaimed", 0, 0),
    ]
    with queue.claim(5) as batch:
        assert names(batch) == ["0000", "0001"], "half as many as they were, at once"


def test_a_clean_close_charges_nobody(backend: Backend) -> None:
    queue = backend.queue(retry=Retry(attempts=1))
    queue.enqueue(jobs(2))
    queue.claim(1)
    queue.close()
    assert [(row["status"], row["attempts"], row["suspect"]) for row in backend.rows()] == [("unclaimed", 0, 0)] * 2


def test_reclaim_owner_does_not_believe_a_session_that_lasts(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has ended, so what is left of its session is ended too."""
    queue, supervisor = still(backend.queue()), backend.queue()
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    assert supervisor.reclaim_owner(me) == 2
    assert f"owner {me} is dead: 2 jobs reclaimed" in caplog.messages
    backend.wait_for(lambda: session_of(backend, me) is None, "its session ends")
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
    assert hangs.acquire(timeout=10)
    assert other._control.woken(10)
    assert owner_row(backend, me) is None
    assert not hangs.acquire(blocking=False), "told once"
    assert [record.message for record in caplog.records if "the handler hangs" in record.message] != []
    batch.settle()
    assert batch.lost == batch.jobs
    backend.wait_for(lambda: owner_row(backend, queue.owner_id) is not None, "it beats again")
    assert queue.owner_id > me


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

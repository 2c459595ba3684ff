"""An owner that is declared dead while it lives goes on under a new id; what it still says is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from claimjobs import Job, Queue, Retry
from claimjobs.claim.strategy import ClaimRequest, OwnerDead
from claimjobs.dialects.types import database_now
from claimjobs.lease.reaper import Reaper
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import (
    age,
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
from tests.conformance.test_work import EXECUTORS, done, until, working

QUICK = Liveness(lease=2.0)

pytestmark = pytest.mark.usefixtures("no_heart_outlives_its_test")


def test_a_silent_owner_is_dead_though_its_lock_is_held(backend: Backend) -> None:
    """Its session is ended, its late settle refused and reported; then it goes on under a new id."""
    age(backend)  # a young server is waited for now: a silent session would end meanwhile
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
        hold_of(queue).owner.row.beat()
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
    me, strategy = queue.owner_id, queue._consumer.plans.plan(None).strategy
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
    hold_of(queue).owner.row.beat()
    assert reaper.reclaim(seen) == 0
    assert owner_row(backend, me)["died"] is None
    with batch:
        batch.done()
    assert batch.lost == ()
    assert queue.owner_id == me


def reaper_of(queue: Queue) -> Reaper:
    return hold_of(queue).owner.reaper


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


# --- the database's clock is set ---------------------------------------------------------------------------


def test_a_heartbeat_from_the_future_that_does_not_change_is_silence(backend: Backend) -> None:
    """The server's clock was set back by an hour after it; there is no session lock that could tell."""
    dead = still(backend.queue(liveness=Liveness(lease=2.0, session_lock=False)))
    dead.enqueue(jobs(3))
    batch = dead.claim(2)
    write_owner(backend, dead.owner_id, beat=in_an_hour(backend))
    living = backend.queue(liveness=QUICK)
    before = living.owner_id
    assert living._control.woken(120)
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
        backend.wait_for(lambda: sorted(consumer.done) == ["0000", "0001"], "the jobs go on")
    batch.settle()


def in_an_hour(backend: Backend) -> datetime:
    with backend.engine.connect() as connection:
        now: datetime = connection.execute(sa.select(database_now())).scalar_one()
    return now + timedelta(hours=1)


@EXECUTORS
def test_a_job_that_waits_when_its_owner_is_declared_dead_is_not_done(backend: Backend, executor: str) -> None:
    """Another session has it locked, so that its row still names the owner that was declared dead."""
    queue, gate, begun = backend.queue(on_done="keep", liveness=QUICK), threading.Event(), list[str]()
    queue.enqueue(jobs(3))

    def body(job: Job) -> Iterator[None]:
        begun.append(job.d)
        yield from until(gate)

    with working(queue, executor, body, concurrency=1, size=3):
        backend.wait_for(lambda: begun == ["0000"] and done(backend)["claimed"] == 3, "one has begun, and two wait")
        before = queue.owner_id
        with stranger_holds(backend, "0001", "0002"):
            declare_dead(backend, before)
            backend.wait_for(lambda: queue.owner_id != before, "it goes on under a new id")
            gate.set()
            backend.wait_for(backend.someone_waits_for_a_lock, "the jobs that wait are settled, without a handler")
        backend.wait_for(lambda: done(backend) == {"done": 3}, "all are done in the end")
        backend.wait_for(lambda: owner_row(backend, before) is None, "the row of the dead owner is deleted")
    assert {"0001", "0002"} <= set(begun), "each by a handler"

"""A server goes away, has no connection left, or is read only for a while: work goes on when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch
from claimjobs.errors import BatchRolledBack, ReadOnly
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.connections import joined, told
from tests.conformance.jobs import jobs, names
from tests.conformance.members import limited_user, set_read_only
from tests.conformance.owners import end_session, session_of, states, still
from tests.conformance.test_work import DEADLINE

PATIENT = Liveness(lease=60.0)
IMPATIENT = Liveness(patience=0.1)


def test_a_server_that_is_killed_and_started_again(own: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Under an idle queue, and under a busy one: both go on under their ids, and no job is lost or done twice."""
    caplog.set_level(logging.WARNING)
    idle, busy = own.queue("emails", liveness=PATIENT), own.queue(liveness=PATIENT)
    busy.enqueue(jobs(300))
    ids = idle.owner_id, busy.owner_id
    done: list[str] = []
    lost: list[Any] = []
    some = threading.Event()

    def work() -> None:
        for batch in busy.batches(3, drain=True):
            with batch:
                done.extend(job.d for job in batch)
            lost.extend(batch.lost)
            if len(done) >= 30:
                some.set()

    with joined(work) as working:
        working.start()
        assert some.wait(120)
        own.server.kill()
        own.server.restart()
        own.wait_for(lambda: session_of(own, ids[0]) is not None, "the idle one comes back")
    assert (idle.owner_id, busy.owner_id) == ids
    assert lost == []
    assert sorted(done) == sorted(set(done)) == [job["d"] for job in jobs(300)]
    assert own.rows() == []
    assert 2 <= len(told(caplog)) <= 4, "a beginning and an end for each of the two"
    busy.enqueue(jobs(1))
    assert busy.stats().unclaimed == 1


def test_a_loop_that_is_cancelled_while_the_server_is_away_ends_as_after_a_stop(own: Backend) -> None:
    queue, ends = own.queue(liveness=Liveness(lease=3600.0, patience=3600.0)), list[bool]()
    assert queue.owner_id

    async def consume() -> None:
        async for _ in queue.abatches(1):
            pytest.fail("there is no job")

    async def cancelled() -> None:
        task = asyncio.create_task(consume())
        tries = queue.report.transients
        await asyncio.to_thread(own.wait_for, lambda: sum(tries.values()) > 2, "the claim is tried again")
        task.cancel()
        await asyncio.wait([task], timeout=DEADLINE)
        ends.append(task.done())
        await asyncio.to_thread(own.server.restart)
        with pytest.raises(asyncio.CancelledError):
            await task

    own.server.kill()
    asyncio.run(cancelled())
    assert ends == [True]
    queue.enqueue(jobs(1))
    assert len(queue.claim(1)) == 1, "the Queue can be used"


def test_too_many_connections(own: Backend, caplog: pytest.LogCaptureFixture) -> None:
    own.make()
    with limited_user(own, 1) as url:
        engine = own.new_engine_to(url, poolclass=sa.NullPool)
        queue = still(own.bare_queue(bind=engine))
        own.queue().enqueue(jobs(1))
        end_session(own, queue.owner_id)
        found: list[Batch] = []
        with joined(lambda: found.append(queue.claim(1))) as claiming, engine.connect():
            claiming.start()
            own.wait_for(lambda: queue.report.transients["too many connections"] >= 2, "it is counted")
        assert names(found[0]) == ["0000"]
        assert len(told(caplog)) == 2
        queue.close()


def test_a_server_that_is_read_only_for_a_while(own: Backend, caplog: pytest.LogCaptureFixture) -> None:
    own.make()
    with limited_user(own, 9) as url:  # read_only does not bind a user who may do anything
        engine = own.new_engine_to(url)
        queue = still(own.bare_queue(bind=engine, liveness=PATIENT))
        queue.enqueue(jobs(2))
        batch = queue.claim(1)
        batch.done()
        set_read_only(own, "ON")
        try:
            with joined(batch.settle) as settling:
                settling.start()
                own.wait_for(lambda: queue.report.transients["read only"] >= 1, "it is counted")
                set_read_only(own, "OFF")
        finally:
            set_read_only(own, "OFF")
        assert batch.lost == ()
        assert states(own) == ["unclaimed"]
        assert len(told(caplog)) == 2
        assert told(caplog)[0].startswith("read only (")
        queue.close()


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_server_that_stays_read_only_is_told_as_that_when_patience_ends(own: Backend, hold: Any) -> None:
    own.make()
    with limited_user(own, 9) as url:
        engine = own.new_engine_to(url)
        queue = own.bare_queue(bind=engine, liveness=IMPATIENT, hold=hold, on_done="delete")
        queue.enqueue(jobs(2))
        batch = queue.claim(1)
        batch.done()
        set_read_only(own, "ON")
        try:
            with contextlib.suppress(ReadOnly, BatchRolledBack):  # on Postgres an open transaction may write still
                batch.settle()
            with pytest.raises(ReadOnly, match=r"table 'jobs' can be written.*the URL leads to the primary"):
                queue.claim(1)
        finally:
            set_read_only(own, "OFF")
        assert names(queue.claim(1)) != []
        queue.close()

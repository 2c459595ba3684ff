"""Connections end and stall: work goes on, counted, and told of once."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.errors import BadArgument, ClaimjobsError, ServerUnreachable, SettingUnfit
from claimjobs.options import HoldKind, Liveness
from claimjobs.queue.row_isolation import RowIsolation
from servers.proxy import Proxy
from tests.backends import Backend
from tests.conformance.connections import at_the_end_of, joined, told
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import await_beat, end_session, session_of, states, still, stranger_holds

QUICK = Liveness(lease=2.0)
IMPATIENT = Liveness(patience=0.1)


# --- a session is ended ------------------------------------------------------------------------------------


def test_under_an_idle_owner(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Its heart notices: one warning when it begins, one when it is over."""
    queue = backend.queue(liveness=QUICK)
    me = queue.owner_id
    end_session(backend, me)
    backend.wait_for(lambda: session_of(backend, me) is not None, "it comes back")
    backend.wait_for(lambda: len(told(caplog)) == 2, "it is over")
    await_beat(backend, me)
    assert queue.owner_id == me
    assert queue.report.transients == {"connection lost": 1}
    first, last = told(caplog)
    assert first.startswith("connection lost (")
    assert first.endswith("): trying again")
    assert last.startswith("connection lost: over after ")


@pytest.mark.parametrize("rested", [False, True])
def test_a_producer_outlives_a_session_that_ended_while_it_had_nothing_to_do(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, rested: bool
) -> None:
    """No heart looks after its connection, which waits in a pool; for a moment, or for long."""
    if rested:
        monkeypatch.setattr("claimjobs.database.connect.FRESH_SECONDS", 0.0)
    queue = Queue(backend.url)
    backend.make()
    backend.engine.dispose()
    for use in (queue.enqueue, queue.enqueue, lambda _: queue.stats()):
        use(jobs(1))
        backend.end_sessions()
    assert len(backend.rows()) == 2
    queue.engine.dispose()


def test_between_claim_and_settle(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(3))
    me = queue.owner_id
    with queue.claim(2) as batch:
        end_session(backend, me)
        batch.done()
    assert batch.lost == ()
    assert queue.owner_id == me
    assert queue.report.transients == {"connection lost": 1}
    assert states(backend) == ["unclaimed"]


def test_in_the_middle_of_a_claim(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(3))
    me = queue.owner_id
    with at_the_end_of(engine, "UPDATE jobs", lambda: end_session(backend, me)), queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        assert states(backend) == ["claimed", "claimed", "unclaimed"]
        batch.done()
    assert batch.lost == ()
    assert queue.owner_id == me
    assert queue.report.transients == {"connection lost": 1}


def test_in_the_middle_of_a_settle(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(3))
    me = queue.owner_id
    with at_the_end_of(engine, "DELETE", lambda: end_session(backend, me)), queue.claim(2) as batch:
        batch.fail(batch[0], "broken")
        batch.done(batch[1])
    assert batch.lost == ()
    assert queue.report.transients == {"connection lost": 1}
    assert [(row["d"], row["attempts"]) for row in backend.rows()] == [("0000", 1), ("0002", 0)]


def test_while_it_waits_for_a_lock(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(2))
    batch = queue.claim(2)
    batch.done()
    with joined(batch.settle) as settling, stranger_holds(backend, "0000"):
        settling.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the settle waits")
        end_session(backend, queue.owner_id)
        backend.wait_for(lambda: queue.report.transients["connection lost"] == 1, "it is counted")
    assert batch.lost == ()
    assert backend.rows() == []


def test_an_interrupted_statement_is_run_again(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(2))
    batch = queue.claim(2)
    batch.done()
    with joined(batch.settle) as settling, stranger_holds(backend, "0000"):
        settling.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the settle waits")
        session = session_of(backend, queue.owner_id)
        backend.interrupt(session or 0)
        backend.wait_for(lambda: queue.report.transients["interrupted"] == 1, "it is counted")
    assert session_of(backend, queue.owner_id) == session
    assert batch.lost == ()
    assert backend.rows() == []


# --- locks, and lines that go dead -------------------------------------------------------------------------


def test_a_settle_outlasts_a_stranger_that_holds_a_row(backend: Backend) -> None:
    """The heart beats meanwhile: the wait ends in a lock timeout and begins again, before the lease is over."""
    queue = backend.queue(liveness=QUICK)
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    batch.done()
    with joined(batch.settle) as settling, stranger_holds(backend, "0000"):
        settling.start()
        for lock_timeouts in range(1, 4):
            backend.wait_for(
                lambda so_far=lock_timeouts: queue.report.transients["lock timeout"] >= so_far,  # type: ignore[misc]
                "a lock timeout",
            )
            await_beat(backend, me)
    assert batch.lost == ()
    assert queue.owner_id == me
    assert backend.rows() == []


def test_a_dead_line_is_cut_by_another_thread(backend: Backend) -> None:
    """Neither end hears of it: a thread that waits for an answer is freed after a lease, and goes on.

    The server still has the old session, with our lock: it is ended, so that nothing more can come of it.
    """
    with Proxy(backend.url) as proxy:
        engine = backend.new_engine_to(proxy.url)
        queue = backend.queue(bind=engine, liveness=QUICK)
        queue.enqueue(jobs(2))
        me, batch = queue.owner_id, queue.claim(1)
        session = session_of(backend, me)
        batch.done()
        proxy.stall()
        batch.settle()
        assert batch.lost == ()
        assert queue.report.transients["connection lost"] >= 1
        assert queue.owner_id == me
        assert session_of(backend, me) not in (None, session)
        with queue.claim(1) as batch:
            assert len(batch) == 1
            batch.done()
        assert states(backend) == []
        queue.close()
        engine.dispose()


def test_a_claim_on_a_dead_line_waits_for_a_server_that_is_away(
    database: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have taken too long because of a row, so that it is divided; but no candidate can be read now."""
    candidates, errors = RowIsolation._candidates, [ServerUnreachable("nobody answers")]

    def first_nobody_answers(isolation: RowIsolation, *given: Any) -> Any:
        if errors:
            raise errors.pop()
        return candidates(isolation, *given)

    monkeypatch.setattr(RowIsolation, "_candidates", first_nobody_answers)
    with Proxy(database.url) as proxy:
        engine = database.new_engine_to(proxy.url)
        queue = database.queue(bind=engine, liveness=QUICK)
        queue.enqueue(jobs(1))
        assert queue.owner_id
        proxy.stall()
        with queue.claim(1) as batch:
            assert len(batch) == 1
            batch.done()
        queue.close()
        engine.dispose()


# --- patience ----------------------------------------------------------------------------------------------


def test_patience_runs_out_while_a_row_is_locked(backend: Backend) -> None:
    """The error is the database's own; the batch can still be settled."""
    queue = still(backend.queue(liveness=IMPATIENT))
    queue.enqueue(jobs(1))
    batch = queue.claim(1)
    batch.done()
    with stranger_holds(backend, "0000"), pytest.raises(sa.exc.OperationalError) as raised:
        batch.settle()
    assert backend.dialect.errors.transient_kind(raised.value) == "lock timeout"
    assert not batch.settled
    batch.settle()
    assert batch.lost == ()
    assert backend.rows() == []


def test_patience_runs_out_while_nobody_answers(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    queue = backend.queue(liveness=IMPATIENT)
    with Proxy(backend.url) as proxy:
        engine = backend.new_engine_to(proxy.url)
        queue = still(backend.queue(bind=engine, liveness=IMPATIENT))
        queue.enqueue(jobs(1))
        batch = queue.claim(1)
    with pytest.raises(ServerUnreachable, match="check host and port, and that the server is running"):
        batch.settle()
    assert not batch.settled
    assert queue.report.transients["connection lost"] == 1
    assert queue.report.transients["server unavailable"] >= 1
    assert len(told(caplog)) == 1, "told once, however often it was tried"
    assert "server is running" not in told(caplog)[0]
    backend.may_leave_owners = True


def test_after_stop_a_settle_is_tried_again_for_a_lease_only(backend: Backend) -> None:
    """Then others may have its jobs. With all its patience a consumer that is told to end would not end."""
    patient = Liveness(lease=2.0, patience=3600.0)
    backend.queue(liveness=patient)
    with Proxy(backend.url) as proxy:
        engine = backend.new_engine_to(proxy.url)
        queue = still(backend.queue(bind=engine, liveness=patient))
        queue.enqueue(jobs(1))
        batch = queue.claim(1)
    queue.stop()
    with pytest.raises(ServerUnreachable):
        batch.settle()
    assert not batch.settled
    backend.may_leave_owners = True


# --- pools that do not fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [sa.pool.StaticPool, sa.pool.SingletonThreadPool])
def test_a_pool_that_gives_one_connection_to_two_users_is_refused(anywhere: Backend, pool: type[sa.pool.Pool]) -> None:
    """Two batches would be one transaction, and a heartbeat part of it."""
    engine = sa.create_engine(anywhere.url, poolclass=pool)
    anywhere._engines.append(engine)
    for hold in ("transaction", "lease"):
        queue = anywhere.queue(bind=engine, hold=hold)
        queue.enqueue(jobs(1))
        for claim in (queue.claim, queue.check):
            with pytest.raises(BadArgument, match=f"a {pool.__name__} gives one connection to two users"):
                claim()


@pytest.mark.parametrize("hold", ["transaction", "lease"])
def test_a_pool_that_is_too_small_is_named(anywhere: Backend, hold: HoldKind) -> None:
    engine = anywhere.new_engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    queue = anywhere.queue(bind=engine, hold=hold)
    queue.enqueue(jobs(2))
    with queue.claim(1) as batch:
        with pytest.raises(ClaimjobsError, match=r"Pool size: 1 .* raise pool_size or max_overflow"):
            queue.stats()
        batch.done()


def test_a_style_of_dates_that_the_driver_cannot_read_is_named(database: Backend) -> None:
    if database.family != "postgres":
        pytest.skip("no setting of a session changes how instants are read")
    queue = database.queue(bind=database.new_engine(connect_args={"options": "-c DateStyle=SQL,DMY"}))
    queue.enqueue(jobs(1))
    with queue.claim() as batch:
        batch.done()
    with pytest.raises(SettingUnfit, match=r"another DateStyle than ISO.*run `SET DateStyle = ISO` on each new"):
        queue.stats()


@pytest.mark.parametrize("hold", ["transaction", "lease"])
def test_an_engine_in_autocommit_has_transactions_here(database: Backend, hold: HoldKind) -> None:
    queue = database.queue(bind=database.new_engine(isolation_level="AUTOCOMMIT"), hold=hold, on_done="delete")
    queue.enqueue(jobs(2))
    queue.check()
    assert queue.stats().due == 2
    assert queue.explain().verdict != "will not work"
    with queue.claim(1) as batch:
        batch.done()
    assert len(database.rows()) == 1

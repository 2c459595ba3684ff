"""Connections end, stall and lie about their last commit: work goes on, counted, and told of once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Queue, job_table
from claimjobs.dialects import Dialect
from claimjobs.errors import BatchRolledBack, ReadOnly, ServerUnreachable
from claimjobs.options import Liveness
from servers.proxy import Proxy
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.members import limited_user, set_read_only
from tests.conformance.owners import (
    age,
    await_beat,
    end_session,
    owner_row,
    session_of,
    states,
    still,
    stranger_holds,
)

QUICK = Liveness(lease=2.0)
PATIENT = Liveness(lease=60.0)
IMPATIENT = Liveness(patience=0.1)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about connections."""
    return [record.getMessage() for record in caplog.records if record.name == "claimjobs.connection"]


@contextmanager
def joined(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    """`work` in a thread that the block is to start; it must soon come to an end after it. Its error is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    try:
        yield thread
    finally:
        if thread.ident:
            thread.join(20)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


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
        monkeypatch.setattr("claimjobs.database.ping.FRESH", 0.0)
    queue = Queue(backend.url, dialect=backend.queue()._chosen.dialect)
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


@contextmanager
def at_the_end_of(engine: sa.Engine, word: str, strike: Callable[[], None]) -> Iterator[None]:
    """Call `strike` once, when the next statement that begins with or holds this word has been answered."""
    armed = [strike]

    def answered(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if word in statement and armed:
            armed.pop()()

    sa.event.listen(engine, "after_cursor_execute", answered)
    try:
        yield
    finally:
        sa.event.remove(engine, "after_cursor_execute", answered)
    assert not armed


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


# --- the answer to a commit is lost ------------------------------------------------------------------------


@contextmanager
def answer_lost(engine: sa.Engine, dialect: Dialect, happened: bool, then: Callable[[], None]) -> Iterator[None]:
    """The line breaks at the next commit: before it was sent, or (`happened`) before its answer came.

    Then `then` is called, before anything is tried again. The driver itself raises what it raises for that.
    """
    commit = engine.dialect.do_commit
    armed = [True]

    def do_commit(line: Any) -> None:
        if not armed:
            return commit(line)
        armed.clear()
        if happened:
            commit(line)
        dialect.sessions.break_connection(line.driver_connection)
        try:
            line.cursor().execute("SELECT 1")
        finally:
            then()
        raise AssertionError("the line was not cut")

    engine.dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        engine.dialect.do_commit = commit  # type: ignore[method-assign]
    assert not armed


both_ways = pytest.mark.parametrize("happened", [True, False], ids=["it happened", "it did not"])


@both_ways
def test_the_answer_to_a_claim_is_lost(backend: Backend, happened: bool) -> None:
    """No job stays claimed that is in nobody's hand."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(6))
    me, in_hand = queue.owner_id, queue.claim(1)
    with answer_lost(engine, backend.dialect, happened, lambda: None):
        batch = queue.claim(2)
    assert queue.owner_id == me
    assert len(batch) == 2
    claimed = [row["d"] for row in backend.rows() if row["status"] == "claimed"]
    assert claimed == sorted(names(batch) + names(in_hand))
    assert queue.report.transients == {"connection lost": 1}
    for each in (batch, in_hand):
        each.done()
        each.settle()
        assert each.lost == ()
    assert [(row["status"], row["attempts"]) for row in backend.rows()] == [("unclaimed", 0)] * 3


@both_ways
def test_the_answer_to_a_settle_is_lost(backend: Backend, happened: bool) -> None:
    """Nothing is reported lost, nothing is counted or written twice."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(5))
    batch = queue.claim(4)
    decide(batch)
    with answer_lost(engine, backend.dialect, happened, lambda: None):
        batch.settle()
    assert batch.lost == ()
    report = queue.report
    assert (report.done, report.retried, report.released, report.dead, report.lost) == (1, 1, 1, 1, 0)
    assert report.transients == {"connection lost": 1}
    assert [(row["d"], row["status"], row["attempts"]) for row in backend.rows()] == [
        ("0001", "unclaimed", 1),
        ("0002", "unclaimed", 0),
        ("0003", "dead", 1),
        ("0004", "unclaimed", 0),
    ]


def decide(batch: Batch) -> None:
    batch.done(batch[0])
    batch.fail(batch[1], "broken")
    batch.release(batch[2])
    batch.fail(batch[3], "broken for good", retry=False)


@both_ways
def test_declared_dead_before_a_settle_could_be_tried_again(backend: Backend, happened: bool) -> None:
    """Whether its own commit happened nobody can tell then: all is reported as lost, nothing written twice."""
    engine = backend.new_engine()
    queue, other = still(backend.queue(bind=engine)), still(backend.queue())
    queue.enqueue(jobs(2))
    me, batch = queue.owner_id, queue.claim(2)
    batch.done()

    def dies() -> None:
        age(backend, me)
        backend.wait_for(lambda: (other.reclaim(), owner_row(backend, me) is None)[-1], "it is reclaimed")

    with answer_lost(engine, backend.dialect, happened, dies):
        batch.settle()
    assert batch.lost == batch.jobs
    assert queue.report.lost == 2
    assert queue.owner_id > me
    assert states(backend) == ([] if happened else ["unclaimed"] * 2)


@both_ways
def test_the_answer_to_a_registration_is_lost(backend: Backend, happened: bool) -> None:
    """No owner is left behind that nobody is."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine)
    queue.enqueue(jobs(1))
    queue.check()
    commits: list[None] = []
    with answer_lost(engine, backend.dialect, happened, lambda: commits.append(None)):
        me = queue.owner_id
    assert commits
    assert [owner.id for owner in queue.stats().owners] == [me]


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


# --- a server of the test's own ----------------------------------------------------------------------------


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
        assert some.wait(10)
        own.server.kill()
        own.server.restart()
        own.wait_for(lambda: session_of(own, ids[0]) is not None, "the idle one comes back", 20)
    assert (idle.owner_id, busy.owner_id) == ids
    assert lost == []
    assert sorted(done) == sorted(set(done)) == [job["d"] for job in jobs(300)]
    assert own.rows() == []
    assert 2 <= len(told(caplog)) <= 4, "a beginning and an end for each of the two"
    busy.enqueue(jobs(1))
    assert busy.stats().unclaimed == 1


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


# --- much at once ------------------------------------------------------------------------------------------


def test_more_jobs_at_once_than_a_statement_has_parameters(database: Backend) -> None:
    queue = still(database.queue(liveness=PATIENT))
    queue.enqueue(jobs(66_000))
    with queue.claim(66_000) as batch:
        assert len(batch) == 66_000
        batch.done(*batch.jobs[:33_000])
    assert batch.lost == ()
    assert queue.stats().unclaimed == 33_000


def small_packets(own: Backend, size: int) -> None:
    """As an administrator may have set it; for sessions that begin from now on."""
    if own.family != "postgres":  # which knows no such limit
        own.run(f"SET GLOBAL max_allowed_packet = {size}")


def test_more_at_once_than_a_packet_holds(own: Backend) -> None:
    """A thousand rows of 6 kB, a thousand errors of 2 kB, packets of 1 MB, as an old configuration has them."""
    table = job_table("emails", sa.MetaData(), sa.Column("body", sa.Text))
    own.make(table)
    small_packets(own, 1 << 20)
    try:
        queue = still(own.bare_queue(table, bind=own.new_engine(), liveness=PATIENT))
        queue.enqueue({"body": "x" * 6_000} for _ in range(1_000))
        with queue.claim(1_000) as batch:
            assert len(batch) == 1_000
            for number, job in enumerate(batch.jobs):
                batch.fail(job, f"{number} " + "ß" * 5_000, retry=number % 2 == 0)
        assert batch.lost == ()
        assert (queue.report.retried, queue.report.dead) == (500, 500)
        assert queue.report.transients == {}
    finally:
        small_packets(own, 64 << 20)

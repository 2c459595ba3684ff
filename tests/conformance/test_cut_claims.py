"""Claims that were cut off: what they left in the database is found, and only that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.connections import answer_lost
from tests.conformance.jobs import counted, jobs, names
from tests.conformance.owners import declare_dead, end_session, hold_of, states, still
from tests.conformance.refusals import refusal, refused_after

LEASE_ONLY = Liveness(session_lock=False)


# --- by lease ----------------------------------------------------------------------------------------------


@contextmanager
def interrupted_after_commit(engine: sa.Engine) -> Iterator[None]:
    """Ctrl-C arrives when the next commit has happened, and before anybody hears of it."""
    commit = engine.dialect.do_commit

    def do_commit(line: Any) -> None:
        engine.dialect.do_commit = commit  # type: ignore[method-assign]
        commit(line)
        raise KeyboardInterrupt

    engine.dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        engine.dialect.do_commit = commit  # type: ignore[method-assign]


def test_what_an_interrupted_claim_left_is_released_by_the_next_one(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(4))
    me = queue.owner_id
    with interrupted_after_commit(engine):
        queue.claim(2)
    assert states(backend) == ["claimed", "claimed", "unclaimed", "unclaimed"]
    with queue.claim(1) as batch:
        assert names(batch) == ["0002"]
        assert states(backend) == ["unclaimed", "unclaimed", "claimed", "unclaimed"]
    assert (queue.owner_id, batch.lost) == (me, ())


def test_a_claim_whose_commit_comes_late_is_found_within_a_lease(backend: Backend) -> None:
    """Where no session lock tells that the old session has ended: the first look may have been too early."""
    queue = still(backend.queue(liveness=LEASE_ONLY))
    queue.enqueue(jobs(4))
    me = queue.owner_id
    lose_the_connection(backend, queue)
    queue.claim(1)
    assert states(backend) == ["claimed", "unclaimed", "unclaimed", "unclaimed"]
    backend.run("UPDATE jobs SET status = 'claimed', owner_id = :me WHERE d = '0001'", me=me)  # the late commit
    assert names(queue.claim(1)) == ["0002"]
    assert states(backend) == ["claimed", "unclaimed", "claimed", "unclaimed"]


def lose_the_connection(backend: Backend, queue: Any) -> None:
    """In the middle of work. Nobody holds a lock by which its session could be found."""
    connector = hold_of(queue)._connector
    session = connector.transaction(lambda c: c.scalar(sa.text(_ME[backend.family])))
    with backend.engine.connect() as connection:
        connection.execute(backend.dialect.sessions.end_session(session))
    before = connector.disconnects
    backend.wait_for(lambda: (connector.transaction(_nothing), connector.disconnects > before)[-1], "it is noticed")


_ME = dict.fromkeys(("mysql", "mariadb"), "SELECT connection_id()") | {"postgres": "SELECT pg_backend_pid()"}


def _nothing(connection: sa.Connection) -> object:
    return connection.scalar(sa.select(1))


def test_what_was_in_hand_under_an_id_that_is_dead_does_not_hide_a_stray(backend: Backend) -> None:
    """A job is held under the old id; a claim that was cut marks it again under the new id."""
    engine = backend.new_engine()
    queue, other = still(backend.queue(bind=engine)), still(backend.queue())
    queue.enqueue(jobs(3))
    before, batch = queue.owner_id, queue.claim(1)
    end_session(backend, before)
    assert other.reclaim() == 1
    hold_of(queue).owner.row.beat(patience=None)
    assert queue.owner_id > before
    backend.run("UPDATE jobs SET suspect = 0, run_at = :due", due=backend.rows()[1]["run_at"])
    hold_of(queue).restart_from_head()
    # Counted, so that a claim of a single statement is sent, and committed, by SQLAlchemy.
    with counted(engine), answer_lost(engine, backend.dialect, True, lambda: None):
        again = queue.claim(1)
    assert names(again) == ["0001"]
    assert states(backend) == ["unclaimed", "claimed", "unclaimed"]
    batch.settle()
    assert batch.lost == batch.jobs
    assert states(backend) == ["unclaimed", "claimed", "unclaimed"]


def test_a_cut_claim_of_an_owner_that_dies_of_it_leaves_nothing_claimed(backend: Backend) -> None:
    """Declared dead before it came back: it goes on under a new id, and what it left is handed back by others."""
    engine = backend.new_engine()
    queue, other = still(backend.queue(bind=engine)), still(backend.queue())
    queue.enqueue(jobs(3))
    before = queue.owner_id
    with answer_lost(engine, backend.dialect, True, lambda: declare_dead(backend, before)):
        batch = queue.claim(1)
    assert queue.owner_id > before
    other.reclaim()
    assert [row["d"] for row in backend.rows() if row["status"] == "claimed"] == names(batch)
    batch.settle()
    assert batch.lost == ()


# --- by transaction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["deadlock", "lock timeout", "serialization", "interrupted"])
def test_a_claim_by_transaction_is_rolled_back_and_tried_again(backend: Backend, kind: str) -> None:
    """The server refuses it in the middle, with the jobs locked already."""
    engine = backend.new_engine()
    queue = backend.queue(bind=engine, hold="transaction")
    queue.enqueue(jobs(3))
    with refused_after(engine, "FOR ", refusal(backend, kind)), queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        assert backend.locked() == 2
        batch.done()
    assert queue.report.transients == {kind: 1}
    assert [row["d"] for row in backend.rows()] == ["0002"]
    assert backend.locked() == 0


def test_a_claim_by_transaction_comes_through_a_connection_that_is_lost(backend: Backend) -> None:
    queue = backend.queue(hold="transaction")
    queue.enqueue(jobs(3))
    queue.claim(1).settle()
    backend._database.end_sessions()
    with queue.claim(2) as batch:
        assert names(batch) == ["0000", "0001"]
        batch.done()
    assert queue.report.transients["connection lost"] >= 1
    assert backend.locked() == 0


def test_a_claim_by_transaction_that_fails_for_good_leaves_nothing_locked(backend: Backend) -> None:
    engine = backend.new_engine()
    queue = backend.queue(bind=engine, hold="transaction", liveness=Liveness(patience=0.0))
    queue.enqueue(jobs(3))
    with refused_after(engine, "FOR ", refusal(backend, "deadlock")), pytest.raises(sa.exc.DBAPIError):
        queue.claim(2)
    assert backend.locked() == 0
    with queue.claim(3) as batch:
        assert len(batch) == 3

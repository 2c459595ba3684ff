"""The server was away, and everybody with it: nobody is buried for that."""

from __future__ import annotations

from datetime import datetime

import pytest
import sqlalchemy as sa

from claimjobs.dialects.types import database_now
from claimjobs.lease.reaper import Reaper
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import (
    LONG_AGO,
    OWNERS,
    age,
    end_session,
    hold_of,
    owner_row,
    session_of,
    states,
    still,
    write_owner,
)


def uptime(backend: Backend) -> float:
    """Seconds since when the server runs."""
    with backend.engine.connect() as connection:
        now: datetime = connection.execute(sa.select(database_now())).scalar_one()
        return (now - backend.dialect.sessions.server_since(connection)).total_seconds()


def test_while_the_server_was_away_nobody_was_silent(backend: Backend) -> None:
    """The last beat is older than a lease, the server is not: its owner has what is left of a lease to come back."""
    queue, other = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(1))
    me, batch = queue.owner_id, queue.claim(1)
    end_session(backend, me)
    write_owner(backend, me, beat=LONG_AGO, server_since=LONG_AGO, lease=uptime(backend) + 3600.0)
    assert other.reclaim() == 0
    assert owner_row(backend, me)["died"] is None
    hold_of(queue).owner.row.beat(patience=None)
    assert queue.owner_id == me
    assert session_of(backend, me) is not None
    with batch:
        batch.done()
    assert batch.lost == ()


def test_who_lost_its_own_connection_waits_until_others_may_be_back(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free lock tells nothing to the first one back: what ended its session may have ended everybody's."""
    monkeypatch.setattr("claimjobs.database.kept_connection.CALM_SECONDS", 3600.0)
    queue, first = still(backend.queue()), still(backend.queue())
    queue.enqueue(jobs(2))
    me, reaper = queue.owner_id, reaper_of(first)
    queue.claim(2)
    assert reaper.dead() == []
    for each in (queue, first):
        end_session(backend, each.owner_id)
    hold_of(first).owner.row.beat(patience=None)
    assert reaper.dead() == []
    assert states(backend) == ["claimed", "claimed"]
    monkeypatch.setattr("claimjobs.database.kept_connection.CALM_SECONDS", 0.0)
    [dead] = reaper.dead()
    assert dead.id == me
    assert reaper.reclaim(dead) == 2


def test_a_session_lock_that_is_never_free_again_is_not_waited_for_without_end(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds it is no earlier session of the owner, so it is not ended: the owner goes on, and its lease alone
    tells that it lives. Also who reclaims the owner's jobs does not end it.
    """
    monkeypatch.setattr("claimjobs.lease.owner_row.END_OF_SESSION_SECONDS", 0.1)
    queue = still(backend.queue())
    queue.enqueue(jobs(1))
    me, batch, owner = queue.owner_id, queue.claim(1), hold_of(queue).owner.row
    with backend.new_engine().connect() as stranger:
        end = sa.text(f"SELECT pg_terminate_backend({session_of(backend, me)})")
        stranger.execute(end if backend.family == "postgres" else sa.text(f"KILL {session_of(backend, me)}"))
        backend.wait_for(lambda: session_of(backend, me) is None, "its session ends")
        lock = backend.dialect.sessions.try_session_lock(OWNERS, sa.literal(me, sa.Integer))
        assert stranger.scalar(sa.select(lock))
        owner.beat(patience=None)
        assert not owner.locked
        with batch:
            batch.done()
        assert batch.lost == ()
        age(backend, me)
        assert still(backend.queue()).reclaim() == 0
        assert owner_row(backend, me) is None
        assert stranger.scalar(sa.select(sa.literal(1))) == 1


def reaper_of(queue: object) -> Reaper:
    """The one on the owner's own connection, whose losses it knows of."""
    return hold_of(queue).owner.reaper  # type: ignore[arg-type]

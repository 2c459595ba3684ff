"""Owners for tests: looked at, aged, cut off; and their hearts stopped, so that the test says when they beat."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.dialects.types import database_now
from claimjobs.lease.lease_hold import LeaseHold
from claimjobs.lease.owner import Owner
from claimjobs.options import Liveness
from claimjobs.table.definitions import article_table, owner_table
from tests.backends import Backend

JOBS = article_table()
OWNERS = owner_table()
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def hold_of(queue: Queue) -> LeaseHold:
    """The hand of a queue, registered if it was not yet."""
    hand = queue._consumer.hold
    assert isinstance(hand, LeaseHold)
    return hand


def owner_of(queue: Queue) -> Owner | None:
    """The owner by which a queue is woken; None if it has none, or none yet."""
    return queue._consumer.hold.owner


def still(queue: Queue) -> Queue:
    """The queue, registered, with its heart stopped: if it is registered here, that has never beaten."""
    with patch.object(Owner, "_run"):
        owner = hold_of(queue).owner
    owner.stop()
    owner.sleeper.stop()
    return queue


def hearts() -> list[str]:
    """The threads that beat for a queue, by their names."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("claimjobs heart")]


def owner_row(backend: Backend, owner_id: int) -> Any:
    """The row of an owner; None where there is none."""
    with backend.engine.connect() as connection:
        return connection.execute(sa.select(OWNERS).where(OWNERS.c.id == owner_id)).mappings().first()


def write_owner(backend: Backend, owner_id: int, **values: Any) -> None:
    """Change the row of an owner behind its back."""
    with backend.engine.begin() as connection:
        connection.execute(sa.update(OWNERS).where(OWNERS.c.id == owner_id).values(**values))


def await_beat(backend: Backend, owner_id: int) -> None:
    """Return when the owner has given its next sign of life."""
    seen = owner_row(backend, owner_id)["beat"]
    backend.wait_for(lambda: owner_row(backend, owner_id)["beat"] > seen, f"owner {owner_id} beats")


def age(backend: Backend, *owner_ids: int) -> None:
    """The last sign of life of these owners was long ago, and the server has run for longer than a lease since."""
    backend.wait_for(lambda: _server_age(backend) > Liveness.lease + 2, "the server is older than a lease")
    for owner_id in owner_ids:
        write_owner(backend, owner_id, beat=LONG_AGO)


def _server_age(backend: Backend) -> float:
    with backend.engine.connect() as connection:
        now: datetime = connection.execute(sa.select(database_now())).scalar_one()
        return (now - backend.dialect.sessions.server_since(connection)).total_seconds()


def declare_dead(backend: Backend, owner_id: int) -> None:
    """Declared dead; its jobs are not handed back yet, and its session lasts."""
    write_owner(backend, owner_id, died=database_now())


def session_of(backend: Backend, owner_id: int) -> int | None:
    """The session that holds the lock of an owner."""
    with backend.engine.connect() as connection:
        holder = sa.select(backend.dialect.sessions.lock_holder(OWNERS, sa.literal(owner_id, sa.Integer)))
        session: int | None = connection.scalar(holder)
        return session


def end_session(backend: Backend, owner_id: int) -> None:
    """End the session that holds the lock of an owner, as an administrator would; return when it is gone."""
    session = session_of(backend, owner_id)
    assert session is not None
    with backend.engine.connect() as connection:
        connection.execute(backend.dialect.sessions.end_session(session))
    backend.wait_for(lambda: session_of(backend, owner_id) != session, f"session {session} ends")


def states(backend: Backend) -> list[str]:
    """The status of each job."""
    return [row["status"] for row in backend.rows()]


@contextmanager
def stranger_holds(backend: Backend, *those: str) -> Iterator[None]:
    """A transaction of some other program has these jobs locked."""
    with backend.engine.connect().execution_options(isolation_level="READ COMMITTED") as other, other.begin():
        for id_ in other.scalars(sa.select(JOBS.c.id).where(JOBS.c.d.in_(those))).all():
            other.execute(sa.select(JOBS).where(JOBS.c.id == id_).with_for_update()).all()
        yield

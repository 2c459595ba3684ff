"""Two tenants, each with a schema of its own: owners of the same id, of which neither answers for the other.

Where a database has schemas they are in one database; elsewhere a schema is a database.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.table.definitions import owner_table
from tests.backends import Backend, Servers
from tests.conformance.jobs import jobs
from tests.conformance.owners import age, end_session, hold_of, owner_row, session_of, states, still
from tests.conformance.sleepers import PATIENT
from tests.tenants import neighbour_of

_MYSQL = "ALTER TABLE claimjobs_owners AUTO_INCREMENT = 2000000000"
NEXT_ID = {
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "postgres": "ALTER TABLE claimjobs_owners ALTER COLUMN id RESTART WITH 2000000000",
}
"""SQL that sets the id of the next owner. Without it the first id tells when the table was made."""


@pytest.fixture
def neighbour(backend: Backend, servers: Servers) -> Iterator[Backend]:
    with neighbour_of(backend, servers) as other:
        yield other


def owners_of(backend: Backend) -> sa.Table:
    """The table of owners of this tenant, named with its schema."""
    schema = "tenant1" if backend.has("schemas") else backend.engine.url.database
    return owner_table(sa.MetaData(schema=schema))


def namesakes(backend: Backend, neighbour: Backend) -> tuple[Queue, Queue]:
    """A queue in each database, each with two claimed jobs, whose owners have the same id."""
    for each in (backend, neighbour):
        each.make()
        each.run(NEXT_ID[each.family])
    here, there = still(backend.queue()), still(neighbour.queue(liveness=PATIENT))
    for queue in (here, there):
        queue.enqueue(jobs(2))
        assert len(queue.claim(2)) == 2
    assert here.owner_id == there.owner_id
    return here, there


def test_an_owner_registers_beside_its_namesake_and_ends_no_session_of_its(
    backend: Backend, neighbour: Backend
) -> None:
    here, there = namesakes(backend, neighbour)
    session, other = session_of(backend, here.owner_id), session_of(neighbour, there.owner_id)
    assert session is not None
    assert other is not None
    assert session != other
    assert here.report.transients == there.report.transients == {}
    assert states(backend) == states(neighbour) == ["claimed", "claimed"]


def test_a_death_is_not_hidden_by_a_namesake_that_lives(backend: Backend, neighbour: Backend) -> None:
    here, there = namesakes(backend, neighbour)
    reaper, living = still(backend.queue()), session_of(neighbour, there.owner_id)
    end_session(backend, here.owner_id)
    assert session_of(backend, here.owner_id) is None
    assert reaper.reclaim() == 2
    assert session_of(neighbour, there.owner_id) == living
    assert states(neighbour) == ["claimed", "claimed"]


def test_a_namesake_keeps_its_session_when_a_silent_owner_is_reclaimed(backend: Backend, neighbour: Backend) -> None:
    """Its own session is ended, for it still lasts; and no other."""
    here, there = namesakes(backend, neighbour)
    reaper, living, me = still(backend.queue()), session_of(neighbour, there.owner_id), here.owner_id
    age(backend, me)
    assert reaper.reclaim() == 2
    backend.wait_for(lambda: session_of(backend, me) is None, "its session ends")
    assert owner_row(backend, me) is None
    assert session_of(neighbour, there.owner_id) == living
    assert there.reclaim() == 0
    assert states(neighbour) == ["claimed", "claimed"]


def test_a_session_of_a_stranger_that_has_the_lock_of_a_dead_owner_is_not_ended(
    backend: Backend, neighbour: Backend
) -> None:
    """An owner writes which session has its lock."""
    here, there = namesakes(backend, neighbour)
    reaper, me = still(backend.queue()), here.owner_id
    end_session(backend, me)
    with neighbour.new_engine().connect() as stranger:
        lock = backend.dialect.sessions.try_session_lock(owners_of(backend), sa.literal(me, sa.Integer))
        assert stranger.scalar(sa.select(lock))
        assert reaper.reclaim() == 0  # the lock is held, and its lease is not over
        age(backend, me)
        assert reaper.reclaim() == 2
        assert stranger.scalar(sa.select(sa.literal(1))) == 1
    assert there.reclaim() == 0


def test_each_tenant_has_a_reaper_of_its_own(backend: Backend, neighbour: Backend) -> None:
    """If two had the same lock, jobs of unknown owners of one of them would wait for the other's reaper."""
    queues = [backend.queue(), neighbour.queue()]
    for queue in queues:
        heart = hold_of(queue).owner
        backend.wait_for(lambda heart=heart: heart.row.leads, "it leads")  # type: ignore[misc]

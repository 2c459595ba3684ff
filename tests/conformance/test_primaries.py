"""On one of several primaries, as the server is asked: which claims are refused, and which sign of death counts.

Real groups are in tests/cluster/test_primaries.py. Here a dialect says of any server that it is one of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.dialects import Dialect
from claimjobs.errors import ServerUnfit, SessionsShared
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import age, end_session, owner_row, still
from tests.conformance.test_explain import of

UNSAFE: Mapping[str, dict[str, Any]] = {
    "claims='batches'": {"claims": "batches"},
    "hold='transaction'": {"hold": "transaction"},
}
LEASE = Liveness(lease=60)


class Primaries:
    """What a dialect says of the server. It can be changed."""

    several = True

    def dialect(self, base: Dialect) -> Dialect:
        """The dialect of a backend, which says this."""
        primaries = self

        class Sessions(type(base.sessions)):  # type: ignore[misc]
            def is_one_of_several_primaries(self, connection: sa.Connection) -> bool:
                return primaries.several

            def catch_up(self, connection: sa.Connection) -> None:
                """The server knows no others."""

        class OneOfSeveral(type(base)):  # type: ignore[misc]
            sessions = Sessions()

        return OneOfSeveral()


@pytest.mark.requires("current reads")
def test_a_new_session_waits_in_a_transaction_until_its_server_has_applied_all(backend: Backend) -> None:
    """A server that is alone has no variable for it. So here it is one that each has."""

    _, *transaction, _ = backend.dialect.sessions.catching_up

    class Alone(type(backend.dialect.sessions)):  # type: ignore[misc]
        catching_up = ("SET SESSION wait_timeout = 77", *transaction, "SET SESSION wait_timeout = 78")

    with backend.engine.connect() as connection:
        Alone().catch_up(connection)
        assert connection.exec_driver_sql("SELECT @@wait_timeout").scalar_one() == 78


def queue_on_one_of_several(backend: Backend, **options: Any) -> Queue:
    return backend.queue(dialect=Primaries().dialect(backend.dialect), liveness=LEASE, **options)


@pytest.mark.parametrize("way", UNSAFE)
def test_claims_that_write_no_job_are_refused_before_the_first_claim(backend: Backend, way: str) -> None:
    queue = queue_on_one_of_several(backend, **UNSAFE[way])
    queue.enqueue(jobs(1))
    for begin in (queue.check, queue.claim):
        with pytest.raises(ServerUnfit, match="would work on the same jobs") as told:
            begin()
        assert "cannot work for table 'jobs' here" in str(told.value)
        assert "add --hold lease --claims rows" in str(told.value)
    assert of(queue.explain(), "settings").verdict == "will not work"
    assert backend.rows()[0]["status"] == "unclaimed"


@pytest.mark.parametrize("way", UNSAFE)
def test_they_are_refused_on_a_new_connection_when_the_group_has_changed(backend: Backend, way: str) -> None:
    """A consumer may move to a member that takes writes now, too."""
    primaries = Primaries()
    primaries.several = False
    queue = backend.queue(dialect=primaries.dialect(backend.dialect), liveness=LEASE, **UNSAFE[way])
    queue.enqueue(jobs(2))
    with queue.claim(1) as batch:
        batch.done()
    primaries.several = True
    queue.close()
    with pytest.raises(ServerUnfit):
        queue.claim(1)


def test_a_session_lock_that_is_declared_is_refused(backend: Backend) -> None:
    dialect = Primaries().dialect(backend.dialect)
    with pytest.raises(SessionsShared, match="primaries do not see each other's locks"):
        backend.queue(dialect=dialect, liveness=Liveness(session_lock=True)).claim()


def test_only_the_lease_tells_who_is_dead(backend: Backend) -> None:
    dialect = Primaries().dialect(backend.dialect)
    queue = still(backend.queue(dialect=dialect))
    queue.enqueue(jobs(3))
    batch = queue.claim(2)
    assert owner_row(backend, queue.owner_id)["server_since"] is None
    assert [owner.lock for owner in queue.stats().owners] == ["none"]
    other = still(backend.queue(dialect=dialect))
    assert other.reclaim() == 0
    age(backend, queue.owner_id)
    assert other.reclaim() == 2
    batch.settle()
    assert names(batch.lost) == names(batch)


def test_a_free_lock_of_an_owner_from_before_is_no_sign_of_death(backend: Backend) -> None:
    """It took the lock when there was one primary. Another one that was started in the same second shows it as free."""
    owner = still(backend.queue(liveness=LEASE))
    owner.enqueue(jobs(1))
    owner.claim()
    end_session(backend, owner.owner_id)
    assert still(queue_on_one_of_several(backend)).reclaim() == 0
    assert still(backend.queue(liveness=LEASE)).reclaim() == 1

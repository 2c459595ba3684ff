"""Both ends of a consumer's connection give up an other end that has vanished. tests/cluster lets a host vanish."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Liveness, Queue
from claimjobs.dialects.sessions import keepalive
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.owners import hold_of, still

LEASE = 8.0
SILENCE = {"mariadb": "SELECT @@wait_timeout", "postgres": "SHOW tcp_user_timeout", "mysql": "SELECT @@wait_timeout"}
ENDS_AFTER = {"mariadb": 9, "postgres": "8000", "mysql": 9}


def silence(backend: Backend, connection: sa.Connection) -> Any:
    """How long the server waits for the client of this session."""
    return connection.scalar(sa.text(SILENCE[backend.family]))


def patience(backend: Backend, connection: sa.Connection) -> int:
    """How many milliseconds the client waits for the server; 0: as long as the operating system does."""
    with backend.dialect.sessions._socket(connection.connection.driver_connection) as line:
        return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.fixture
def elsewhere(backend: Backend) -> Iterator[sa.Connection]:
    """A connection that is not a consumer's."""
    with backend.engine.connect() as connection:
        yield connection


@pytest.mark.parametrize("session_lock", [None, False])
def test_an_owner_and_its_server_wait_a_lease_for_each_other(backend: Backend, session_lock: bool | None) -> None:
    queue = still(backend.queue(liveness=Liveness(lease=LEASE, session_lock=session_lock)))
    queue.enqueue(jobs(1))
    with queue.claim(1) as batch:
        for attempt in hold_of(queue)._connector.attempts():
            with attempt as connection:
                assert silence(backend, connection) == ENDS_AFTER[backend.family]
                assert patience(backend, connection) == LEASE * 1000
        batch.done()


def test_an_owner_may_be_idle_for_longer_than_its_account(database: Backend) -> None:
    """Its session lock would be gone, and its jobs with it."""
    if database.family != "postgres":
        pytest.skip("wait_timeout, which is set for an owner, is all that ends an idle session")
    engine = database.new_engine(connect_args={"options": "-c idle_session_timeout=5min"})
    queue = still(database.queue(bind=engine))
    queue.enqueue(jobs(1))
    with queue.claim(1) as batch:
        limit = "SHOW idle_session_timeout"
        assert hold_of(queue)._connector.scalar(sa.text(limit)) == "0"
        batch.done()


def test_an_open_transaction_is_given_up_unless_its_handler_may_not_be_silent(
    backend: Backend, elsewhere: sa.Connection
) -> None:
    """A handler may take longer than a lease without a statement: only TCP tells that its machine is gone."""
    queue: Queue = backend.queue(hold="transaction", liveness=Liveness(lease=LEASE))
    queue.enqueue(jobs(1))
    ends_idle = backend.dialect.sessions.ends_idle_clients
    with queue.claim(1) as batch:
        usual = silence(backend, elsewhere), patience(backend, elsewhere)
        limited = ENDS_AFTER[backend.family], LEASE * 1000
        assert (silence(backend, batch.connection), patience(backend, batch.connection)) == (
            usual if ends_idle else limited
        )
        batch.done()


@pytest.mark.parametrize(("seconds", "probes"), [(2.0, (1, 1, 1)), (10.0, (5, 2, 2)), (60.0, (30, 12, 2))])
def test_probes_take_about_as_long_as_a_lease(seconds: float, probes: tuple[int, int, int]) -> None:
    assert keepalive(seconds) == probes
    first, between, count = probes
    assert abs(first + between * count - seconds) <= between

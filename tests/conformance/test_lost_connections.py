"""A connection that the driver knows is lost: it raises an error where SQLAlchemy does not expect one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from claimjobs.errors import BatchRolledBack
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import hold_of, still


class Breaker:
    """Closes a connection of an engine below SQLAlchemy, just before its isolation level is set."""

    def __init__(self, engine: sa.Engine) -> None:
        self.after = 0
        """How many times the isolation level is set first."""
        self.is_on = False
        sa.event.listen(engine, "set_connection_execution_options", self._close)

    def _close(self, connection: sa.Connection, options: dict[str, Any]) -> None:
        if self.is_on and "isolation_level" in options:
            if self.after == 0:
                self.is_on = False
                close_below(connection)
            self.after -= 1


def close_below(connection: sa.Connection | None) -> None:
    """The driver knows that the connection is lost; SQLAlchemy does not."""
    assert connection is not None
    driver_connection: Any = connection.connection.dbapi_connection
    driver_connection.close()


@pytest.fixture
def breaker(backend: Backend) -> Iterator[tuple[Queue, Breaker]]:
    """A queue whose engine knows no errors yet, and what breaks its next connection."""
    engine = backend.new_engine(isolation_level="SERIALIZABLE")  # so that a level is set for each enqueue
    queue = backend.queue(bind=engine)
    yield queue, Breaker(engine)
    engine.dispose()


def test_an_enqueue_raises_what_sqlalchemy_would(backend: Backend, breaker: tuple[Queue, Breaker]) -> None:
    queue, broken = breaker
    broken.is_on = True
    with pytest.raises(sa.exc.DBAPIError) as raised:
        queue.enqueue(jobs(2))
    assert raised.value.connection_invalidated
    assert queue.enqueue(jobs(3)) == 3
    assert len(backend.rows()) == 3


def test_what_breaks_after_the_commit_is_no_error_of_the_enqueue(
    backend: Backend, breaker: tuple[Queue, Breaker]
) -> None:
    if not backend.dialect.switches_autocommit_freely:
        pytest.skip(f"on {backend.name} no level is set after the commit")
    queue, broken = breaker
    broken.is_on, broken.after = True, 1
    assert queue.enqueue(jobs(3)) == 3
    assert not broken.is_on
    assert len(backend.rows()) == 3


def test_a_new_connection_that_is_lost_at_once_is_replaced(backend: Backend, breaker: tuple[Queue, Breaker]) -> None:
    queue, broken = breaker
    queue.enqueue(jobs(2))
    broken.is_on = True
    with queue.claim(2) as batch:
        assert len(names(batch)) == 2
        batch.done()
    assert not broken.is_on
    assert batch.lost == ()


def test_a_claim_and_a_settle_go_on_with_another_connection(backend: Backend) -> None:
    queue = still(backend.queue())
    queue.enqueue(jobs(4))
    connector = hold_of(queue)._connector
    done = []
    for _ in range(2):
        close_below(connector._connection)
        batch = queue.claim(2)
        done += names(batch)
        close_below(connector._connection)
        with batch:
            batch.done()
        assert batch.lost == ()
    assert len(done) == 4
    assert backend.rows() == []


def test_a_transaction_hold_raises_that_its_batch_is_rolled_back(backend: Backend) -> None:
    queue = backend.queue(hold="transaction")
    queue.enqueue(jobs(2))
    batch = queue.claim(2)
    close_below(batch.connection)
    batch.done()
    with pytest.raises(BatchRolledBack):
        batch.settle()
    assert len(queue.claim(2)) == 2


def test_a_wait_on_a_lost_connection_raises_what_sqlalchemy_would(backend: Backend) -> None:
    """So the sleep that it was for is given up, and the heartbeat goes on."""
    connector = hold_of(still(backend.queue()))._connector
    connector.scalar(sa.select(1))
    close_below(connector._connection)
    with pytest.raises(sa.exc.DBAPIError), connector.idle():
        pass
    assert connector.scalar(sa.select(1)) == 1

"""Pause and resume a queue: what an operator tells all consumers of a table, through the database."""

from __future__ import annotations

import contextlib
from typing import Final

import sqlalchemy as sa

from claimjobs.database.clock import age_at
from claimjobs.database.connect import connected
from claimjobs.database.connection import Connector
from claimjobs.database.transactions import unless_hidden
from claimjobs.enqueue.notifier import ROWS_PER_OWNER, Notifier
from claimjobs.statements import owners
from claimjobs.table.backend import Backend, check_shared

EVERYBODY: Final = 10_000 * ROWS_PER_OWNER
"""A number of rows that wakes every idle owner."""


def pause(engine: sa.Engine, connector: Connector, backend: Backend, reason: str | None) -> None:
    """Write that the queue is paused. Raises TableMissing if there is no table of queues."""
    with connected(engine) as connection:
        check_shared(connection, backend, backend.queues)
    name = backend.roles.recorded_as
    again = owners.pause(backend.queues, name, reason)
    first = owners.pause_first(backend.queues, name, reason)
    try:
        for attempt in connector.attempts():
            with attempt as connection:
                if not connection.execute(again).rowcount:
                    connection.execute(first)
    except sa.exc.IntegrityError:  # another session has inserted the row just now
        connector.write(again)


def resume(engine: sa.Engine, connector: Connector, backend: Backend, notifier: Notifier) -> bool:
    """Write that the queue is not paused, and wake its consumers; return whether it was paused. Raises TableMissing."""
    queues = backend.queues
    with connected(engine) as connection:
        check_shared(connection, backend, queues)
    was_paused = connector.write(owners.resume(queues, backend.roles.recorded_as)) > 0
    with connected(engine) as connection, contextlib.suppress(sa.exc.SQLAlchemyError), connection.begin():
        notifier.wake(connection, EVERYBODY, inserted=False)
    return was_paused


def read_pause(connection: sa.Connection, backend: Backend) -> tuple[float | None, str | None]:
    """For how many seconds the queue has been paused, and why. A transaction as a hold needs no table of queues."""
    row = None
    with unless_hidden(connection, backend.dialect, needed=backend.by_lease):
        row = connection.execute(owners.paused(backend.queues, backend.roles.recorded_as)).first()
    return (None, None) if row is None else (age_at(row.now, row.paused), row.reason)

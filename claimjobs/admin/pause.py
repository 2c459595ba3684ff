"""Pause and resume a queue: what an operator tells all consumers of a table, through the database."""

from __future__ import annotations

import contextlib
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.connection import Connector
from claimjobs.enqueue.notifier import A_BATCH, Notifier
from claimjobs.statements import pause as statements
from claimjobs.table.backend import Backend, check_queues

EVERYBODY: Final = 10_000 * A_BATCH
"""So many rows wake every idle owner."""


class PauseSwitch:
    """Pauses and resumes the queue of one table. Raises TableMissing if there is no table of queues."""

    def __init__(self, engine: sa.Engine, connector: Connector, backend: Backend) -> None:
        self._engine = engine
        self._connector = connector
        self._queue = backend.queues, backend.roles.claims
        with connected(engine) as connection:
            check_queues(connection, backend)

    def pause(self, reason: str | None) -> None:
        """Write that the queue is paused."""
        try:
            self._connector.transaction(lambda connection: self._write(connection, reason))
        except sa.exc.IntegrityError:  # another session has inserted the row just now
            self._connector.transaction(lambda connection: self._write(connection, reason))

    def _write(self, connection: sa.Connection, reason: str | None) -> None:
        if not connection.execute(statements.update(*self._queue, reason)).rowcount:
            connection.execute(statements.insert(*self._queue, reason))

    def resume(self, notifier: Notifier) -> bool:
        """Write that the queue is not paused, and wake its consumers; return whether it was paused."""
        was_paused = self._connector.write(statements.delete(*self._queue)) > 0
        with connected(self._engine) as connection, contextlib.suppress(sa.exc.SQLAlchemyError), connection.begin():
            notifier.wake(connection, EVERYBODY)
        return was_paused

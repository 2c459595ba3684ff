"""TurnCalls: after jobs were settled or given back, a key whose jobs were all in hand has its turn at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from claimjobs.database.connection import Connector
from claimjobs.dialects.types import database_now
from claimjobs.errors import ClaimjobsError
from claimjobs.job import Job
from claimjobs.statements import turns as statements
from claimjobs.table.backend import Backend


class TurnCalls:
    """Does nothing for a queue without limits per key. An error has no other effect: the key waits for some seconds."""

    def __init__(self, connector: Connector, backend: Backend) -> None:
        turns = backend.turns
        self._connector = connector
        self._turns = turns if turns is not None and turns.limits else None
        if self._turns is not None:
            self._call_all = statements.call(self._turns, database_now())
            self._call = backend.dialect.restrict_to_keys(self._call_all, self._turns.key, None)

    def call(self, jobs: Sequence[Job]) -> None:
        """Jobs were settled, and their claims are committed as such: after a claim that has counted them."""
        if self._turns is None or not jobs:
            return
        names = [column.name for column in self._turns.of_jobs]
        keys = dict.fromkeys(job[names[0]] if len(names) == 1 else tuple(job[name] for name in names) for job in jobs)
        self._send(self._call, {"claimjobs_keys": list(keys)})

    def call_all(self) -> None:
        """Jobs of any keys were given back."""
        if self._turns is not None:
            self._send(self._call_all, {})

    def _send(self, statement: Any, given: dict[str, Any]) -> None:
        with suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
            for attempt in self._connector.attempts(0.0, autocommit=True):
                with attempt as connection:
                    connection.execute(statement, given)

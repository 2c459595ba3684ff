"""KeyCalls: after jobs were settled or given back, a key that a limit has held back is next at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connection import Connector
from claimjobs.dialects.types import database_now
from claimjobs.errors import ClaimjobsError
from claimjobs.job import Job, key_of
from claimjobs.statements import key_rows as statements
from claimjobs.table.backend import Backend

PATIENCE: Final = 1.0
"""Seconds for which it is tried again after a conflict with a claim of the same keys."""


class KeyCalls:
    """Does nothing for a queue without limits per key. An error has no other effect: the key waits for some seconds."""

    def __init__(self, connector: Connector, backend: Backend) -> None:
        key_rows = backend.key_rows
        self._connector = connector
        self._key_rows = key_rows if key_rows is not None and key_rows.limits else None
        if self._key_rows is not None:
            self._call_all = statements.call(self._key_rows, database_now())
            self._call = backend.dialect.restrict_to_keys(self._call_all, self._key_rows.key, None)

    def call(self, jobs: Sequence[Job]) -> None:
        """Jobs were settled, and their claims are committed as such: after a claim that has counted them."""
        if self._key_rows is None or not jobs:
            return
        names = [column.name for column in self._key_rows.of_jobs]
        keys = dict.fromkeys(key_of([job[name] for name in names]) for job in jobs)
        self._send(self._call, {"claimjobs_keys": list(keys)})

    def call_all(self) -> None:
        """Jobs of any keys were given back."""
        if self._key_rows is not None:
            self._send(self._call_all, {})

    def _send(self, statement: Any, given: dict[str, Any]) -> None:
        with suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
            for attempt in self._connector.attempts(PATIENCE, autocommit=True):
                with attempt as connection:
                    connection.execute(statement, given)

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
    """Does nothing for a queue without `per_key`. An error has no other effect: the key waits for some seconds."""

    def __init__(self, connector: Connector, backend: Backend) -> None:
        self._connector, self._key_rows = connector, backend.key_rows
        if (rows := backend.key_rows) is not None:
            calls = {which: statements.call(rows, database_now(), given_back=which) for which in (False, True)}
            self._call_all = calls[False]
            self._calls = {which: backend.dialect.restrict_to_keys(one, rows.key, None) for which, one in calls.items()}

    def call(self, jobs: Sequence[Job], *, given_back: bool) -> None:
        """Jobs were settled, and their claims are committed as such: after a claim that has counted them. `given_back`:
        some are unclaimed again.
        """
        rows = self._key_rows
        if rows is None or not jobs or not (rows.limits or given_back):
            return
        names = [column.name for column in rows.of_jobs]
        keys = dict.fromkeys(key_of([job[name] for name in names]) for job in jobs)
        self._send(self._calls[given_back], {"claimjobs_keys": list(keys)})

    def call_all(self) -> None:
        """Jobs of any keys were given back."""
        if self._key_rows is not None and self._key_rows.limits:
            self._send(self._call_all, {})

    def _send(self, statement: Any, given: dict[str, Any]) -> None:
        with suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
            for attempt in self._connector.attempts(PATIENCE, autocommit=True):
                with attempt as connection:
                    connection.execute(statement, given)

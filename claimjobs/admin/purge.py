"""Deletes old jobs that are kept, in small committed chunks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.errors import RowsRefused
from claimjobs.settle.outcome_table import keys_for
from claimjobs.settle.refusals import WriteInHalves
from claimjobs.statements import purge as statements
from claimjobs.statements.lock import lock_those
from claimjobs.table.backend import Backend
from claimjobs.table.predicates import Where, predicates_of

Kept = Literal["done", "dead"]

AT_ONCE: Final = 1_000
"""Jobs of one transaction: no lock is held for long, and an error undoes no earlier chunk."""


class Purge:
    """The old jobs of one status. Each delete checks status and age again, so a job that was retried stays."""

    def __init__(self, connector: Connector, backend: Backend, status: Kept) -> None:
        """Raises ValueError for a status other than done and dead."""
        if status not in get_args(Kept):
            raise ValueError(f"jobs that are {status!r} are not purged: give 'done' or 'dead'")
        self._connector = connector
        self._backend = backend
        self._status = status

    def run(self, now: sa.ColumnElement[Any], age: timedelta, *, where: Where, dry_run: bool) -> int:
        """Delete or only count them; return how many. Raises ColumnMissing or BadPredicate."""
        until = self._connector.transaction(lambda connection: _instant(connection, now)) - age
        roles, dialect = self._backend.roles, self._backend.dialect
        old, narrower = statements.old(roles, self._status, until), predicates_of(where, roles, dialect.lexis)
        with predicate_errors(dialect):
            if dry_run:
                return int(self._connector.scalar(statements.count_chosen(roles, (*old, *narrower))))
            return self._delete(old, narrower)

    def _delete(self, old: statements.Predicates, narrower: statements.Predicates) -> int:
        roles, dialect = self._backend.roles, self._backend.dialect
        lock = lock_those(roles, dialect, narrower) if narrower else None
        delete = statements.delete_old(roles, dialect, old)
        refused: dict[Key, str] = {}

        deleted, after = 0, None
        while True:
            page = statements.purge_page(roles, dialect, (*old, *narrower), after)
            found = self._connector.rows(page, {"claimjobs_limit": AT_ONCE})
            parts = WriteInHalves([roles.key_in(row._mapping) for row in found], dialect, refused)
            for keys in parts:
                try:
                    deleted += self._delete_keys(delete, lock, keys)
                except sa.exc.DBAPIError as error:
                    parts.refuse(keys, error)
            if parts.refused_all is not None:
                raise parts.refused_all
            if len(found) < AT_ONCE:
                break
            after = tuple(found[-1])
        if refused:
            raise RowsRefused(roles.name, f"deleting a job that is {self._status}", refused, deleted)
        return deleted

    def _delete_keys(self, delete: Any, lock: Any, keys: Sequence[Key]) -> int:
        deleted = 0
        for attempt in self._connector.attempts():
            with attempt as connection:
                still = list(keys) if lock is None else keys_for(connection, lock, keys)
                deleted = connection.execute(delete, {"claimjobs_keys": still}).rowcount if still else 0
        return deleted


def _instant(connection: sa.Connection, now: sa.ColumnElement[Any]) -> datetime:
    instant: datetime = connection.execute(sa.select(now)).scalar_one()
    return instant

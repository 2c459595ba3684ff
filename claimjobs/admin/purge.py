"""Deletes old jobs that are kept, in small committed chunks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal, get_args

import sqlalchemy as sa

from claimjobs.admin.stored_jobs import AT_ONCE, write_keys
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.errors import RowsRefused
from claimjobs.settle.refusals import WriteInHalves
from claimjobs.statements import purge as statements
from claimjobs.statements import stored_jobs
from claimjobs.statements.lock import lock_those
from claimjobs.table.backend import Backend
from claimjobs.table.predicates import Where, predicates_of

Kept = Literal["done", "dead"]


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
                return int(self._connector.scalar(stored_jobs.count(roles, (*old, *narrower))))
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
                with parts.writing(keys):
                    deleted += write_keys(self._connector, delete, lock, keys)
            if parts.refused_all is not None:
                raise parts.refused_all
            if len(found) < AT_ONCE:
                break
            after = tuple(found[-1])
        if refused:
            raise RowsRefused(roles.name, f"deleting a job that is {self._status}", refused, deleted)
        return deleted


def _instant(connection: sa.Connection, now: sa.ColumnElement[Any]) -> datetime:
    instant: datetime = connection.execute(sa.select(now)).scalar_one()
    return instant

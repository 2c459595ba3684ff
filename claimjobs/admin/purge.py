"""Purge: kept jobs that are old leave the table, in small committed chunks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.batch.refusals import halved
from claimjobs.batch.settle import keys_for
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.errors import RowsRefused
from claimjobs.statements import purge as statements
from claimjobs.statements.lock import lock_those
from claimjobs.table.backend import Backend
from claimjobs.table.predicates import Where, predicates_of

Kept = Literal["done", "dead"]

AT_ONCE: Final = 1_000
"""Jobs of one transaction: no lock is held for long, and what was deleted before an error stays so."""


class Purge:
    """The jobs of one status that are old. Each write asks again for both: a job that was revived is left alone."""

    def __init__(self, connector: Connector, backend: Backend, status: Kept) -> None:
        """Raises ValueError for a status that is not kept for people, but for consumers."""
        if status not in get_args(Kept):
            raise ValueError(f"jobs that are {status!r} are not purged: give 'done' or 'dead'")
        self._connector = connector
        self._backend = backend
        self._status = status

    def run(self, now: sa.ColumnElement[Any], age: timedelta, *, where: Where, dry_run: bool) -> int:
        """Delete them, or only count them; how many. Raises ColumnMissing or BadPredicate."""
        until = self._connector.transaction(lambda connection: _instant(connection, now)) - age
        roles, dialect = self._backend.roles, self._backend.dialect
        old, narrower = statements.old(roles, self._status, until), predicates_of(where, roles, dialect.lexis)
        with predicate_errors(dialect):
            return self._count((*old, *narrower)) if dry_run else self._delete(old, narrower)

    def _count(self, chosen: statements.Predicates) -> int:
        statement = statements.how_many(self._backend.roles, chosen)
        return self._connector.transaction(lambda connection: int(connection.execute(statement).scalar_one()))

    def _delete(self, old: statements.Predicates, narrower: statements.Predicates) -> int:
        roles, dialect = self._backend.roles, self._backend.dialect
        page = partial(statements.page, roles, dialect, (*old, *narrower))
        lock = lock_those(roles, dialect, narrower) if narrower else None
        delete = statements.purge(roles, dialect, old)
        refused: dict[Key, str] = {}
        deleted, after = 0, None
        while True:
            found = self._connector.transaction(partial(_rows, statement=page(after)))
            keys = [roles.key_in(row._mapping) for row in found]
            write = partial(self._reached, delete, lock)
            deleted += sum(halved(keys, write, dialect, refused)) if keys else 0
            if len(found) < AT_ONCE:
                break
            after = tuple(found[-1])
        if refused:
            raise RowsRefused(roles.name, f"deleting a job that is {self._status}", refused, deleted)
        return deleted

    def _reached(self, delete: Any, lock: Any, keys: Sequence[Key]) -> int:
        def write(connection: sa.Connection) -> int:
            still = list(keys) if lock is None else keys_for(connection, lock, list(keys))
            return connection.execute(delete, {"claimjobs_keys": still}).rowcount if still else 0

        return self._connector.transaction(write)


def _rows(connection: sa.Connection, statement: Any) -> Sequence[Any]:
    return connection.execute(statement, {"claimjobs_limit": AT_ONCE}).all()


def _instant(connection: sa.Connection, now: sa.ColumnElement[Any]) -> datetime:
    instant: datetime = connection.execute(sa.select(now)).scalar_one()
    return instant

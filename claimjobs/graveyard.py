"""Graveyard: the dead jobs of a queue, for the person who looks after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.columns import DEAD
from claimjobs.connector import Connector
from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.rows import JobMaker
from claimjobs.selection import Predicate, Where, predicates_of
from claimjobs.settle import key_of, keys_for
from claimjobs.statements import dead as statements
from claimjobs.statements.lock import lock_those
from claimjobs.statements.side_car import Pair, of_jobs
from claimjobs.translate import predicate_errors

AT_ONCE: Final = 1_000
"""Jobs of one statement and one transaction: no lock is held for long, and what was done before an error stands."""


class Graveyard:
    """The dead jobs: out of attempts, kept in the table until a person decides.

    `where` narrows what is meant, as for a claim; the queue's own predicate does not count here. Nobody claims a dead
    job, so it is never in anyone's hand: what is written is guarded by its status alone. Jobs are found, and locked, by
    `where`, and then written by their keys: no text of a user stands beside that guard. Raises BadPredicate.

    Where claims are kept in a table beside the user's, a dead job is a row of that: its key and its error. `where` may
    name the columns of both tables, and does not hold for a job whose row is gone.
    """

    def __init__(
        self,
        backend: Backend,
        now: sa.ColumnElement[Any],
        connect: Callable[[], AbstractContextManager[Connector]],
    ) -> None:
        backend.roles.need_state(DEAD, "keeping dead jobs")
        self._backend = backend
        self._roles = backend.roles
        self._job = JobMaker(backend.roles)
        self._now = now
        self._connect = connect

    # --- looking ---------------------------------------------------------------------------------------

    def list(self, where: Where = None, *, limit: int | None = None) -> Iterator[Job]:
        """The dead jobs, `limit` of them at most, by their keys; read as they are asked for, in short transactions."""
        columns = self._roles.table.columns
        with self._connect() as connector:
            for rows in self._pages(connector, columns, where, limit):
                yield from map(self._job, rows)

    def show(self, keys: Iterable[Key]) -> tuple[Job, ...]:
        """Those of these jobs that are dead, by their keys."""
        statement = statements.chosen(self._roles, self._backend.dialect)
        with self._connect() as connector:
            rows = [
                row for chunk in _chunks(keys, None) for row in self._read(connector, statement, claimjobs_keys=chunk)
            ]
        return tuple(map(self._job, rows))

    def count(self, where: Where = None) -> int:
        """How many jobs are dead."""
        statement = statements.how_many(self._roles, self._narrower(where))
        with self._connect() as connector:
            return int(self._read(connector, statement)[0][0])

    # --- deciding --------------------------------------------------------------------------------------

    def retry(self, keys: Iterable[Key] | None = None, *, where: Where = None, limit: int | None = None) -> int:
        """Give dead jobs all their attempts again, from now on; how many. Without keys: all for which `where` holds.

        Each is brought back once, even if it dies again meanwhile. The last error stays until the next one.
        """
        revive = statements.revive(self._roles, self._backend.dialect, self._now)
        return self._write(revive, keys, where, limit)

    def drop(self, keys: Iterable[Key] | None = None, *, where: Where = None, limit: int | None = None) -> int:
        """Delete dead jobs; how many. Without keys: all for which `where` holds."""
        drop = statements.drop(self._roles, self._backend.dialect)
        return self._write(drop, keys, where, limit)

    # --- inside ----------------------------------------------------------------------------------------

    def _narrower(self, where: Where) -> Sequence[Predicate]:
        """The predicate, about the user's table, also where the dead stand in a table of claims beside it."""
        backend = self._backend
        found = predicates_of(where, backend.source, backend.dialect.lexis)
        if backend.apart is None or not found:
            return found
        return (of_jobs(Pair(backend.apart, backend.roles, backend.dialect, self._now), found),)

    def _write(self, statement: Any, keys: Iterable[Key] | None, where: Where, limit: int | None) -> int:
        narrower = self._narrower(where)
        lock = lock_those(self._roles, self._backend.dialect, narrower) if narrower else None
        with self._connect() as connector:
            chunks = self._found(connector, where, limit) if keys is None else _chunks(keys, limit)
            return sum(self._reached(connector, statement, lock, chunk) for chunk in chunks)

    def _found(self, connector: Connector, where: Where, limit: int | None) -> Iterator[Sequence[Key]]:
        for rows in self._pages(connector, self._roles.key, where, limit):
            yield [key_of(row) for row in rows]

    def _reached(self, connector: Connector, statement: Any, lock: Any, keys: Sequence[Key]) -> int:
        def write(connection: sa.Connection) -> int:
            still = keys if lock is None else keys_for(connection, lock, keys)
            return connection.execute(statement, {"claimjobs_keys": still}).rowcount if still else 0

        with predicate_errors(self._backend.dialect):
            return connector.transaction(write)

    def _pages(
        self, connector: Connector, columns: Iterable[Any], where: Where, limit: int | None
    ) -> Iterator[Sequence[Any]]:
        """Rows, page after page, each beginning beyond the last key of the one before."""
        next_page = partial(statements.page, self._roles, self._backend.dialect, tuple(columns), self._narrower(where))
        left, after = inf if limit is None else limit, None
        while (size := int(min(left, AT_ONCE))) > 0:
            rows = self._read(connector, next_page(after=after), claimjobs_limit=size)
            if rows:
                yield rows
            if len(rows) < size:
                return
            left -= size
            after = self._roles.key_in(rows[-1]._mapping)

    def _read(self, connector: Connector, statement: Any, **values: Any) -> Sequence[Any]:
        with predicate_errors(self._backend.dialect):
            return connector.transaction(lambda connection: connection.execute(statement, values).all())


def _chunks(keys: Iterable[Key], limit: int | None) -> Iterator[Sequence[Key]]:
    each = islice(dict.fromkeys(keys), limit)
    while chunk := list(islice(each, AT_ONCE)):
        yield chunk

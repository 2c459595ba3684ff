"""Graveyard: the dead jobs of a queue, for the person who looks after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.refusals import halved
from claimjobs.batch.settle import keys_for
from claimjobs.claim.row_reader import RowReader
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.errors import RowsRefused
from claimjobs.job import Job
from claimjobs.statements import dead_jobs as statements
from claimjobs.statements.lock import lock_those
from claimjobs.statements.side_car import SideCarJoin, of_jobs
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD
from claimjobs.table.predicates import Predicate, Where, predicates_of

AT_ONCE: Final = 1_000
"""Jobs of one statement and one transaction: no lock is held for long, and what was done before an error stands."""


class DeadJobs:
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
        self._rows = RowReader(backend.roles, backend.dialect)
        others = [column.name for column in self._roles.table.columns if column not in self._roles.key]
        self._keys = RowReader(backend.roles, backend.dialect, known=others)
        self._now = now
        self._connect = connect

    # --- looking ---------------------------------------------------------------------------------------

    def list(self, where: Where = None, *, limit: int | None = None) -> Iterator[Job]:
        """The dead jobs, `limit` of them at most, by their keys; read as they are asked for, in short transactions."""
        with self._connect() as connector:
            for jobs in self._pages(connector, self._rows, where, limit):
                yield from jobs

    def show(self, keys: Iterable[Key]) -> tuple[Job, ...]:
        """Those of these jobs that are dead, by their keys."""
        statement = statements.chosen(self._roles, self._backend.dialect, self._rows.columns)
        with self._connect() as connector:
            found = [
                self._jobs(connector, self._rows, statement, claimjobs_keys=chunk) for chunk in _chunks(keys, None)
            ]
        return tuple(job for jobs in found for job in jobs)

    def count(self, where: Where = None) -> int:
        """How many jobs are dead."""
        statement = statements.how_many(self._roles, self._narrower(where))
        with self._connect() as connector:
            return int(self._read(connector, statement)[0][0])

    # --- deciding --------------------------------------------------------------------------------------

    def retry(self, keys: Iterable[Key] | None = None, *, where: Where = None, limit: int | None = None) -> int:
        """Give dead jobs all their attempts again, from now on; how many. Without keys: all for which `where` holds.

        Each is brought back once, even if it dies again meanwhile. The last error stays until the next one. Raises
        RowsRefused for those that the database refuses, when all others are done; so does `drop`.
        """
        revive = statements.revive(self._roles, self._backend.dialect, self._now)
        return self._write(revive, keys, where, limit, what="bringing back a dead job")

    def drop(self, keys: Iterable[Key] | None = None, *, where: Where = None, limit: int | None = None) -> int:
        """Delete dead jobs; how many. Without keys: all for which `where` holds."""
        drop = statements.drop(self._roles, self._backend.dialect)
        return self._write(drop, keys, where, limit, what="deleting a dead job")

    # --- inside ----------------------------------------------------------------------------------------

    def _narrower(self, where: Where) -> Sequence[Predicate]:
        """The predicate, about the user's table, also where the dead stand in a table of claims beside it."""
        backend = self._backend
        found = predicates_of(where, backend.source, backend.dialect.lexis)
        if backend.apart is None or not found:
            return found
        return (of_jobs(SideCarJoin(backend.apart, backend.roles, backend.dialect, self._now), found),)

    def _write(self, statement: Any, keys: Iterable[Key] | None, where: Where, limit: int | None, *, what: str) -> int:
        narrower = self._narrower(where)
        lock = lock_those(self._roles, self._backend.dialect, narrower) if narrower else None
        refused: dict[Key, str] = {}
        with self._connect() as connector:

            def write(some: Sequence[Key]) -> int:
                return self._reached(connector, statement, lock, some)

            chunks = self._found(connector, where, limit) if keys is None else _chunks(keys, limit)
            done = sum(sum(halved(chunk, write, self._backend.dialect, refused)) for chunk in chunks)
        if refused:
            raise RowsRefused(self._roles.name, what, refused, done)
        return done

    def _found(self, connector: Connector, where: Where, limit: int | None) -> Iterator[Sequence[Key]]:
        for jobs in self._pages(connector, self._keys, where, limit):
            yield [job.key for job in jobs]

    def _reached(self, connector: Connector, statement: Any, lock: Any, keys: Sequence[Key]) -> int:
        def write(connection: sa.Connection) -> int:
            still = keys if lock is None else keys_for(connection, lock, keys)
            return connection.execute(statement, {"claimjobs_keys": still}).rowcount if still else 0

        with predicate_errors(self._backend.dialect):
            return connector.transaction(write)

    def _pages(
        self, connector: Connector, reader: RowReader, where: Where, limit: int | None
    ) -> Iterator[Sequence[Job]]:
        """Jobs, page after page, each beginning beyond the last key of the one before."""
        columns, narrower = reader.columns, self._narrower(where)
        next_page = partial(statements.page, self._roles, self._backend.dialect, columns, narrower)
        left, after = inf if limit is None else limit, None
        while (size := int(min(left, AT_ONCE))) > 0:
            jobs = self._jobs(connector, reader, next_page(after=after), claimjobs_limit=size)
            if jobs:
                yield jobs
            if len(jobs) < size:
                return
            left -= size
            after = jobs[-1].key

    def _jobs(self, connector: Connector, reader: RowReader, statement: Any, **values: Any) -> Sequence[Job]:
        """Of a job of which not every column can be read, the others are."""
        wire = CompiledStatement(statement)
        with predicate_errors(self._backend.dialect):
            return reader.jobs(connector.transaction(lambda connection: reader.all(connection, wire, values)))

    def _read(self, connector: Connector, statement: Any, **values: Any) -> Sequence[Any]:
        with predicate_errors(self._backend.dialect):
            return connector.transaction(lambda connection: connection.execute(statement, values).all())


def _chunks(keys: Iterable[Key], limit: int | None) -> Iterator[Sequence[Key]]:
    each = islice(dict.fromkeys(keys), limit)
    while chunk := list(islice(each, AT_ONCE)):
        yield chunk

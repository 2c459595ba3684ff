"""The dead jobs of a queue: list, count, retry or drop them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any

import sqlalchemy as sa

from claimjobs.admin.stored_jobs import AT_ONCE, StoredJobs, chunks_of
from claimjobs.claim.row_reader import RowReader
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Key
from claimjobs.errors import RowsRefused
from claimjobs.job import Job
from claimjobs.settle.outcome_table import keys_for
from claimjobs.settle.refusals import WriteInHalves
from claimjobs.statements import dead_jobs as statements
from claimjobs.statements.lock import lock_those
from claimjobs.statements.stored_jobs import chosen, page
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD
from claimjobs.table.predicates import Predicate, Where, predicates_of


class DeadJobs(StoredJobs):
    """The dead jobs: they have no attempts left, and stay in the table until a person retries or drops them.

    `where` selects among them, as for a claim; the queue's own predicate is not used. No owner holds a dead job, so a
    write is guarded by the status alone. Jobs are found and locked by `where`, and then written by their keys, so that
    no user's text stands beside that guard. Raises BadPredicate.

    With a side-car, a dead job is a row of the side-car table: its key and its error. `where` may name the columns of
    both tables. A key whose row was deleted from the user's table is no dead job.
    """

    def __init__(
        self,
        backend: Backend,
        now: sa.ColumnElement[Any],
        connect: Callable[[], AbstractContextManager[Connector]],
    ) -> None:
        backend.roles.need_state(DEAD, "keeping dead jobs")
        super().__init__(backend, now, connect)
        others = [column.name for column in self._roles.table.columns if column not in self._roles.key]
        self._keys = RowReader(backend.roles, backend.dialect, known=others)

    # --- reading ---------------------------------------------------------------------------------------

    def list(self, where: Where = None, *, limit: int | None = None) -> Iterator[Job]:
        """The dead jobs, at most `limit`, in the order of their keys; read page by page in short transactions."""
        with self._connect() as connector:
            for jobs in self._pages(connector, self._rows, where, limit):
                yield from jobs

    def show(self, keys: Iterable[Key]) -> tuple[Job, ...]:
        """The dead jobs among those of these keys, in the order of their keys. Raises BadArgument."""
        dead = (self._roles.state.is_(DEAD), *self._narrower(None))
        statement = chosen(self._roles, self._backend.dialect, self._rows.columns, dead)
        with self._connect() as connector:
            found = [
                self._jobs(connector, self._rows, statement, claimjobs_keys=chunk)
                for chunk in chunks_of(self._checked(keys), None)
            ]
        return tuple(job for jobs in found for job in jobs)

    def count(self, where: Where = None) -> int:
        """How many jobs are dead."""
        statement = statements.count_dead(self._roles, self._narrower(where))
        with self._connect() as connector:
            return int(self._read(connector, statement)[0][0])

    # --- writing ---------------------------------------------------------------------------------------

    def retry(self, keys: Iterable[Key] | None = None, *, where: Where = None, limit: int | None = None) -> int:
        """Make dead jobs due now, with all their attempts; return how many. Without keys: all that match `where`.

        Each is retried once, even if it dies again meanwhile. The last error stays until the next one. Raises
        RowsRefused for those that the database refuses, when all others are written, and BadArgument; so does `drop`.
        """
        retry = statements.retry_dead(self._roles, self._backend.dialect, self._now)
        return self._write(retry, keys, where, limit, what="retrying a dead job")

    def drop(self, keys: Iterable[Key] | None = None, *, where: Where = None, limit: int | None = None) -> int:
        """Delete dead jobs; return how many. Without keys: all that match `where`.

        With a side-car nothing is deleted: the rows stay in the user's table, and the side-car calls them done, so that
        they are not executed again.
        """
        return self._write(self._job_rows.drop(), keys, where, limit, what="dropping a dead job")

    # --- inside ----------------------------------------------------------------------------------------

    def _narrower(self, where: Where) -> Sequence[Predicate]:
        """The predicate about the user's table, also where dead jobs are rows of a side-car: then the row exists."""
        return self._job_rows.meeting(predicates_of(where, self._backend.source, self._backend.dialect.lexis))

    def _write(self, statement: Any, keys: Iterable[Key] | None, where: Where, limit: int | None, *, what: str) -> int:
        narrower = self._narrower(where)
        lock = lock_those(self._roles, self._backend.dialect, narrower) if narrower else None
        refused: dict[Key, str] = {}
        done = 0
        with self._connect() as connector:
            chunks = self._found(connector, where, limit) if keys is None else chunks_of(self._checked(keys), limit)
            for chunk in chunks:
                parts = WriteInHalves(chunk, self._backend.dialect, refused)
                for some in parts:
                    try:
                        done += self._write_keys(connector, statement, lock, some)
                    except sa.exc.DBAPIError as error:
                        parts.refuse(some, error)
                if parts.refused_all is not None:
                    raise parts.refused_all
        if refused:
            raise RowsRefused(self._roles.name, what, refused, done)
        return done

    def _found(self, connector: Connector, where: Where, limit: int | None) -> Iterator[Sequence[Key]]:
        for jobs in self._pages(connector, self._keys, where, limit):
            yield [job.key for job in jobs]

    def _write_keys(self, connector: Connector, statement: Any, lock: Any, keys: Sequence[Key]) -> int:
        written = 0
        with predicate_errors(self._backend.dialect):
            for attempt in connector.attempts():
                with attempt as connection:
                    still = keys if lock is None else keys_for(connection, lock, keys)
                    written = connection.execute(statement, {"claimjobs_keys": still}).rowcount if still else 0
        return written

    def _pages(
        self, connector: Connector, reader: RowReader, where: Where, limit: int | None
    ) -> Iterator[Sequence[Job]]:
        """Jobs, page by page. Each page begins after the last key of the one before."""
        columns, narrower = reader.columns, (self._roles.state.is_(DEAD), *self._narrower(where))
        left, after = inf if limit is None else limit, None
        while (size := int(min(left, AT_ONCE))) > 0:
            rows = page(self._roles, self._backend.dialect, columns, narrower, after=after)
            jobs = self._jobs(connector, reader, rows, claimjobs_limit=size)
            if jobs:
                yield jobs
            if len(jobs) < size:
                return
            left -= size
            after = jobs[-1].key

    def _read(self, connector: Connector, statement: Any, **values: Any) -> Sequence[Any]:
        with predicate_errors(self._backend.dialect):
            return connector.rows(statement, values)

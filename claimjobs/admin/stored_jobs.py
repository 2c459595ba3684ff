"""Jobs as they are stored, in any state: list, show, count and cancel them; retry or drop dead ones, purge old ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from claimjobs.claim.record import record_of
from claimjobs.claim.row_reader import RowReader
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import predicate_errors, reason
from claimjobs.database.statement_size import most_keys
from claimjobs.dialects import Key
from claimjobs.errors import BadArgument, RowsRefused
from claimjobs.job import Job, key_of, values_of
from claimjobs.settle.outcome_table import keys_for
from claimjobs.settle.refusals import WriteInHalves
from claimjobs.statements import stored_jobs
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD, ENDED, STATES, Ended
from claimjobs.table.job_state import Column
from claimjobs.table.predicates import Predicate, Where, predicates_of
from claimjobs.table.values import key_part

JOBS_PER_TRANSACTION: Final = 1_000
"""Jobs of one statement and one transaction: no lock is held for long, and an error undoes no earlier chunk."""
CANCELLED: Final = "cancelled"
"""How the text begins that a cancelled job has in `last_error`."""
STATE: Final = "claimjobs_state"
"""What the state is called beside the columns of a job; a table may have a column `state`."""
CANCEL_RETRY_SECONDS: Final = 3.0
"""Seconds for which a job is tried that another session has locked: a claim, or a settle, takes less."""
CANCEL_PAUSE_SECONDS: Final = 0.1
"""Seconds between two tries."""


class StoredJob(NamedTuple):
    """A job as it is stored."""

    state: str | None
    """None: its row is in no state of the queue."""
    job: Job
    """Its row in the user's table."""
    record: Job | None
    """The row with its attempts and its last error: that one, or the entry of the side-car, if there is one."""

    @property
    def key(self) -> Key:
        return self.job.key

    @property
    def columns(self) -> dict[str, Any]:
        """The value of each column, or why it cannot be read; first the state. It takes the place of a user's column
        with its name, and so do those of a side-car.
        """
        return {STATE: None} | _shown(self.job) | self.outcome | {STATE: self.state}

    @property
    def outcome(self) -> dict[str, Any]:
        """The value of each column of `record`, or why it cannot be read; empty without one."""
        return _shown(self.record)


def _shown(job: Job | None) -> dict[str, Any]:
    return {name: job.shown(name) for name in job} if job is not None else {}


class StoredJobs:
    """All jobs of a table, for an operator. The queue's own predicate is not used.

    `where` selects among them, as for a claim. With a side-car it may name columns of both tables, if the state is done
    or dead. `where` may raise BadPredicate, and keys raise BadArgument for what is no key, before anything is written.

    Dead jobs have no attempts left, and stay until a person retries or drops them. No owner holds one, so a write is
    guarded by the status alone. Jobs are found and locked by `where`, and then written by their keys, so that no user's
    text stands beside that guard.
    """

    def __init__(
        self, backend: Backend, now: sa.ColumnElement[Any], connect: Callable[[], AbstractContextManager[Connector]]
    ) -> None:
        self._backend, self._dialect, self._now, self._connect = backend, backend.dialect, now, connect
        self._source, self._roles = backend.source, backend.roles
        self._job_rows = job_rows(backend, now)
        self._reader = RowReader(self._source, self._dialect)
        self._columns = [*self._reader.columns, self._job_rows.state.label(STATE)]
        self._at_once = int(min(JOBS_PER_TRANSACTION, most_keys(self._roles.key, self._dialect)))

    # --- reading ---------------------------------------------------------------------------------------

    def list(self, where: Where = None, *, state: str | None = None, limit: int | None = None) -> Iterator[StoredJob]:
        """The jobs in this state (None: in any), at most `limit`, in the order of their keys; read page by page in
        short transactions. Raises BadArgument.
        """
        chosen, left, after = self._chosen(where, state), inf if limit is None else limit, None
        with self._connect() as connector:
            while (size := int(min(left, self._at_once))) > 0:
                page = stored_jobs.page(self._source, self._dialect, self._columns, chosen, after=after)
                found = self._stored(connector, page, claimjobs_limit=size)
                yield from found
                if len(found) < size:
                    return
                left -= size
                after = values_of(found[-1].key)

    def show(self, keys: Iterable[Key]) -> tuple[StoredJob, ...]:
        """The jobs with these keys, in the order of their keys."""
        statement = stored_jobs.chosen(self._source, self._dialect, self._columns, ())
        with self._connect() as connector:
            chunks = [self._stored(connector, statement, claimjobs_keys=some) for some in self._chunks(keys)]
            return tuple(stored for chunk in chunks for stored in chunk)

    def found_by(self, statement: sa.Select[Any], limit: int) -> tuple[StoredJob, ...]:
        """The jobs whose keys this statement finds, in its order. `limit` is its parameter."""
        with self._connect() as connector:
            keys = [key_of(row) for row in connector.rows(statement, {"claimjobs_limit": limit})]
        found = {stored.key: stored for stored in self.show(keys)}
        return tuple(found[key] for key in keys if key in found)

    def count(self, where: Where = None, *, state: str | None = None, most: int | None = None) -> int:
        """How many jobs are in this state (None: in any); `most`: count no further. Raises BadArgument."""
        statement = stored_jobs.count(self._source, self._chosen(where, state), most)
        with self._connect() as connector, predicate_errors(self._dialect):
            return int(connector.scalar(statement))

    # --- writing ---------------------------------------------------------------------------------------

    def retry(self, keys: Iterable[Key] | None = None, *, where: Where = None) -> int:
        """Make dead jobs due now, with all their attempts; return how many. Without keys: all that match `where`.

        Each is retried once, even if it dies again meanwhile. The last error stays until the next one. Raises
        RowsRefused for those that the database refuses, when all others are written; so does `drop`.
        """
        retry = stored_jobs.retry_dead(self._roles, self._dialect, self._now)
        return self._write_dead(retry, keys, where, what="retrying a dead job")

    def drop(self, keys: Iterable[Key] | None = None, *, where: Where = None) -> int:
        """Delete dead jobs; return how many. Without keys: all that match `where`.

        With a side-car nothing is deleted: the rows stay in the user's table, and the side-car calls them done, so that
        they are not executed again.
        """
        return self._write_dead(self._job_rows.drop(), keys, where, what="dropping a dead job")

    def cancel(self, keys: Iterable[Key], reason: str | None = None) -> Sequence[Key]:
        """As `Queue.cancel`."""
        self._roles.need_state(DEAD, "cancelling a job")
        text = self._roles.kept_of(CANCELLED if reason is None else f"{CANCELLED}: {reason}")
        cancelled: list[Key] = []
        refused: dict[Key, str] = {}
        with self._connect() as connector:
            for parts, some in self._halves(self._chunks(keys), refused):
                with parts.writing(some):
                    cancelled.extend(self._cancel_all(connector, some, text))
        if refused:
            raise RowsRefused(self._roles.name, "cancelling a job", refused, len(cancelled))
        return cancelled

    def purge(self, age: timedelta, *, state: Ended, where: Where, dry_run: bool) -> int:
        """As `Queue.purge`."""
        if state not in ENDED:
            raise ValueError(f"jobs that are {state!r} are not purged: give {' or '.join(map(repr, ENDED))}")
        roles, dialect = self._roles, self._dialect
        with self._connect() as connector:
            old = stored_jobs.old(roles, state, connector.scalar(sa.select(self._now)) - age)
            delete = self._job_rows.purge(old)
            narrower = predicates_of(where, roles.table, dialect.lexis)
            if dry_run:
                with predicate_errors(dialect):
                    return int(connector.scalar(stored_jobs.count(roles, (*old, *narrower))))
            chunks = self._key_pages(connector, (*old, *narrower), stored_jobs.purge_order(roles))
            what = f"deleting a job that is {state}"
            return self._write(connector, delete, narrower, chunks, what=what)

    # --- inside: reading -------------------------------------------------------------------------------

    def _chosen(self, where: Where, state: str | None) -> Sequence[Predicate]:
        narrower = predicates_of(where, self._source.table, self._dialect.lexis)
        if state is None:
            return narrower
        if state not in STATES:
            raise BadArgument(f"no job is in state {state!r}: choose one of {', '.join(STATES)}")
        self._roles.need_state(state, f"finding jobs that are {state}")
        return (self._job_rows.in_state(state, *narrower),)

    def _key_pages(
        self, connector: Connector, chosen: Sequence[Predicate], order: Sequence[Column]
    ) -> Iterator[Sequence[Key]]:
        after = None
        while True:
            page = stored_jobs.page(self._source, self._dialect, order, chosen, after=after, order=order)
            with predicate_errors(self._dialect):
                found = connector.rows(page, {"claimjobs_limit": self._at_once})
            yield [self._source.key_in(row._mapping) for row in found]
            if len(found) < self._at_once:
                return
            after = tuple(found[-1])

    def _stored(self, connector: Connector, statement: Any, **values: Any) -> Sequence[StoredJob]:
        """The jobs whose columns and states this statement reads."""
        rows, jobs = self._read(connector, self._reader, statement, **values)
        records: Mapping[Key, Job] = {job.key: job for job in jobs}
        if self._job_rows.are_apart:
            read = RowReader(self._roles, self._dialect)
            entries = stored_jobs.chosen(self._roles, self._dialect, read.columns, ())
            records = {job.key: job for job in self._read(connector, read, entries, claimjobs_keys=[*records])[1]}
        return [StoredJob(row[-1], job, records.get(job.key)) for row, job in zip(rows, jobs, strict=True)]

    def _read(
        self, connector: Connector, read: RowReader, statement: Any, **values: Any
    ) -> tuple[Sequence[Any], Sequence[Job]]:
        """The rows of a statement and their jobs. A column that cannot be read does not hide the others."""
        compiled = CompiledStatement(statement)
        with predicate_errors(self._dialect):
            rows = connector.transaction(lambda connection: compiled.rows(connection, values, read))
            return rows, read.jobs(rows)

    # --- inside: writing -------------------------------------------------------------------------------

    def _chunks(self, keys: Iterable[Key]) -> Iterator[Sequence[Key]]:
        """These keys, once each, as many at a time as are written at once. Raises BadArgument at once."""
        each = iter(dict.fromkeys([self._key(key) for key in keys]))
        return iter(lambda: list(islice(each, self._at_once)), [])

    def _key(self, given: Any) -> Key:
        columns, parts, why = self._roles.key, values_of(given), ""
        if len(parts) == len(columns):
            try:
                key = list(map(key_part, columns, parts))
            except ValueError as error:
                why = f" ({error})"
            else:
                if self._dialect.holds_nul or not any(isinstance(part, str) and "\0" in part for part in key):
                    return key_of(key)
                why = " (it cannot hold a NUL character)"
        form = "a value" if len(columns) == 1 else f"a tuple of {len(columns)} values"
        raise BadArgument(
            f"{given!r} is no key of a job of table {self._roles.name!r}, whose key is "
            f"{', '.join(self._roles.key_names)}{why}: give {form}, such as `job.key`"
        )

    def _halves(
        self, chunks: Iterable[Sequence[Key]], refused: dict[Key, str]
    ) -> Iterator[tuple[WriteInHalves, Sequence[Key]]]:
        for chunk in chunks:
            parts = WriteInHalves(chunk, self._dialect, refused)
            for some in parts:
                yield parts, some
            if parts.refused_all is not None:
                raise parts.refused_all

    def _write_dead(self, statement: Any, keys: Iterable[Key] | None, where: Where, *, what: str) -> int:
        self._roles.need_state(DEAD, what)
        narrower = self._job_rows.meeting(predicates_of(where, self._source.table, self._dialect.lexis))
        with self._connect() as connector:
            if keys is None:
                chunks = self._key_pages(connector, self._chosen(where, DEAD), self._source.key)
            else:
                chunks = self._chunks(keys)
            return self._write(connector, statement, narrower, chunks, what=what)

    def _write(
        self,
        connector: Connector,
        statement: Any,
        narrower: Sequence[Predicate],
        chunks: Iterable[Sequence[Key]],
        *,
        what: str,
    ) -> int:
        """Write the jobs with these keys that still meet the predicates, each part in a transaction; return how many.

        Raises RowsRefused when all others are written.
        """
        # The user's predicates hold until the transaction ends. So the statement that writes needs no text of theirs.
        roles, dialect, lock = self._roles, self._dialect, None
        if narrower:
            lock = stored_jobs.lock_chosen(roles, dialect, narrower)
        refused: dict[Key, str] = {}
        written = 0
        for parts, some in self._halves(chunks, refused):
            with parts.writing(some), predicate_errors(dialect):
                try:
                    written += self._write_part(connector, statement, lock, some)
                except sa.exc.DBAPIError as error:
                    if not dialect.errors.waited_for_lock(error):
                        raise
                    lock_free = stored_jobs.lock_free(roles, dialect)
                    free = [key_of(row) for row in connector.rows(lock_free, {"claimjobs_keys": some})]
                    refused |= dict.fromkeys(set(some) - set(free), reason(error))
                    written += self._write_part(connector, statement, lock, free)
        if refused:
            raise RowsRefused(roles.name, what, refused, written)
        return written

    def _write_part(self, connector: Connector, statement: Any, lock: Any, keys: Sequence[Key]) -> int:
        for attempt in connector.attempts():
            with attempt as connection:
                still = keys if lock is None else keys_for(connection, lock, keys)
                count = connection.execute(statement, {"claimjobs_keys": still}).rowcount if still else 0
        return count

    def _cancel_all(self, connector: Connector, keys: Sequence[Key], text: str) -> set[Key]:
        """Cancel these, and wait for a moment for those that a claim or a settle has locked."""
        roles, dialect, note = self._roles, self._dialect, self._job_rows.note()
        unfinished, lock = stored_jobs.unfinished(roles, dialect), stored_jobs.lock_unfinished(roles, dialect)
        lock_jobs = stored_jobs.lock_free(self._source, dialect)
        cancel, record = stored_jobs.cancel(roles, dialect, self._now, text), record_of(self._backend)
        deadline, cancelled, left = time.monotonic() + CANCEL_RETRY_SECONDS, set[Key](), list(keys)
        while True:
            for attempt in connector.attempts():
                with attempt as connection:
                    record.take_from_all(connection, ())  # it locks what owners hold: first, as a settle does
                    free = left
                    if note is not None:  # a claim that is not committed has locked its rows, and no entries
                        free = keys_for(connection, lock_jobs, left)
                        connection.execute(note, {"claimjobs_keys": left})
                    written = keys_for(connection, lock, free)
                    if written:  # what another session has locked stays its owner's
                        record.take_from_all(connection, written)
                        connection.execute(cancel, {"claimjobs_keys": written})
                    others = [key for key in keys_for(connection, unfinished, left) if key not in set(written)]
            cancelled.update(written)
            left = others
            if not left or time.monotonic() >= deadline:
                return cancelled
            time.sleep(CANCEL_PAUSE_SECONDS)

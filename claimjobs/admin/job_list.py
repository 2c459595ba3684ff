"""Jobs in any state: list and show them, and cancel those that wait or are claimed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from claimjobs.admin.stored_jobs import AT_ONCE, StoredJobs, chunks_of
from claimjobs.claim.record import record_of
from claimjobs.claim.row_reader import RowReader
from claimjobs.database.connection import Connector
from claimjobs.dialects import Key
from claimjobs.errors import BadArgument, RowsRefused
from claimjobs.job import Job
from claimjobs.settle.outcome_table import keys_for
from claimjobs.settle.refusals import WriteInHalves
from claimjobs.statements import side_car
from claimjobs.statements import stored_jobs as statements
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD, STATES
from claimjobs.table.predicates import Where, predicates_of

CANCELLED: Final = "cancelled"
"""How the text begins that a cancelled job has in `last_error`."""
STATE: Final = "claimjobs_state"
"""What the state is called beside the columns of a job; a table may have a column `state`."""
PATIENCE: Final = 3.0
"""Seconds for which a job is tried that another session has locked: a claim, or a settle, takes less."""
AGAIN: Final = 0.1
"""Seconds between two tries."""


class JobEntry(NamedTuple):
    """A job as it is stored."""

    state: str | None
    """None: its row is in no state of the queue."""
    job: Job
    """Its row in the user's table."""
    record: Job | None
    """The row with its attempts and its last error: that one, or the entry of the side-car, if there is one."""

    @property
    def columns(self) -> dict[str, Any]:
        """The value of each column, or why it cannot be read; first the state."""
        both = (self.job,) if self.record is None or self.record is self.job else (self.job, self.record)
        return {STATE: self.state} | {name: job.shown(name) for job in both for name in job}


class JobList(StoredJobs):
    """All jobs of a table. The queue's own predicate is not used."""

    def __init__(
        self,
        backend: Backend,
        now: sa.ColumnElement[Any],
        connect: Callable[[], AbstractContextManager[Connector]],
    ) -> None:
        super().__init__(backend, now, connect)
        self._source = backend.source
        self._beside = backend.user_table is not None
        self._read = RowReader(backend.source, backend.dialect)
        self._columns = [*self._read.columns, self._job_rows.state.label(STATE)]

    # --- reading ---------------------------------------------------------------------------------------

    def list(self, where: Where = None, *, state: str | None = None, limit: int | None = None) -> Iterator[JobEntry]:
        """The jobs in this state (None: in any), at most `limit`, in the order of their keys; read page by page in
        short transactions. `where` selects among them. Raises BadArgument and BadPredicate.
        """
        if state is not None and state not in STATES:
            raise BadArgument(f"no job is in state {state!r}: choose one of {', '.join(STATES)}")
        narrower = predicates_of(where, self._source, self._backend.dialect.lexis)
        chosen = narrower if state is None else (self._job_rows.in_state(state), *narrower)
        left, after = inf if limit is None else limit, None
        with self._connect() as connector:
            while (size := int(min(left, AT_ONCE))) > 0:
                page = statements.page(self._source, self._backend.dialect, self._columns, chosen, after=after)
                entries = self._entries(connector, page, claimjobs_limit=size)
                yield from entries
                if len(entries) < size:
                    return
                left -= size
                after = entries[-1].job.key

    def show(self, keys: Iterable[Key]) -> tuple[JobEntry, ...]:
        """The jobs with these keys, in the order of their keys. Raises BadArgument."""
        statement = statements.chosen(self._source, self._backend.dialect, self._columns, ())
        with self._connect() as connector:
            chunks = list(chunks_of(self._checked(keys), None))
            return tuple(entry for some in chunks for entry in self._entries(connector, statement, claimjobs_keys=some))

    def _entries(self, connector: Connector, statement: Any, **values: Any) -> Sequence[JobEntry]:
        rows, jobs = self._jobs_and_rows(connector, self._read, statement, **values)
        records: dict[Key, Job] = {job.key: job for job in jobs}
        if self._beside:
            entry = statements.chosen(self._roles, self._backend.dialect, self._rows.columns, ())
            records = {job.key: job for job in self._jobs(connector, self._rows, entry, claimjobs_keys=list(records))}
        return [JobEntry(row[-1], job, records.get(job.key)) for row, job in zip(rows, jobs, strict=True)]

    # --- cancelling ------------------------------------------------------------------------------------

    def cancel(self, keys: Iterable[Key], reason: str | None = None) -> Sequence[Key]:
        """As `Queue.cancel`."""
        self._roles.need_state(DEAD, "cancelling a job")
        text = self._roles.kept_of(CANCELLED if reason is None else f"{CANCELLED}: {reason}")
        cancelled: list[Key] = []
        refused: dict[Key, str] = {}
        with self._connect() as connector:
            for chunk in chunks_of(self._checked(keys), None):
                parts = WriteInHalves(chunk, self._backend.dialect, refused)
                for some in parts:
                    try:
                        cancelled.extend(self._cancel_all(connector, some, text))
                    except sa.exc.DBAPIError as error:
                        parts.refuse(some, error)
                if parts.refused_all is not None:
                    raise parts.refused_all
        if refused:
            raise RowsRefused(self._roles.name, "cancelling a job", refused, len(cancelled))
        return cancelled

    def _cancel_all(self, connector: Connector, keys: Sequence[Key], text: str) -> set[Key]:
        """Cancel these, and wait for a moment for those that a claim or a settle has locked."""
        deadline, cancelled, left = time.monotonic() + PATIENCE, set[Key](), list(keys)
        unfinished = statements.unfinished(self._roles, self._backend.dialect)
        while left:
            for attempt in connector.attempts():
                with attempt as connection:
                    written = self._cancel(connection, left, text)
                    left = [key for key in keys_for(connection, unfinished, left) if key not in written]
            cancelled |= written
            if time.monotonic() >= deadline:
                break
            if left:
                time.sleep(AGAIN)
        return cancelled

    def _cancel(self, connection: sa.Connection, keys: Sequence[Key], text: str) -> set[Key]:
        roles, dialect = self._roles, self._backend.dialect
        record_of(self._backend).take_from_all(connection, keys)  # first, as a settle does
        if self._beside:
            pair = side_car.SideCarJoin(self._source, roles, dialect, self._now)
            connection.execute(side_car.note(pair), {"claimjobs_keys": keys})
        locked = keys_for(connection, statements.lock_unfinished(roles, dialect), keys)
        if locked:
            connection.execute(statements.cancel(roles, dialect, self._now, text), {"claimjobs_keys": locked})
        return set(locked)

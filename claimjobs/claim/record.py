"""ClaimRecord: where a claim is recorded: in the rows of its jobs, in a claim row, or nowhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import key_not_unique
from claimjobs.claim.row_reader import UNMARKED, Marked
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now, statement_now
from claimjobs.job import Job, key_of
from claimjobs.statements import claim_rows, owners
from claimjobs.statements.claim import mark
from claimjobs.statements.settle import Write, and_close
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ME, ClaimRows
from claimjobs.table.columns import CLAIMED, UNCLAIMED

NUMBERS: Final = count(1)
"""Numbers of claim rows. An owner's claims are all made in one process, so no two of its claim rows have one number."""


class ClaimRecord(ABC):
    """Where the claims of a queue are recorded, and with them what an owner holds."""

    names_owner = False
    """Whether the row of a job names its owner. Then the guard of a settle reads that row, and a release writes it."""
    guard: sa.ColumnElement[bool]
    """The predicate of a row in which an outcome may be written, after `take_out`."""
    held: sa.Select[Any]
    """The keys of all jobs that `me` holds."""
    is_recorded: sa.ColumnElement[bool] = sa.false()
    """Whether a claim of `me` is recorded."""
    largest_owner: Sequence[sa.Select[Any]] = ()
    """The statement that returns the largest id of an owner in the records, if they have such ids."""
    written: Marked = UNMARKED
    """The state and the owner that `record` writes into jobs, by column: they need not be read. `ME` stands for the
    id of the owner. The server sets `owner_date`."""
    _last: tuple[int | None, Marked] = (None, UNMARKED)

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any]) -> None:
        self._backend = backend
        self.settled_at = now
        """The time of a settle."""

    @abstractmethod
    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        """Record that this owner has claimed the locked jobs, at least one. Returns the claim of those that it has now.

        Raises OwnerDead or KeyUnfit: roll back then.
        """

    @abstractmethod
    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        """The statement that records a claim of these jobs, if there is one."""

    @abstractmethod
    def unknown(self, table: sa.FromClause) -> sa.Select[Any]:
        """The ids of owners that hold jobs and have no row in `table`: a claim was committed after its deletion."""

    def written_by(self, owner: int) -> Marked:
        """`written` with the id of this owner: its jobs show these values. Computed once for an owner."""
        last = self._last  # another thread may ask for another owner
        if owner != last[0]:
            values = {name: owner if value is ME else value for name, value in self.written.items()}
            last = self._last = owner, values
        return last[1]

    def also_take_out(self, write: Write) -> Write:
        """The same write of done jobs, which also takes them out of the record."""
        return write

    def check_primaries(self, connection: sa.Connection) -> None:
        """Raises ServerUnfit if two primaries would let two claims of one job pass.

        A claim that writes the row of its job is safe: one of two such commits is refused. A claim row and an open
        transaction protect their jobs by locks, which other primaries do not see.
        """
        if not self.names_owner:
            self._backend.require_one_primary(connection)

    def guard_parameters(self, me: int | None) -> dict[str, int]:
        """The parameters of the guard."""
        return {"claimjobs_me": me} if self.names_owner and me is not None else {}

    def take_out(self, connection: sa.Connection, owner: int, keys: Sequence[Key], number: int) -> set[Key]:
        """Take these jobs out of what the owner holds, before their outcomes are written. Returns the keys that it does
        not hold, as far as that is known before the writes. `number`: of their claim row; 0: they may be in several.
        """
        del connection, owner, keys, number
        return set()

    def take_from_all(self, connection: sa.Connection, keys: Sequence[Key]) -> None:  # noqa: B027 - the row is written
        """Take these jobs out of what any owner holds, before the statement that writes their rows. Without keys, lock
        what owners hold.
        """

    def seize(self, connection: sa.Connection, owner: int) -> bool:
        """Lock the records of an owner that is declared dead, without a wait; return False if another session has one
        locked.
        """
        del connection, owner
        return True

    def forget(self, connection: sa.Connection, owner: int) -> None:  # noqa: B027 - a row of a job is a user's
        """Delete what is left of the owner's records: those of jobs whose rows are gone."""


class RecordInRows(ClaimRecord):
    """In the row of each job: its owner and its state."""

    names_owner = True

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any]) -> None:
        super().__init__(backend, now)
        self._roles, self._now = backend.roles, now
        self.guard, self.held = backend.roles.mine, owners.held(backend.roles)
        written = backend.roles.state.becomes(CLAIMED, ME)
        self.written = {column.name: value for column, value in written.items()}
        if (owner := backend.roles.owner_id) is not None:
            self.is_recorded = sa.exists().where(backend.roles.mine)
            self.largest_owner = (sa.select(sa.func.max(owner)).where(backend.roles.state.job_is(CLAIMED)),)

    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        """Raises OwnerDead where fewer rows were written than are locked."""
        keys = [job.key for job in locked.jobs]
        marked = self._mark.count(connection, {"claimjobs_keys": keys, "claimjobs_me": owner})
        if marked > len(keys):
            raise key_not_unique(self._roles.name)
        if marked < len(keys):
            raise OwnerDead(marked, locked.jobs)
        return locked

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return [Phase("mark", self._mark.statement, {"claimjobs_keys": keys, "claimjobs_me": owner})]

    @cached_property
    def _mark(self) -> CompiledStatement:
        return CompiledStatement(mark(self._roles, self._backend.dialect, self._now, self._backend.owners))

    def unknown(self, table: sa.FromClause) -> sa.Select[Any]:
        return owners.unknown(self._roles, table)


class RowLocksOnly(RecordInRows):
    """Nowhere: the row locks of an open transaction are the claim. What owners hold, others have claimed by lease."""

    names_owner = False

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any]) -> None:
        super().__init__(backend, now)
        self.guard, self.written = sa.true(), UNMARKED
        if isinstance(now, database_now):  # the transaction has begun long ago: the time of its beginning is too old
            self.settled_at = statement_now()

    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        return locked

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return []


class RecordInClaimRow(ClaimRecord):
    """In one row of `claimjobs_batches` for all jobs of a claim: the claim row. A settle deletes it, or shortens it.

    A row of a job that was only locked is not changed, so the next claim that locks it is not told. Therefore `record`
    looks at the claim rows again under the locks: see `statements.claim_rows.record`.
    """

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any], rows: ClaimRows) -> None:
        super().__init__(backend, now)
        self._claim_rows = rows
        self.guard = backend.roles.state.row_says(UNCLAIMED)
        self.held = claim_rows.held(rows)  # also of jobs whose row is gone
        self.is_recorded = sa.exists().where(rows.table.c.owner_id == ME)
        self.largest_owner = (sa.select(sa.func.max(rows.table.c.owner_id)),)
        self._insert = CompiledStatement(claim_rows.record(rows, backend.owners))
        self._open_now = claim_rows.open_now(rows)
        self._close = CompiledStatement(claim_rows.close(rows))
        self._locked = claim_rows.locked(rows)
        self._numbered = claim_rows.numbered(rows)
        self._shorten = claim_rows.shorten(rows)
        self._close_all = claim_rows.close_all(rows)
        self._seized = claim_rows.locked(rows, skip_locked=True)
        self._count = claim_rows.count(rows)

    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        """Record only those jobs that are in no claim row now."""
        number, jobs = next(NUMBERS), locked.jobs
        if not self._is_recorded(connection, owner, number, jobs):
            keys = [job.key for job in jobs]
            given = {"claimjobs_keys": keys, **self._claim_rows.range_of(keys)}
            taken = {key_of(row) for row in connection.execute(self._open_now, given)}
            jobs = [job for job in jobs if job.key not in taken]
            if (jobs or not taken) and not self._is_recorded(connection, owner, number, jobs or locked.jobs):
                raise OwnerDead
        # A claim that is not full met all that it could: its count is right.
        left = locked.only(jobs, request) if len(locked.jobs) == request.size else locked._replace(jobs=jobs)
        return left._replace(claim_row=number if jobs else 0)

    def _is_recorded(self, connection: sa.Connection, owner: int, number: int, jobs: list[Job]) -> bool:
        return self._insert.count(connection, self._parameters(owner, number, [job.key for job in jobs])) == 1

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return [Phase("record", self._insert.statement, self._parameters(owner, 0, keys))]

    def _parameters(self, owner: int, number: int, keys: list[Key]) -> dict[str, object]:
        given = {"claimjobs_keys": keys, "claimjobs_json": keys, "claimjobs_meant": len(keys)}
        return {"claimjobs_me": owner, "claimjobs_number": number, **given, **self._claim_rows.range_of(keys)}

    def unknown(self, table: sa.FromClause) -> sa.Select[Any]:
        return claim_rows.unknown(self._claim_rows, table)

    def also_take_out(self, write: Write) -> Write:
        return and_close(write, self._claim_rows)

    def take_out(self, connection: sa.Connection, owner: int, keys: Sequence[Key], number: int) -> set[Key]:
        """The claim rows stay locked until the commit. If these are all jobs of one, a single statement deletes it."""
        me, wanted = {"claimjobs_me": owner}, set(keys)
        if number and self._close.count(connection, {**me, "claimjobs_number": number, "claimjobs_meant": len(keys)}):
            return set()
        connection.execute(self._locked, me).all()  # before they are read
        held: defaultdict[int, list[Key]] = defaultdict(list)
        for row, *key in connection.execute(self._numbered, me):
            held[row].append(key_of(key))
        for row, jobs in held.items():
            rest = [key for key in jobs if key not in wanted]
            meant = {**me, "claimjobs_number": row, "claimjobs_meant": len(rest) or len(jobs)}
            if not rest:
                self._close.count(connection, meant)
            elif len(rest) < len(jobs):
                connection.execute(self._shorten, {**meant, "claimjobs_json": rest})
        return wanted.difference(*held.values())

    def take_from_all(self, connection: sa.Connection, keys: Sequence[Key]) -> None:
        for owner, _ in connection.execute(claim_rows.by_owner(self._claim_rows)).all():
            self.take_out(connection, owner, keys, 0)

    def seize(self, connection: sa.Connection, owner: int) -> bool:
        """The other session may be the owner's own, with a settle that is not committed. It takes the locks in this
        order: the claim row first, then its jobs.
        """
        me = {"claimjobs_me": owner}
        return bool(len(connection.execute(self._seized, me).all()) == connection.scalar(self._count, me))

    def forget(self, connection: sa.Connection, owner: int) -> None:
        connection.execute(self._close_all, {"claimjobs_me": owner})


def record_of(backend: Backend, now: sa.ColumnElement[Any] | None = None, *, locks_only: bool = False) -> ClaimRecord:
    """Where claims are recorded. `locks_only`: those of this consumer are row locks of an open transaction."""
    now = database_now() if now is None else now
    if locks_only:
        return RowLocksOnly(backend, now)
    rows = backend.roles.claim_rows
    return RecordInRows(backend, now) if rows is None else RecordInClaimRow(backend, now, rows)

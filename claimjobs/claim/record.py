"""ClaimRecord: where a claim is recorded. All that asks how a claim is recorded, asks here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import key_not_unique
from claimjobs.claim.row_reader import AS_IT_IS
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, OwnerDead, Phase, Unmarked
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now
from claimjobs.job import Job, key_of
from claimjobs.statements import claim_rows as records
from claimjobs.statements import owners as statements
from claimjobs.statements.lock import mark
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.columns import CLAIMED, UNCLAIMED

NUMBERS: Final = count(1)
"""Numbers of claim rows. An owner's claims are all made in one process, so no two of its claim rows have one number."""


class ClaimRecord(ABC):
    """Where the claims of a queue are recorded, and with them what an owner holds."""

    names_owner = False
    """Whether the row of a job names its owner: then each write of an outcome asks there, and a release writes it."""

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any]) -> None:
        self._backend, self._roles, self._now = backend, backend.roles, now

    def values_of(self, owner: int) -> Mapping[str, Any]:
        """The values of the columns that `record` writes, by column: jobs show them, and they need not be read."""
        del owner
        return AS_IT_IS

    @abstractmethod
    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        """Record that this owner has claimed the locked jobs, of which there are some. Returns those that it has now.

        Raises OwnerDead or KeyUnfit: roll back then.
        """

    @abstractmethod
    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        """The statement that records a claim of these jobs, if there is one."""

    @property
    @abstractmethod
    def guard(self) -> sa.ColumnElement[bool]:
        """The predicate of a row in which an outcome may be written, after `take_out`."""

    @property
    @abstractmethod
    def held(self) -> sa.Select[Any]:
        """The keys of all jobs that `me` holds."""

    @property
    @abstractmethod
    def used(self) -> Sequence[sa.ColumnElement[bool]]:
        """The predicates that claims of `me` are recorded."""

    @property
    @abstractmethod
    def largest(self) -> Sequence[sa.Select[Any]]:
        """The largest ids of owners in the records."""

    @abstractmethod
    def unknown(self, owners: sa.FromClause) -> sa.Select[Any]:
        """The ids of owners that hold jobs and have no row: a claim was committed after the row was deleted."""

    def by(self, me: int | None) -> dict[str, int]:
        """The parameters of the guard."""
        return {"claimjobs_me": me} if self.names_owner and me is not None else {}

    def take_out(self, connection: sa.Connection, owner: int, keys: Sequence[Key], number: int) -> set[Key]:
        """Take these jobs out of what the owner holds, before their outcomes are written: the keys that it held, as far
        as that is known before the writes. `number`: of their claim row; 0: they may be in several.
        """
        del connection, owner, number
        return set(keys)

    def take_from_all(self, connection: sa.Connection, keys: Sequence[Key]) -> None:  # noqa: B027 - the row is written
        """Take these jobs out of what any owner holds, before the statement that writes their rows."""

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
    _last: tuple[int | None, Mapping[str, Any]] = (None, AS_IT_IS)

    def values_of(self, owner: int) -> Mapping[str, Any]:
        """Those for state and owner. `owner_date` is missing: the server sets it. Computed once for an owner."""
        if owner != self._last[0]:
            written = self._roles.state.becomes(CLAIMED, sa.literal(owner)).items()
            values = {
                column.name: value.value if isinstance(value, sa.BindParameter) else value for column, value in written
            }
            self._last = owner, values
        return self._last[1]

    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        """Raises Unmarked where fewer rows were written than are locked."""
        keys = [job.key for job in locked.jobs]
        marked = self._mark.count(connection, {"claimjobs_keys": keys, "claimjobs_me": owner})
        if marked > len(keys):
            raise key_not_unique(self._roles.name)
        if marked < len(keys):
            raise Unmarked(marked, locked.jobs)
        return locked

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return [Phase("mark", self._mark.statement, {"claimjobs_keys": keys, "claimjobs_me": owner})]

    @cached_property
    def _mark(self) -> CompiledStatement:
        return CompiledStatement(mark(self._roles, self._backend.dialect, self._now, self._backend.owners))

    @property
    def guard(self) -> sa.ColumnElement[bool]:
        return self._roles.mine

    @property
    def held(self) -> sa.Select[Any]:
        return statements.held(self._roles)

    @property
    def used(self) -> Sequence[sa.ColumnElement[bool]]:
        return () if self._roles.owner_id is None else (sa.exists().where(self._roles.mine),)

    @property
    def largest(self) -> Sequence[sa.Select[Any]]:
        owner = self._roles.owner_id
        return () if owner is None else (sa.select(sa.func.max(owner)).where(self._roles.state.is_(CLAIMED)),)

    def unknown(self, owners: sa.FromClause) -> sa.Select[Any]:
        return statements.unknown(self._roles, owners)


class RowLocksOnly(RecordInRows):
    """Nowhere: the row locks of an open transaction are the claim. What owners hold, others have claimed by lease."""

    names_owner = False

    def values_of(self, owner: int) -> Mapping[str, Any]:
        return AS_IT_IS

    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        return locked

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return []

    @property
    def guard(self) -> sa.ColumnElement[bool]:
        return sa.true()


class RecordInClaimRow(ClaimRecord):
    """In one row of `claimjobs_batches` for all jobs of a claim: the claim row. A settle deletes it, or shortens it.

    A row of a job that was only locked is not changed, so the next claim that locks it is not told. Therefore `record`
    looks at the claim rows again under the locks: see `statements.claim_rows.record`.
    """

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any], claim_rows: ClaimRows) -> None:
        super().__init__(backend, now)
        self._claim_rows = claim_rows
        self._record = CompiledStatement(records.record(claim_rows, backend.owners))
        self._open_now = records.open_now(claim_rows)
        self._close = CompiledStatement(records.close(claim_rows))
        self._locked = records.locked(claim_rows)
        self._numbered = records.numbered(claim_rows)
        self._shorten = records.shorten(claim_rows)
        self._close_all = records.close_all(claim_rows)
        self._seized, self._count = records.seized(claim_rows), records.count(claim_rows)

    def record(self, connection: sa.Connection, owner: int, locked: ClaimResult, request: ClaimRequest) -> ClaimResult:
        number = next(NUMBERS)
        jobs = self._recorded(connection, owner, number, locked.jobs)
        # If others have claimed some of a full claim, the next one goes on after the same place, not from the head.
        found = request.limit if len(jobs) < len(locked.jobs) == request.size else locked.found
        return locked._replace(jobs=jobs, found=found, batch=number if jobs else 0)

    def _recorded(self, connection: sa.Connection, owner: int, number: int, jobs: list[Job]) -> list[Job]:
        """Record those of the jobs that are in no claim row now, and return them."""
        if self._is_recorded(connection, owner, number, jobs):
            return jobs
        keys = [job.key for job in jobs]
        given = {"claimjobs_keys": keys, **self._claim_rows.range_of(keys)}
        taken = {key_of(row) for row in connection.execute(self._open_now, given)}
        free = [job for job in jobs if job.key not in taken]
        if (free or not taken) and not self._is_recorded(connection, owner, number, free or jobs):
            raise OwnerDead
        return free

    def _is_recorded(self, connection: sa.Connection, owner: int, number: int, jobs: list[Job]) -> bool:
        return self._record.count(connection, self._parameters(owner, number, [job.key for job in jobs])) == 1

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return [Phase("record", self._record.statement, self._parameters(owner, 0, keys))]

    def _parameters(self, owner: int, number: int, keys: list[Key]) -> dict[str, object]:
        given = {"claimjobs_keys": keys, "claimjobs_json": keys, "claimjobs_meant": len(keys)}
        return {"claimjobs_me": owner, "claimjobs_number": number, **given, **self._claim_rows.range_of(keys)}

    @property
    def guard(self) -> sa.ColumnElement[bool]:
        return self._roles.state.columns_say(UNCLAIMED)

    @property
    def held(self) -> sa.Select[Any]:
        """Also of jobs whose row is gone."""
        return records.held(self._claim_rows)

    @property
    def used(self) -> Sequence[sa.ColumnElement[bool]]:
        return (sa.exists().where(self._claim_rows.table.c.owner_id == statements.ME),)

    @property
    def largest(self) -> Sequence[sa.Select[Any]]:
        return (sa.select(sa.func.max(self._claim_rows.table.c.owner_id)),)

    def unknown(self, owners: sa.FromClause) -> sa.Select[Any]:
        return records.unknown(self._claim_rows, owners)

    def take_out(self, connection: sa.Connection, owner: int, keys: Sequence[Key], number: int) -> set[Key]:
        """The claim rows stay locked until the commit. One of which these are all jobs is deleted by one statement."""
        whole = {"claimjobs_me": owner, "claimjobs_number": number, "claimjobs_meant": len(keys)}
        if number and self._close.count(connection, whole) == 1:
            return set(keys)
        wanted, held = set(keys), self._by_number(connection, owner)
        for row, jobs in held.items():
            if wanted & set(jobs):
                self._shrink(connection, {"claimjobs_me": owner, "claimjobs_number": row}, jobs, wanted)
        return wanted & {key for jobs in held.values() for key in jobs}

    def take_from_all(self, connection: sa.Connection, keys: Sequence[Key]) -> None:
        for owner, _ in connection.execute(records.by_owner(self._claim_rows)).all():
            self.take_out(connection, owner, keys, 0)

    def seize(self, connection: sa.Connection, owner: int) -> bool:
        """The other session may be the owner's own, with a settle that is not committed. It takes the locks in this
        order: the claim row first, then its jobs.
        """
        me = {"claimjobs_me": owner}
        seized = len(connection.execute(self._seized, me).all())
        return bool(seized == connection.scalar(self._count, me))

    def forget(self, connection: sa.Connection, owner: int) -> None:
        connection.execute(self._close_all, {"claimjobs_me": owner})

    def _by_number(self, connection: sa.Connection, owner: int) -> dict[int, list[Key]]:
        """The keys in each claim row of the owner. The rows are locked before they are read."""
        me = {"claimjobs_me": owner}
        connection.execute(self._locked, me).all()
        found: defaultdict[int, list[Key]] = defaultdict(list)
        for number, *key in connection.execute(self._numbered, me):
            found[number].append(key_of(key))
        return found

    def _shrink(self, connection: sa.Connection, row: dict[str, int], jobs: list[Key], wanted: set[Key]) -> None:
        """Take the wanted jobs out of a claim row of these jobs; delete it if no other is left."""
        if rest := [key for key in jobs if key not in wanted]:
            connection.execute(self._shorten, {**row, "claimjobs_json": rest, "claimjobs_meant": len(rest)})
        else:
            self._close.count(connection, {**row, "claimjobs_meant": len(jobs)})


def record_of(backend: Backend, now: sa.ColumnElement[Any] | None = None, *, locks_only: bool = False) -> ClaimRecord:
    """Where claims are recorded. `locks_only`: those of this consumer are row locks of an open transaction."""
    now = database_now() if now is None else now
    if locks_only:
        return RowLocksOnly(backend, now)
    claim_rows = backend.roles.claim_rows
    return RecordInRows(backend, now) if claim_rows is None else RecordInClaimRow(backend, now, claim_rows)

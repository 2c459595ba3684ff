"""ClaimRecord: where a claim is recorded. All that asks how a claim is recorded, asks here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.statements import claim_rows as records
from claimjobs.statements import owners as statements
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.columns import CLAIMED, UNCLAIMED
from claimjobs.table.roles import ColumnRoles


class ClaimRecord(ABC):
    """Where the claims of a queue are recorded, and with them what an owner holds."""

    names_owner = False
    """Whether the row of a job names its owner: then each write of an outcome asks there, and a release writes it."""

    def __init__(self, roles: ColumnRoles) -> None:
        self._roles = roles

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

    @property
    def guard(self) -> sa.ColumnElement[bool]:
        return sa.true()


class RecordInClaimRow(ClaimRecord):
    """In one row of `claimjobs_batches` for all jobs of a claim: the claim row. A settle deletes it, or shortens it."""

    def __init__(self, roles: ColumnRoles, claim_rows: ClaimRows) -> None:
        super().__init__(roles)
        self._claim_rows = claim_rows
        self._close = CompiledStatement(records.close(claim_rows))
        self._locked = records.locked(claim_rows)
        self._numbered = records.numbered(claim_rows)
        self._shorten = records.shorten(claim_rows)
        self._close_all = records.close_all(claim_rows)
        self._seized, self._count = records.seized(claim_rows), records.count(claim_rows)

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


def record_of(backend: Backend, *, locks_only: bool = False) -> ClaimRecord:
    """Where claims are recorded. `locks_only`: those of this consumer are row locks of an open transaction."""
    if locks_only:
        return RowLocksOnly(backend.roles)
    claim_rows = backend.roles.claim_rows
    return RecordInRows(backend.roles) if claim_rows is None else RecordInClaimRow(backend.roles, claim_rows)

"""The two-phase claim: find candidates without a lock, then lock those that are still free and mark them ours.

Two named algorithms do it, chosen by what the database can: `OneStatement` and `TwoPhases`; `LockOnly` where an open
transaction holds the jobs. Where candidates are read before they are locked, `claimjobs.claim.search` says how many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from claimjobs.claim.find_and_lock import (
    CandidateCount,
    ClaimRequest,
    ClaimResult,
    CursorStatement,
    at_most,
    check_keys,
    lock_strategy,
)
from claimjobs.claim.row_reader import RowReader
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects.types import Instant
from claimjobs.errors import KeyNotUnique
from claimjobs.job import Job
from claimjobs.statements.claim import claim
from claimjobs.statements.find import KeysetOrder, Selection
from claimjobs.statements.mark import mark
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED
from claimjobs.table.roles import Roles

Hold = Literal["lease", "transaction"]
"""What holds a claim while the work is done: the name of an owner that lives, or the locks of an open transaction."""
HOLDS: Final = get_args(Hold)
Lock = Literal["rows", "advisory"]
"""What keeps others from claiming the same job: the lock of its row, or an advisory lock on its key."""
LOCKS: Final = get_args(Lock)

INSTANTS: Final = (sa.Date, sa.DateTime, sa.Interval, Instant)
TOLD: Final = 1
"""Columns of every row of a claim in one statement that are not about a job."""


class OwnerDead(Exception):
    """The owner in whose name this was to be claimed was declared dead; nothing was claimed."""


class Unmarked(OwnerDead):
    """Fewer jobs were marked than are locked. Else than by the owner's death it is because the write was swallowed."""

    def __init__(self, marked: int, locked: Sequence[Job]) -> None:
        super().__init__(marked, len(locked))
        self.marked, self.locked = marked, len(locked)
        self.keys = tuple(job.key for job in locked)


class ClaimStrategy(ABC):
    """A way to claim jobs, in the caller's transaction.

    Suspects, jobs that were in hand when something went wrong that names none of them, are taken with their like
    alone, and half as many at most as they were, until the one that spoils its batch is alone.
    """

    keyset_order: KeysetOrder | None
    """The order, if a claim can begin anywhere in it."""
    is_one_statement: bool
    """Whether it needs no transaction around it."""
    is_lazy: bool
    """Whether candidates that are not needed are not read, and may be as many as ever."""

    @abstractmethod
    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        """Claim for the owner of this id. Raises OwnerDead, KeyNotUnique or KeyUnreadable; the transaction must be
        rolled back then.
        """


class TwoPhases(ClaimStrategy):
    """Find and lock, then mark: for any database with SKIP LOCKED."""

    is_one_statement = False

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        roles, dialect = backend.roles, backend.dialect
        self._as_claimed = as_claimed(roles)
        self._phases = lock_strategy(backend, selection, known=list(self._as_claimed(0)))
        self._roles = roles
        self._mark = CompiledStatement(mark(roles, dialect, now, backend.owners))
        self.keyset_order, self.is_lazy = self._phases.keyset_order, self._phases.is_lazy

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        # As they will be once they are marked; `owner_date` is the server's to say.
        claimed = self._phases.lock(connection, request, self._as_claimed(owner))
        if claimed.jobs:
            self._mark_all(connection, owner, claimed.jobs)
        return claimed._replace(owner=owner)

    def _mark_all(self, connection: sa.Connection, owner: int, jobs: list[Job]) -> None:
        marked = self._mark.count(connection, {"claimjobs_keys": [job.key for job in jobs], "claimjobs_me": owner})
        if marked > len(jobs):
            raise KeyNotUnique(self._roles.name)
        if marked < len(jobs):
            raise Unmarked(marked, jobs)


class LockOnly(ClaimStrategy):
    """Find and lock, and nothing is written: the locks are the claim, for as long as the transaction is open."""

    is_one_statement = False

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._phases = lock_strategy(backend, selection)
        self.keyset_order, self.is_lazy = self._phases.keyset_order, self._phases.is_lazy

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        return self._phases.lock(connection, request)._replace(owner=owner)


class OneStatement(ClaimStrategy):
    """Find, lock and mark in a single statement, for a database that can return what it updates."""

    is_lazy = True

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._roles = backend.roles
        # Of a key that may name two rows it is known when they are marked, which must be undone then.
        # So it is of one that cannot be read: an instant or a date that Python has not.
        readable = not any(isinstance(column.type, INSTANTS) for column in backend.roles.key)
        self.is_one_statement = backend.roles.key_index is None and readable
        self._backend, self._selection, self._now = backend, selection, now
        self._as_claimed = as_claimed(backend.roles)
        self.key_columns = len(backend.roles.key)
        self._statement = self.statement(TOLD)
        self._count = CandidateCount(backend, selection)
        self.keyset_order = self._statement.keyset_order

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        rows = self._statement.rows(connection, owner, request)
        if rows[0][0] < 0:
            raise OwnerDead
        return self.result(connection, self._statement, rows, owner=owner, request=request)

    def statement(self, told: int, settle: sa.Delete | sa.Update | None = None) -> ClaimStatement:
        """The statement, of whose columns so many are not about a job; after one that settles the batch before."""
        roles, dialect, owners = self._backend.roles, self._backend.dialect, self._backend.owners
        reader = RowReader(roles, dialect, list(self._as_claimed(0)), before=told)
        settled = None if settle is None else settle.cte("claimjobs_before")
        build = partial(claim, roles, dialect, now=self._now, owners=owners, read=reader.read, settled=settled)
        return ClaimStatement(
            CursorStatement(lambda some: CompiledStatement(build(some)), self._selection, dialect), reader
        )

    def result(
        self,
        connection: sa.Connection,
        statement: ClaimStatement,
        rows: Sequence[Any],
        *,
        owner: int,
        request: ClaimRequest,
    ) -> ClaimResult:
        """The result of a claim, out of the rows that its statement returned."""
        claimed = [] if statement.reader.is_none(rows[0]) else rows
        jobs = statement.reader.jobs(claimed, self._as_claimed(owner))
        check_keys(self._roles, jobs)
        group_size = statement.reader.suspicions(claimed[:1])[0] if claimed else 0
        is_full = len(claimed) == at_most(request.size, group_size)
        # Jobs that are claimed now are candidates no more.
        reach = len(claimed) if is_full else len(claimed) + self._count.count(connection, request)
        return ClaimResult(jobs, reach, reach, owner, suspects=bool(group_size))


@dataclass(frozen=True)
class ClaimStatement:
    """A statement that claims, and what reads the jobs in the rows that it returns."""

    forms: CursorStatement[CompiledStatement]
    reader: RowReader

    @property
    def keyset_order(self) -> KeysetOrder | None:
        """The order, if a claim can begin anywhere in it."""
        return self.forms.keyset_order

    def rows(self, connection: sa.Connection, owner: int, request: ClaimRequest, **settled: Any) -> Sequence[Any]:
        """The rows that the statement returns. `settled`: parameters of the settle of the batch before."""
        after = request.after or {}
        parameters = {"claimjobs_size": request.size, "claimjobs_me": owner, **after, **settled}
        return self.reader.all(connection, self.forms.of(request), parameters)


def algorithm(
    backend: Backend, selection: Selection, now: sa.ColumnElement[Any], hold: Hold = "lease"
) -> ClaimStrategy:
    """The shortest way to claim that the database is capable of, for what is to hold the claim."""
    if hold == "transaction":
        return LockOnly(backend, selection)
    return (OneStatement if backend.dialect.claims_in_one_statement else TwoPhases)(backend, selection, now)


def as_claimed(roles: Roles) -> Callable[[int], Mapping[str, Any]]:
    """What the columns that tell a job's state will hold, by name, when it is claimed by an owner."""

    @lru_cache(maxsize=2)  # an owner that was declared dead goes on under another id
    def by(me: int) -> Mapping[str, Any]:
        told = roles.state.becomes(CLAIMED, sa.literal(me))
        return {column.name: one.value if isinstance(one, sa.BindParameter) else one for column, one in told.items()}

    return by

"""The two phases of a claim without the mark: find candidates, lock those that are still free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import sqlalchemy as sa

from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Dialect, Key
from claimjobs.errors import KeyNotUnique
from claimjobs.job import Job
from claimjobs.statements.column_encoding import last_of
from claimjobs.statements.find import KeysetOrder, Selection, find, how_many, walk_of
from claimjobs.statements.lock import find_and_lock, lock, lock_first
from claimjobs.table.backend import Backend
from claimjobs.table.roles import Roles

Statement = TypeVar("Statement")
After = Mapping[str, Any] | None
"""The parameters of a place in the order, beyond which a claim begins to look; None: at the head."""


class ClaimResult(NamedTuple):
    """The outcome of one claim."""

    jobs: list[Job]
    found: int
    """Candidates found in phase 1; of a claim that took all it wanted, at least those it went through."""
    reach: int
    """How far down the candidates phase 2 went to take these jobs."""
    owner: int = 0
    """In whose name they are claimed."""
    suspects: bool = False
    """Whether these are suspects, of which fewer are taken than were wanted."""

    @property
    def collisions(self) -> int:
        """Candidates on the way that others had, or had taken."""
        return self.reach - len(self.jobs)


NOTHING = ClaimResult([], 0, 0)


class ClaimRequest(NamedTuple):
    """What one claim is to do: take `size` jobs out of `limit` candidates, beyond a place or from the head."""

    size: int
    limit: int
    after: After = None

    @property
    def candidates(self) -> dict[str, Any]:
        """The parameters of phase 1."""
        return {"claimjobs_limit": self.limit, **(self.after or {})}


class CursorStatement(Generic[Statement]):
    """A statement in two forms: one looks at a selection from its head, one from beyond a place in its order."""

    def __init__(self, build: Callable[[Selection], Statement], selection: Selection, dialect: Dialect) -> None:
        self.keyset_order = walk_of(selection)
        """The order, if it can be entered anywhere."""
        self._build, self._selection, self._dialect = build, selection, dialect

    @cached_property
    def _from_head(self) -> Statement:
        return self._build(self._selection)

    @cached_property
    def _from_beyond(self) -> Statement:
        order = self.keyset_order
        return self._from_head if order is None else self._build(order.begun(self._selection, self._dialect))

    def of(self, request: ClaimRequest) -> Statement:
        """The one to be sent with this request's parameters. Built when it is wanted first."""
        return self._from_head if request.after is None else self._from_beyond


class LockStrategy(ABC):
    """A way through both phases, of which a claim is made."""

    keyset_order: KeysetOrder | None
    is_lazy: bool

    @abstractmethod
    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        """Lock jobs for a claim. `marked`: what will be written into the jobs, which are shown as if it were."""


class FindThenLock(LockStrategy):
    """Two statements, for any database with SKIP LOCKED: the candidates' keys go to the client and back."""

    is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> None:
        self._roles = roles = backend.roles
        self._find = CursorStatement(lambda some: find(roles, some), selection, backend.dialect)
        self._rows = RowReader(roles, backend.dialect, known)
        self._lock = CompiledStatement(lock(roles, backend.dialect, selection, self._rows.read))
        self.keyset_order = self._find.keyset_order

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        rows = connection.execute(self._find.of(request), request.candidates).all()
        if not rows:
            return NOTHING
        candidates, size = alike(rows, request.size)
        jobs = self._locked(connection, candidates, size, marked)
        return ClaimResult(jobs, len(rows), reach_of(candidates, jobs, size), suspects=bool(rows[0][-1]))

    def _locked(
        self, connection: sa.Connection, candidates: list[Key], size: int, marked: Mapping[str, Any]
    ) -> list[Job]:
        given = {"claimjobs_candidates": candidates, "claimjobs_size": size}
        jobs = self._rows.jobs(self._rows.all(connection, self._lock, given), marked)
        check_keys(self._roles, jobs)
        return jobs


class FindAndLock(LockStrategy):
    """One statement, for a database that can lock what a subquery finds.

    Which of the candidates are suspects is known when they are locked: of those that are not alike the locks are
    held in vain, until the transaction ends.
    """

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> None:
        roles, dialect = backend.roles, backend.dialect
        self._roles = roles
        self.is_lazy = dialect.locks_in_order
        self._rows = RowReader(roles, dialect, known)
        build = lock_first if dialect.locks_in_order else find_and_lock
        self._statement = CursorStatement(
            lambda some: CompiledStatement(build(roles, dialect, some, self._rows.read)), selection, dialect
        )
        self._count = CandidateCount(backend, selection)
        self.keyset_order = self._statement.keyset_order

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        given = {**request.candidates, "claimjobs_size": request.size}
        rows = self._rows.all(connection, self._statement.of(request), given)
        taken, wanted = self._alike(rows, request.size)
        jobs = self._rows.jobs(taken, marked)
        check_keys(self._roles, jobs)
        if len(rows) == request.size:
            reach = max(last_of(taken[-1]), len(taken))
            return ClaimResult(jobs, reach, reach, suspects=wanted < request.size)
        found = self._count.count(connection, request, at_least=len(rows))
        return ClaimResult(jobs, found, found, suspects=wanted < request.size)

    def _alike(self, rows: Sequence[Any], size: int) -> tuple[Sequence[Any], int]:
        """Those of the locked jobs that are taken, and how many can be: such as are as suspect as the first."""
        if not self._rows.has_suspects(rows):
            return rows, size
        kinds = self._rows.suspicions(rows)
        wanted = at_most(size, kinds[0])
        return [row for row, kind in zip(rows, kinds, strict=True) if kind == kinds[0]][:wanted], wanted


class CandidateCount:
    """How many candidates there were, asked for where a claim falls short: it went through all of them."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._count = CursorStatement(lambda some: how_many(backend.roles, some), selection, backend.dialect)

    def count(self, connection: sa.Connection, request: ClaimRequest, at_least: int = 0) -> int:
        """Some may have come or gone since."""
        count: int = connection.execute(self._count.of(request), request.candidates).scalar_one()
        return max(count, at_least)


def lock_strategy(backend: Backend, selection: Selection, known: Sequence[str] = ()) -> LockStrategy:
    """The shortest way through both phases that the database is capable of.

    `known`: columns that are not read, because what will be written into them is known.
    """
    at_once = backend.dialect.finds_and_locks_at_once or backend.dialect.locks_in_order
    return (FindAndLock if at_once else FindThenLock)(backend, selection, known)


def check_keys(roles: Roles, jobs: Sequence[Job]) -> None:
    """What names two rows names none: raises KeyNotUnique. Only a key that is no primary key can."""
    if roles.key_index is not None and len({job.key for job in jobs}) < len(jobs):
        raise KeyNotUnique(roles.name)


def alike(rows: Sequence[Sequence[Any]], size: int) -> tuple[list[Key], int]:
    """The keys of those candidates that are as suspect as the first, and how many of them to take at most."""
    company = rows[0][-1]
    keys = [row[0] if len(row) == 2 else tuple(row[:-1]) for row in rows if row[-1] == company]
    return keys, at_most(size, company)


def at_most(size: int, company: int) -> int:
    """How many jobs to take that were in hand with so many when something went wrong; 0: nothing did."""
    return min(size, max(1, company // 2)) if company else size


def reach_of(candidates: list[Key], jobs: Sequence[Job], size: int) -> int:
    """How far down the candidates one had to go to take these jobs of `size` that were wanted."""
    if len(jobs) < size:
        return len(candidates)
    places = {key: place for place, key in enumerate(candidates, 1)}
    return max(places[job.key] for job in jobs)

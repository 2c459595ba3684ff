"""Claims on a table that must not be altered: they are inserted into a second table, the side-car.

Phase 1 reads the rows that are not claimed. Phase 2 locks some of them, inserts their keys into the side-car, and
reads which claims are its own. Two inserts of one key cannot both succeed: that alone keeps a job from two owners.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from claimjobs.claim.candidates import (
    CandidateCount,
    CandidateFinder,
    CursorStatement,
    check_keys,
    examined_of,
    first_group,
)
from claimjobs.claim.find_and_lock import LockStrategy
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import NOTHING, After, ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import Job, key_of
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection
from claimjobs.statements.owners import alive
from claimjobs.statements.settle import SettleGuard, release
from claimjobs.statements.side_car import SideCarJoin
from claimjobs.table.backend import Backend

TRIES: Final = 3
"""How often a claim locks rows if others have claimed all that it has locked."""


class SideCarFinder(CandidateFinder):
    """Phase 1: it reads the keys of rows that are not claimed, and locks nothing."""

    def __init__(self, backend: Backend, selection: Selection, pair: SideCarJoin) -> None:
        super().__init__(backend, selection)
        self._pair = pair

    def build(self, selection: Selection) -> sa.Select[Any]:
        return statements.find(self._pair, selection)


class SideCarStatements:
    """What both strategies share: the two tables, and the statements that find, lock and read."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self.pair = SideCarJoin(backend.source, backend.roles, backend.dialect, now)
        self.finder = SideCarFinder(backend, selection, self.pair)
        self._lock = statements.lock(self.pair, selection)
        self.reader = RowReader(self.pair.source, backend.dialect)
        self.keyset_order = self.finder.keyset_order

    def locked(self, connection: sa.Connection, candidates: list[Key], size: int) -> list[Key]:
        """The first `size` of the candidates that nobody else has locked, in their order."""
        rows = connection.execute(self._lock, {"claimjobs_candidates": candidates, "claimjobs_size": size})
        return [key_of(row) for row in rows]

    def lock_phase(self, request: ClaimRequest, keys: list[Key]) -> Phase:
        """The statement that locks rows, for `explain`."""
        return Phase("lock", self._lock, {"claimjobs_candidates": keys, "claimjobs_size": request.size})

    def jobs(
        self, connection: sa.Connection, statement: CompiledStatement, keys: list[Key], **values: Any
    ) -> list[Job]:
        """The jobs that a statement returns for these keys, in the order of the keys."""
        rows = statement.rows(connection, {"claimjobs_keys": keys, **values}, self.reader)
        place = {key: number for number, key in enumerate(keys)}
        jobs = [self.reader.job(row, {self.pair.attempts.name: row[-1]}) for row in rows]
        check_keys(self.pair.source, jobs)
        return sorted(jobs, key=lambda job: place[job.key])


class SideCarStrategy(ClaimStrategy):
    """Claims by lease: find, lock the rows, insert their keys, read which claims this owner has."""

    needs_no_transaction = is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._phases = SideCarStatements(backend, selection, now)
        self.keyset_order = self._phases.keyset_order
        self._locks = backend.lock_source
        pair = self._phases.pair
        # A locked row cannot change, so the predicate is not checked again when the claims are read.
        recheck = replace(selection, ready=sa.true()) if self._locks else selection
        self._claim = statements.claim_keys(pair, backend.owners)
        self._claimed = CompiledStatement(statements.claimed(pair, recheck, self._phases.reader.columns))
        self._release = release(SettleGuard(pair.claims, pair.dialect, pair.claims.mine))
        self._alive = sa.select(alive(backend.owners))

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        rows = self._phases.finder.rows(connection, request)
        if not rows:
            return NOTHING
        candidates, size = first_group(rows, request.size)
        keys = self._chosen(connection, candidates, size, suspects=bool(rows[0][-1]))
        jobs = self._insert(connection, keys, owner) if keys else []
        examined = examined_of(candidates, jobs, size) if self._locks else len(keys)
        return ClaimResult(jobs, len(rows), examined, owner, suspects=bool(rows[0][-1]))

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        given = {"claimjobs_keys": keys, "claimjobs_me": owner}
        return [
            self._phases.finder.phase(request),
            *([self._phases.lock_phase(request, keys)] if self._locks else []),
            Phase("insert claims", self._claim, given),
            Phase("read claims", self._claimed.statement, given),
        ]

    def _chosen(self, connection: sa.Connection, candidates: list[Key], size: int, *, suspects: bool) -> list[Key]:
        """The keys to insert. Without locks, these are a run of candidates from a random place: otherwise all consumers
        would insert the same keys, and wait for each other.
        """
        if self._locks:
            return self._phases.locked(connection, candidates, size)
        spare = 0 if suspects else max(0, len(candidates) - size)
        start = random.randint(0, spare)  # noqa: S311
        return candidates[start : start + size]

    def _insert(self, connection: sa.Connection, keys: list[Key], owner: int) -> list[Job]:
        connection.execute(self._claim, {"claimjobs_keys": keys, "claimjobs_me": owner})
        jobs = self._phases.jobs(connection, self._claimed, keys, claimjobs_me=owner)
        if len(jobs) < len(keys):
            self._release_rest(connection, owner, set(keys) - {job.key for job in jobs})
        return jobs

    def _release_rest(self, connection: sa.Connection, owner: int, keys: set[Key]) -> None:
        """Release keys of which no job came: another owner has it, or its row was deleted or changed since phase 1."""
        if not connection.scalar(self._alive, {"claimjobs_me": owner}):
            raise OwnerDead
        connection.execute(self._release, {"claimjobs_keys": list(keys), "claimjobs_me": owner})


class LockedRows(NamedTuple):
    """Rows that a claim has locked, and the candidates of which it chose them."""

    keys: list[Key]
    found: int
    """How many candidates there were."""
    candidates: list[Key]
    size: int
    """How many jobs may be claimed."""
    suspects: bool
    place: After = None
    """The place of the last of these rows in the order, if it is known."""
    end: After = None
    """See `ClaimResult`."""


class SideCarLocks(LockStrategy):
    """Locks rows, and checks again that they are neither claimed nor done.

    The check is needed: what the locking statement read of the claims may be older than its locks, and another
    transaction may have claimed or settled the job in between. If no row is left, it locks rows after these at once:
    from the head it would read all done keys again, and meanwhile others claim what comes after them.
    """

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._phases = SideCarStatements(backend, selection, now)
        self.keyset_order = self._phases.keyset_order
        self._free = CompiledStatement(statements.free(self._phases.pair, self._phases.reader.columns))

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        for _ in range(TRIES):
            rows = self._locked(connection, request)
            jobs = self._phases.jobs(connection, self._free, rows.keys) if rows.keys else []
            if jobs or not rows.keys:
                break
            request = request._replace(after=rows.place or request.after)
        # If others have claimed some of a full claim, the next one goes on after the same place, not from the head.
        found = request.limit if len(jobs) < len(rows.keys) == request.size else rows.found
        examined = examined_of(rows.candidates, jobs, rows.size)
        return ClaimResult(jobs, found, examined, suspects=rows.suspects, end=rows.end)

    @abstractmethod
    def _locked(self, connection: sa.Connection, request: ClaimRequest) -> LockedRows:
        """Find rows and lock them."""

    def _recheck(self, keys: list[Key]) -> Phase:
        return Phase("check again", self._free.statement, {"claimjobs_keys": keys})


class SideCarFindThenLock(SideCarLocks):
    """Two statements, as `find_and_lock.FindThenLock`."""

    is_lazy = False

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [self._phases.finder.phase(request), self._phases.lock_phase(request, keys), self._recheck(keys)]

    def _locked(self, connection: sa.Connection, request: ClaimRequest) -> LockedRows:
        rows = self._phases.finder.rows(connection, request)
        candidates, size = first_group(rows, request.size) if rows else ([], request.size)
        keys = self._phases.locked(connection, candidates, size) if rows else []
        ended = keys or len(rows) < request.limit
        end = None if ended else self._phases.finder.end(connection, request)
        return LockedRows(keys, len(rows), candidates, size, bool(rows and rows[0][-1]), end=end)


class SideCarFindAndLock(SideCarLocks):
    """One statement, for a database that `locks_in_order`. Rows of another group stay locked until the commit."""

    is_lazy = True

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        super().__init__(backend, selection, now)
        self._statement = FindAndLockStatement(backend, selection, self._phases.pair)
        self._count = SideCarCount(backend, selection, self._phases.pair)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        return [Phase("find and lock", self._statement.of(request), parameters), self._recheck(keys)]

    def _locked(self, connection: sa.Connection, request: ClaimRequest) -> LockedRows:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        rows = connection.execute(self._statement.of(request), parameters).all()
        if not rows:
            return LockedRows([], self._count.count(connection, request), [], request.size, suspects=False)
        parts = len(self._phases.pair.source.key)
        candidates, size = first_group([(*row[:parts], row[-1]) for row in rows], request.size)
        is_full = len(rows) == request.size
        found = len(rows) if is_full else self._count.count(connection, request, at_least=len(rows))
        place = self._place_of(rows[-1]._asdict())
        return LockedRows(candidates[:size], found, candidates[:size], size, bool(rows[0][-1]), place)

    def _place_of(self, row: Mapping[str, Any]) -> After:
        order = self.keyset_order
        return order.place(row) if order is not None and all(column.name in row for column in order.columns) else None


class FindAndLockStatement(CursorStatement[sa.Select[Any]]):
    """Finds and locks, and returns keys."""

    def __init__(self, backend: Backend, selection: Selection, pair: SideCarJoin) -> None:
        super().__init__(selection, backend.dialect)
        self._pair = pair

    def build(self, selection: Selection) -> sa.Select[Any]:
        return statements.find_and_lock(self._pair, selection)


class SideCarCount(CandidateCount):
    """Counts candidates after a claim that got fewer jobs than it wanted."""

    def __init__(self, backend: Backend, selection: Selection, pair: SideCarJoin) -> None:
        super().__init__(backend, selection)
        self._pair = pair

    def build(self, selection: Selection) -> sa.Select[Any]:
        return statements.how_many(self._pair, selection)


def side_car_locks(backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> SideCarLocks:
    """The shortest way to find and lock that the database can do."""
    return (SideCarFindAndLock if backend.dialect.locks_in_order else SideCarFindThenLock)(backend, selection, now)

"""Locks of rows of a table that must not be altered: a second table, the side-car, says which are done or dead."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
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
from claimjobs.claim.locking import JobLocks
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import Job, key_of
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection, keyset_order_of
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


class SideCarLocks(JobLocks):
    """Locks rows, and checks again that they are neither claimed nor done.

    The check is needed: what the locking statement read of the claims may be older than its locks, and another
    transaction may have claimed or settled the job in between. If no row is left, it locks rows after these at once:
    from the head it would read all done keys again, and meanwhile others claim what comes after them.
    """

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._pair = SideCarJoin(backend.source, backend.roles, backend.dialect, now)
        self._reader = RowReader(backend.source, backend.dialect)
        self._free = CompiledStatement(statements.free(self._pair, self._reader.columns))
        self.keyset_order = keyset_order_of(selection)

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        for _ in range(TRIES):
            rows = self._locked(connection, request)
            jobs = self._free_jobs(connection, rows.keys) if rows.keys else []
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

    def _free_jobs(self, connection: sa.Connection, keys: list[Key]) -> list[Job]:
        """The jobs of these keys that are free, in the order of the keys."""
        rows = self._free.rows(connection, {"claimjobs_keys": keys}, self._reader)
        place = {key: number for number, key in enumerate(keys)}
        jobs = [self._reader.job(row, {self._pair.attempts.name: row[-1]}) for row in rows]
        check_keys(self._pair.source, jobs)
        return sorted(jobs, key=lambda job: place[job.key])

    def _recheck(self, keys: list[Key]) -> Phase:
        return Phase("check again", self._free.statement, {"claimjobs_keys": keys})


class SideCarFindThenLock(SideCarLocks):
    """Two statements, as `find_and_lock.FindThenLock`."""

    is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        super().__init__(backend, selection, now)
        self._finder = SideCarFinder(backend, selection, self._pair)
        self._lock = statements.lock(self._pair, selection)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        candidates = {"claimjobs_candidates": keys, "claimjobs_size": request.size}
        return [self._finder.phase(request), Phase("lock", self._lock, candidates), self._recheck(keys)]

    def _locked(self, connection: sa.Connection, request: ClaimRequest) -> LockedRows:
        rows = self._finder.rows(connection, request)
        candidates, size = first_group(rows, request.size) if rows else ([], request.size)
        parameters = {"claimjobs_candidates": candidates, "claimjobs_size": size}
        keys = [key_of(row) for row in connection.execute(self._lock, parameters)] if rows else []
        ended = keys or len(rows) < request.limit
        end = None if ended else self._finder.end(connection, request)
        return LockedRows(keys, len(rows), candidates, size, bool(rows and rows[0][-1]), end=end)


class SideCarFindAndLock(SideCarLocks):
    """One statement, for a database that `locks_in_order`. Rows of another group stay locked until the commit."""

    is_lazy = True

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        super().__init__(backend, selection, now)
        self._statement = FindAndLockStatement(backend, selection, self._pair)
        self._count = SideCarCount(backend, selection, self._pair)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        return [Phase("find and lock", self._statement.of(request), parameters), self._recheck(keys)]

    def _locked(self, connection: sa.Connection, request: ClaimRequest) -> LockedRows:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        rows = connection.execute(self._statement.of(request), parameters).all()
        if not rows:
            return LockedRows([], self._count.count(connection, request), [], request.size, suspects=False)
        parts = len(self._pair.source.key)
        candidates, size = first_group([(*row[:parts], row[-1]) for row in rows], request.size)
        is_full = len(rows) == request.size
        found = len(rows) if is_full else self._count.count(connection, request, at_least=len(rows))
        last, order = rows[-1]._asdict(), self.keyset_order
        has_place = order is not None and all(column.name in last for column in order.columns)
        place = order.place(last) if order is not None and has_place else None
        return LockedRows(candidates[:size], found, candidates[:size], size, bool(rows[0][-1]), place)


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

"""Find candidates and lock those that are still free: all of a claim but the mark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import (
    CandidateCount,
    CandidateFinder,
    CursorStatement,
    check_keys,
    examined_of,
    first_group,
    first_locked_group,
)
from claimjobs.claim.locking import JobLocks, Locking
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.options import HOLDS
from claimjobs.statements.column_encoding import last_of
from claimjobs.statements.find import SIZE, Selection
from claimjobs.statements.lock import find_and_lock, lock, lock_first
from claimjobs.table.backend import Backend


class FindThenLock(JobLocks):
    """Two statements, for any database with SKIP LOCKED: the client sends the candidates' keys back."""

    is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> None:
        self._roles = backend.roles
        self._finder = CandidateFinder(backend, selection)
        self._reader = RowReader(backend.roles, backend.dialect, known)
        self._lock = CompiledStatement(lock(backend.roles, backend.dialect, selection, self._reader.parts))
        self.keyset_order = self._finder.keyset_order

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        rows = self._finder.rows(connection, request)
        return self.lock_candidates(connection, rows, request, marked) if rows else NOTHING

    def lock_candidates(
        self,
        connection: sa.Connection,
        rows: Sequence[Any],
        request: ClaimRequest,
        marked: Mapping[str, Any],
        *,
        taken: Collection[Key] = (),
    ) -> ClaimResult:
        """Lock those of the candidates that are still free. `rows`: of a search. `taken`: keys that are not free."""
        candidates, size = first_group(rows, request.size)
        free = [key for key in candidates if key not in taken]
        jobs, suspects = self._locked(connection, free, size, marked) if free else ([], False)
        end = self._finder.end(connection, request) if not jobs and len(rows) >= request.limit else None
        return ClaimResult(jobs, len(rows), examined_of(candidates, jobs, size), suspects=suspects, end=end)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        candidates = {"claimjobs_candidates": keys, "claimjobs_size": request.size}
        return [self._finder.phase(request), Phase("lock", self._lock.statement, candidates)]

    def _locked(
        self, connection: sa.Connection, candidates: list[Key], size: int, marked: Mapping[str, Any]
    ) -> tuple[list[Job], bool]:
        """The jobs; whether they are suspects."""
        parameters = {"claimjobs_candidates": candidates, "claimjobs_size": size}
        locked = self._lock.rows(connection, parameters, self._reader)
        chosen, suspects = first_locked_group(self._reader, locked, size)
        jobs = self._reader.jobs(chosen, marked)
        check_keys(self._roles, jobs)
        return jobs, suspects


class FindAndLock(JobLocks):
    """One statement, for a database that can lock what a subquery finds."""

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> None:
        self._roles = backend.roles
        self.is_lazy = backend.dialect.locks_in_order
        self._reader = RowReader(backend.roles, backend.dialect, known)
        self._statement = FindAndLockStatement(backend, selection, self._reader)
        self._count = CandidateCount(backend, selection)
        self._finder = CandidateFinder(backend, selection)
        self.keyset_order = self._statement.keyset_order

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        rows = self._statement.of(request).rows(connection, parameters, self._reader)
        chosen, suspects = first_locked_group(self._reader, rows, request.size)
        jobs = self._reader.jobs(chosen, marked)
        check_keys(self._roles, jobs)
        if len(rows) == request.size:
            examined = max(last_of(chosen[-1]), len(chosen))
            return ClaimResult(jobs, examined, examined, suspects=suspects)
        found = self._count.count(connection, request, at_least=len(rows))
        ended = bool(rows) or found < request.limit or self.is_lazy
        end = None if ended else self._finder.end(connection, request)
        return ClaimResult(jobs, found, found, suspects=suspects, end=end)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        return [Phase("find and lock", self._statement.of(request).statement, parameters)]


class FindAndLockStatement(CursorStatement[CompiledStatement]):
    """Finds and locks, and returns the jobs."""

    def __init__(self, backend: Backend, selection: Selection, reader: RowReader) -> None:
        super().__init__(selection, backend.dialect)
        self._backend, self._reader = backend, reader

    def build(self, selection: Selection) -> CompiledStatement:
        roles, dialect = self._backend.roles, self._backend.dialect
        statement = lock_first if dialect.locks_in_order else find_and_lock
        return CompiledStatement(statement(roles, dialect, selection, self._reader.parts), constant=SIZE.key)


class RowLocks(Locking):
    """Row locks, by the shortest way to find and lock that the database can do."""

    holds = HOLDS

    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        at_once = backend.dialect.finds_and_locks_at_once or backend.dialect.locks_in_order
        return (FindAndLock if at_once else FindThenLock)(backend, selection, known)

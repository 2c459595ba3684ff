"""Locking: how candidates become locked jobs. A queue chooses one by what the database can do, or is given one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import (
    CandidateFinder,
    CursorStatement,
    at_most,
    check_keys,
    examined_of,
    first_group,
    first_locked_group,
    place_of,
)
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.row_reader import UNMARKED, Marked, RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.statement_size import cut, most_keys
from claimjobs.dialects import Key
from claimjobs.job import Job, key_of, with_entry
from claimjobs.options import HOLDS, HoldKind
from claimjobs.statements.claim import find_and_lock, last_of, lock, lock_first
from claimjobs.statements.find import SIZE, KeysetOrder, Selection
from claimjobs.statements.side_car import SideCarJoin, recheck
from claimjobs.table.backend import Backend


class JobLocks(ABC):
    """Finds and locks jobs of one selection, in the caller's transaction: in one statement, or one after the other."""

    keyset_order: KeysetOrder | None
    """The order, if a claim can begin anywhere in it."""
    is_lazy: bool
    """Whether the database reads no more candidates than are needed. Then the limit may be high."""

    @abstractmethod
    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        """Lock jobs for a request. `marked`: values that the caller will write into the jobs; the jobs show them.

        The jobs must be due after they were locked: others may have claimed or settled some of the candidates before.
        With hold="lease" their rows must be locked until the transaction ends: the caller writes its id into them, and
        only a row lock keeps another consumer from claiming them between the check and the commit.
        """

    @abstractmethod
    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        """The statements that find and lock jobs with these keys."""


class Locking(ABC):
    """A way to find and lock jobs, for `Queue(locking=...)`. Without one the row locks of the database are used."""

    holds: Sequence[HoldKind] = ("transaction",)
    """The values of `hold` that it may be used with. One with "lease" locks the rows until the transaction ends; one
    without is refused beside consumers that claim by lease, because it does not exclude them.
    """

    @abstractmethod
    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        """The locks for a selection. `known`: names of columns that need not be read, because the claim writes them."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what it has opened. Called when the Queue is closed; a later claim opens it again."""


class RowLocks(Locking):
    """Row locks: one statement finds and locks where the database can do that; else there are two."""

    holds = HOLDS

    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        at_once = backend.dialect.finds_and_locks_at_once or backend.dialect.locks_in_order
        return (FindAndLock if at_once else FindThenLock)(backend, selection, known)


class TwoPhases(ClaimStrategy):
    """Find and lock jobs, then record the claim: in the rows of the jobs, in a claim row, or nowhere."""

    needs_no_transaction = False

    def __init__(self, locks: JobLocks, record: ClaimRecord) -> None:
        """`locks` need not read the columns of `record.written`."""
        self._locks, self._record = locks, record
        self.keyset_order, self.is_lazy = locks.keyset_order, locks.is_lazy

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        claimed = self._locks.lock(connection, request, self._record.written_by(owner))
        if claimed.jobs:
            claimed = self._record.record(connection, owner, claimed, request)
        return claimed._replace(owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._locks.phases(request, keys), *self._record.phases(owner, keys)]


class CandidateLock:
    """Phase 2 as a statement of its own: it locks those of some candidates that are still due and unlocked."""

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str]) -> None:
        self._roles, self.most_keys = backend.roles, most_keys(backend.roles.key, backend.dialect)
        self._reader = RowReader(backend.roles, backend.dialect, known)
        self._statement = CompiledStatement(lock(backend.roles, backend.dialect, selection, self._reader.parts))

    def jobs(
        self, connection: sa.Connection, candidates: Sequence[Key], size: int, marked: Marked
    ) -> tuple[list[Job], bool]:
        """The first jobs that it could lock, at most `size`; and whether they are suspects. It is sent again only if
        there are more candidates than one statement may have.
        """
        locked: list[Any] = []
        for some in cut(candidates, self.most_keys):
            given = {"claimjobs_candidates": some, "claimjobs_size": size - len(locked)}
            locked += self._statement.rows(connection, given, self._reader)
            if len(locked) >= size:
                break
        if not locked:
            return [], False
        chosen, suspects = first_locked_group(self._reader, locked, size)
        jobs = self._reader.jobs(chosen, marked)
        check_keys(self._roles, jobs)
        return jobs, suspects

    def phase(self, request: ClaimRequest, keys: list[Key]) -> Phase:
        given = {"claimjobs_candidates": keys, "claimjobs_size": request.size}
        return Phase("lock", self._statement.statement, given)


class FindThenLock(JobLocks):
    """Two statements, for any database with SKIP LOCKED: the client sends the candidates' keys back."""

    is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> None:
        self._finder = CandidateFinder(backend, selection)
        self._lock = CandidateLock(backend, selection, known)
        self.keyset_order = self._finder.keyset_order

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        rows = self._finder.rows(connection, request)
        return self.lock_candidates(connection, rows, request, marked) if rows else NOTHING

    def lock_candidates(
        self,
        connection: sa.Connection,
        rows: Sequence[Any],
        request: ClaimRequest,
        marked: Marked,
        *,
        taken: Collection[Key] = (),
    ) -> ClaimResult:
        """Lock those of the candidates that are still due. `rows`: of a search. `taken`: the keys that others have."""
        candidates, size = first_group(rows, request.size)
        jobs, suspects = self._lock.jobs(connection, [key for key in candidates if key not in taken], size, marked)
        end = self._finder.end(connection, request) if not jobs and len(rows) >= request.limit else None
        return ClaimResult(jobs, len(rows), examined_of(candidates, jobs, size), suspects=suspects, end=end)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [
            Phase("find", self._finder.form_for(request), request.find_parameters),
            self._lock.phase(request, keys),
        ]


class FindAndLock(CursorStatement[CompiledStatement], JobLocks):
    """One statement, for a database that can lock what a subquery finds, or that locks in order."""

    def __init__(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> None:
        super().__init__(backend, selection)
        self.is_lazy = backend.dialect.locks_in_order
        self._reader = RowReader(backend.roles, backend.dialect, known)
        self._finder = CandidateFinder(backend, selection)

    def build(self, selection: Selection) -> CompiledStatement:
        statement = lock_first if self.is_lazy else find_and_lock
        found = statement(self._roles, self._backend.dialect, selection, self._reader.parts)
        return CompiledStatement(found, constant=SIZE.key)

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        rows = self.form_for(request).rows(connection, parameters, self._reader)
        chosen, suspects = first_locked_group(self._reader, rows, request.size)
        jobs = self._reader.jobs(chosen, marked)
        check_keys(self._roles, jobs)
        if len(rows) == request.size:
            examined = max(last_of(chosen[-1]), len(chosen))
            return ClaimResult(jobs, examined, examined, suspects=suspects)
        candidates = max(len(rows), self._finder.count(connection, request))  # some may have gone since
        ended = bool(rows) or candidates < request.limit or self.is_lazy
        end = None if ended else self._finder.end(connection, request)
        return ClaimResult(jobs, candidates, candidates, suspects=suspects, end=end)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        parameters = {**request.find_parameters, "claimjobs_size": request.size}
        return [Phase("find and lock", self.form_for(request).statement, parameters)]


class RecheckedLocks(JobLocks):
    """Finds and locks as other JobLocks do, and reads the predicate once more under the locks."""

    def __init__(self, backend: Backend, selection: Selection, locks: JobLocks) -> None:
        self._locks = locks
        self.keyset_order, self.is_lazy = locks.keyset_order, locks.is_lazy
        # As a statement of its own it sees what was committed in other tables before the locks were taken.
        source, due = backend.source, sa.select(*backend.source.key).where(selection.due)
        self._recheck = backend.dialect.restrict_to_keys(due, source.key, source.key_index)

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        locked = self._locks.lock(connection, request, marked)
        if not locked.jobs:
            return locked
        given = {"claimjobs_keys": [job.key for job in locked.jobs]}
        due = set(map(key_of, connection.execute(self._recheck, given)))
        return locked.only([job for job in locked.jobs if job.key in due], request)

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._locks.phases(request, keys), Phase("check again", self._recheck, {"claimjobs_keys": keys})]


class SideCarLocks(JobLocks):
    """Locks rows of a table with a side-car as other JobLocks do, and checks then that they may still be claimed: the
    claim rows say which are claimed, the side-car which are done or dead.

    The check is needed: what the locking statement read of the claims may be older than its locks, and another
    transaction may have claimed or settled the job in between. Rows of another group of suspects stay locked until the
    commit, because the side-car tells the groups.
    """

    def __init__(self, backend: Backend, now: sa.ColumnElement[Any], locks: JobLocks) -> None:
        """`locks`: of rows of the user's table."""
        pair = SideCarJoin(backend.source, backend.roles, backend.dialect, now)
        self._recheck, self._attempts = recheck(pair), pair.attempts.name
        self._locks, self.keyset_order, self.is_lazy = locks, locks.keyset_order, locks.is_lazy

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        locked = self._locks.lock(connection, request)
        if not locked.jobs:
            return locked
        rows = connection.execute(self._recheck, {"claimjobs_keys": [job.key for job in locked.jobs]})
        read = {key_of(key): (attempts, group_size) for *key, attempts, group_size in rows}
        left = locked.only([job for job in locked.jobs if job.key in read], request)
        if not left.jobs:  # the search goes on behind them: before them there may be many done keys
            return left._replace(end=place_of(self.keyset_order, locked.jobs[-1]))
        group_size = read[left.jobs[0].key][1]
        chosen = [job for job in left.jobs if read[job.key][1] == group_size][: at_most(request.size, group_size)]
        claimed = [with_entry(job, {self._attempts: read[job.key][0]}) for job in chosen]
        return left._replace(jobs=claimed, suspects=bool(group_size))

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._locks.phases(request, keys), Phase("check again", self._recheck, {"claimjobs_keys": keys})]

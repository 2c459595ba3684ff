"""Claims in two phases, find and lock, for any database with SKIP LOCKED. A lease also marks what it has locked."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.claim.candidates import key_not_unique
from claimjobs.claim.locking import JobLocks
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, Phase, Unmarked
from claimjobs.claim.written_claim import ClaimedValues
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.statements.lock import mark
from claimjobs.table.backend import Backend


class TwoPhases(ClaimStrategy):
    """Claims by lease: find and lock, then mark the jobs as owned."""

    needs_no_transaction = False

    def __init__(self, backend: Backend, lock: JobLocks, values: ClaimedValues, now: sa.ColumnElement[object]) -> None:
        """`lock` does not read the columns of `values`."""
        self._lock, self._values = lock, values
        self._name = backend.roles.name
        self._update = CompiledStatement(mark(backend.roles, backend.dialect, now, backend.owners))
        self.keyset_order, self.is_lazy = self._lock.keyset_order, self._lock.is_lazy

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        result = self._lock.lock(connection, request, self._values.of(owner))
        self._mark(connection, owner, result.jobs)
        return result._replace(owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        by = {"claimjobs_keys": keys, "claimjobs_me": owner}
        return [*self._lock.phases(request, keys), Phase("mark", self._update.statement, by)]

    def _mark(self, connection: sa.Connection, owner: int, jobs: list[Job]) -> None:
        """Write the owner into locked jobs. Raises KeyUnfit, and Unmarked where fewer rows were written."""
        if not jobs:
            return
        marked = self._update.count(connection, {"claimjobs_keys": [job.key for job in jobs], "claimjobs_me": owner})
        if marked > len(jobs):
            raise key_not_unique(self._name)
        if marked < len(jobs):
            raise Unmarked(marked, jobs)


class LockOnly(ClaimStrategy):
    """Claims by the row locks of an open transaction: find and lock, and write nothing."""

    needs_no_transaction = False

    def __init__(self, lock: JobLocks) -> None:
        self._lock = lock
        self.keyset_order, self.is_lazy = self._lock.keyset_order, self._lock.is_lazy

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        return self._lock.lock(connection, request)._replace(owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return self._lock.phases(request, keys)

"""Claims in two phases, find and lock, for any database with SKIP LOCKED. A lease also marks what it has locked."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.claim.claimed_values import ClaimedValues
from claimjobs.claim.locking import JobLocks
from claimjobs.claim.mark import Mark
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, Phase
from claimjobs.dialects import Key
from claimjobs.table.backend import Backend


class TwoPhases(ClaimStrategy):
    """Claims by lease: find and lock, then mark the jobs as owned."""

    needs_no_transaction = False

    def __init__(self, backend: Backend, lock: JobLocks, values: ClaimedValues, now: sa.ColumnElement[object]) -> None:
        """`lock` does not read the columns of `values`."""
        self._lock, self._values = lock, values
        self._mark = Mark(backend, now)
        self.keyset_order, self.is_lazy = self._lock.keyset_order, self._lock.is_lazy

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        result = self._lock.lock(connection, request, self._values.of(owner))
        self._mark.write(connection, owner, result.jobs)
        return result._replace(owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._lock.phases(request, keys), self._mark.phase(owner, keys)]


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

"""Claims in two phases, find and lock, for any database with SKIP LOCKED. Then the claim is recorded."""

from __future__ import annotations

import sqlalchemy as sa

from claimjobs.claim.batch_statement import BatchStatement
from claimjobs.claim.locking import JobLocks
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, Phase
from claimjobs.dialects import Key


class TwoPhases(ClaimStrategy):
    """Find and lock jobs, then record the claim: in the rows of the jobs, in a claim row, or nowhere."""

    needs_no_transaction = False

    def __init__(self, locks: JobLocks, record: ClaimRecord, at_once: BatchStatement | None = None) -> None:
        """`locks` need not read the columns of `record.values_of`."""
        self._locks, self._record = locks, record
        self.keyset_order, self.is_lazy = locks.keyset_order, locks.is_lazy
        self.at_once = at_once
        """One statement for a claim that is sent together with a settle; None: there is none."""

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        claimed = self._locks.lock(connection, request, self._record.values_of(owner))
        if claimed.jobs:
            claimed = self._record.record(connection, owner, claimed, request)
        return claimed._replace(owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._locks.phases(request, keys), *self._record.phases(owner, keys)]

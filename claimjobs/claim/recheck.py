"""RecheckedLocks: for a predicate that reads other rows than that of the job, as `EXISTS (SELECT ...)` does.

A statement that locks a row reads the row as it is then, and all other rows as they were when the statement began. So
it may lock a job whose handler has made the predicate false in another table meanwhile. The statement after it sees
what was committed before the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.locking import JobLocks
from claimjobs.claim.row_reader import AS_IT_IS
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, Phase
from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.statements.find import Selection
from claimjobs.statements.lock import still_ready
from claimjobs.table.backend import Backend


class RecheckedLocks(JobLocks):
    """Finds and locks as another strategy does, and reads the predicate once more under the locks."""

    def __init__(self, backend: Backend, selection: Selection, locks: JobLocks) -> None:
        self._locks = locks
        self.keyset_order, self.is_lazy = locks.keyset_order, locks.is_lazy
        self._still_ready = still_ready(backend.source, backend.dialect, selection)

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        locked = self._locks.lock(connection, request, marked)
        if not locked.jobs:
            return locked
        rows = connection.execute(self._still_ready, _these([job.key for job in locked.jobs])).all()
        if len(rows) == len(locked.jobs):
            return locked
        ready = set(map(key_of, rows))
        jobs = [job for job in locked.jobs if job.key in ready]
        # There may be more: the next claim goes on from the same place.
        return locked._replace(jobs=jobs, found=max(request.limit, locked.found))

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._locks.phases(request, keys), Phase("check again", self._still_ready, _these(keys))]


def _these(keys: list[Key]) -> dict[str, Any]:
    return {"claimjobs_keys": keys}

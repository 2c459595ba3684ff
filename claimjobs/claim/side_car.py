"""Locks of rows of a table that must not be altered: a second table, the side-car, says which are done or dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import at_most, place_of
from claimjobs.claim.locking import JobLocks, Locking
from claimjobs.claim.row_reader import AS_IT_IS
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, Phase
from claimjobs.dialects import Key
from claimjobs.job import key_of, with_claim
from claimjobs.statements import side_car as statements
from claimjobs.statements.find import Selection
from claimjobs.statements.side_car import SideCarJoin
from claimjobs.table.backend import Backend


class SideCarLocks(JobLocks):
    """Locks rows as other claims do, and checks again that they are neither claimed nor done.

    The check is needed: what the locking statement read of the claims may be older than its locks, and another
    transaction may have claimed or settled the job in between. Rows of another group of suspects stay locked until the
    commit, because the side-car tells the groups.
    """

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any], locking: Locking) -> None:
        pair = SideCarJoin(backend.source, backend.roles, backend.dialect, now)
        self._locks = locking.locks(replace(backend, roles=backend.source, user_table=None), selection)
        self._free, self._attempts = statements.free(pair), pair.attempts.name
        self.keyset_order, self.is_lazy = self._locks.keyset_order, self._locks.is_lazy

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        locked = self._locks.lock(connection, request)
        if not locked.jobs:
            return locked
        keys = [job.key for job in locked.jobs]
        rows = connection.execute(self._free, {"claimjobs_keys": keys})
        free = {key_of(key): (attempts, group_size) for *key, attempts, group_size in rows}
        jobs = [job for job in locked.jobs if job.key in free]
        if not jobs:  # the search goes on behind them: before them there may be many done keys
            end = place_of(self.keyset_order, locked.jobs[-1])
            return locked._replace(jobs=[], found=max(request.limit, locked.found), end=end)
        group_size = free[jobs[0].key][1]
        wanted = at_most(request.size, group_size)
        chosen = [job for job in jobs if free[job.key][1] == group_size][:wanted]
        claimed = [with_claim(job, {self._attempts: free[job.key][0]}) for job in chosen]
        # If others have claimed some of them, the next claim goes on after the same place, not from the head.
        found = locked.found if len(jobs) == len(keys) else max(request.limit, locked.found)
        return locked._replace(jobs=claimed, found=found, suspects=bool(group_size))

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [*self._locks.phases(request, keys), Phase("check again", self._free, {"claimjobs_keys": keys})]

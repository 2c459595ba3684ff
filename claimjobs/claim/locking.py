"""Locking: how candidates become locked jobs. A queue chooses one by what the database can do, or is given one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.row_reader import AS_IT_IS
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, Phase
from claimjobs.dialects import Key
from claimjobs.job import key_of
from claimjobs.options import HoldKind
from claimjobs.statements.find import KeysetOrder, Selection
from claimjobs.statements.lock import still_ready
from claimjobs.table.backend import Backend


class JobLocks(ABC):
    """Finds and locks jobs of one selection, in the caller's transaction: in one statement, or one after the other."""

    keyset_order: KeysetOrder | None
    """The order, if a claim can begin anywhere in it."""
    is_lazy: bool
    """Whether the database reads no more candidates than are needed. Then the limit may be high."""

    @abstractmethod
    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        """Lock jobs for a request. `marked`: values that the caller will write into the jobs; the jobs show them.

        The jobs must be ready after they were locked: others may have claimed or settled some of the candidates before.
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

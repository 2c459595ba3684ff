"""Claims per batch: find and lock jobs, then record them as one row of `claimjobs_batches`. No job is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import CursorStatement
from claimjobs.claim.locking import JobLocks
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.claim.written_claim import WrittenClaim, can_be_committed_unread
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.transactions import lost_if_it_fails
from claimjobs.dialects import Key
from claimjobs.job import Job, key_of
from claimjobs.statements import claim_rows as statements
from claimjobs.statements.claim import claim_batch
from claimjobs.statements.claim_rows import new_keys
from claimjobs.statements.find import SIZE, KeysetOrder, Selection, keyset_order_of
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ClaimRows


class BatchStatement(CursorStatement[CompiledStatement]):
    """The statement. A second one must look at the claim rows again, and be committed with it."""

    def __init__(self, backend: Backend, selection: Selection, claim_rows: ClaimRows, order: KeysetOrder) -> None:
        super().__init__(selection, backend.dialect)
        self.claim_rows, self.dialect = claim_rows, backend.dialect
        self.reader = RowReader(backend.roles, backend.dialect, before=1)
        self._backend, self._order = backend, order
        self._written = WrittenClaim(backend, selection)
        self._left = new_keys(claim_rows)

    def build(self, selection: Selection) -> CompiledStatement:
        backend = self._backend
        return CompiledStatement(
            claim_batch(
                backend.roles,
                backend.dialect,
                selection,
                self._order,
                claim_rows=self.claim_rows,
                owners=backend.owners,
                read=self.reader.parts,
            ),
            constant=SIZE.key,
        )

    def parameters(self, owner: int, number: int, request: ClaimRequest) -> dict[str, Any]:
        """Of the statement for this request. `number`: of the batch."""
        after = request.after or {}
        return {"claimjobs_me": owner, "claimjobs_number": number, "claimjobs_size": request.size, **after}

    def result(
        self, connection: sa.Connection, rows: Sequence[Any], request: ClaimRequest, *, owner: int, number: int
    ) -> ClaimResult:
        """The result of a claim that returned these rows. `owner`, `number`: of its batch."""
        if rows[0][0] < 0:  # the owner was declared dead: the next claim registers a new id
            return NOTHING
        claimed = self._written.result(connection, rows, request, reader=self.reader, owner=owner)
        return claimed._replace(batch=number if claimed.jobs else 0)

    def without_taken(self, connection: sa.Connection, claimed: ClaimResult, request: ClaimRequest) -> ClaimResult:
        """The result without the jobs that the second look took out of its batch, because another batch has them."""
        new = {"claimjobs_new_me": claimed.owner, "claimjobs_new_number": claimed.batch}
        with lost_if_it_fails(connection):
            left = {key_of(row) for row in connection.execute(self._left, new)}
        jobs = [job for job in claimed.jobs if job.key in left]
        # There may be more: the next claim goes on from the same place.
        return claimed._replace(jobs=jobs, found=request.limit, batch=claimed.batch if jobs else 0)


def batch_statement(backend: Backend, selection: Selection, claim_rows: ClaimRows) -> BatchStatement | None:
    """The statement, which is committed before its result is read; None where it cannot be used."""
    order = keyset_order_of(selection)
    if order is None or not (can_be_committed_unread(backend.roles) and backend.dialect.pipelines):
        return None
    return BatchStatement(backend, selection, claim_rows, order)


NUMBERS: Final = count(1)
"""Numbers of batches. An owner's claims are all made in one process, so none of its batches has a number twice."""


class BatchClaims(ClaimStrategy):
    """Claims by lease, recorded per batch.

    A row that was only locked is not changed, so the next claim that locks it is not told. Therefore it looks again at
    the claim rows under its locks: see `statements.claim_rows.record`.
    """

    needs_no_transaction = False

    def __init__(
        self, backend: Backend, claim_rows: ClaimRows, lock: JobLocks, at_once: BatchStatement | None = None
    ) -> None:
        self.at_once = at_once
        """One statement for a claim that is sent together with a settle; None: there is none."""
        self._lock = lock
        self.keyset_order, self.is_lazy = lock.keyset_order, lock.is_lazy
        self._record = CompiledStatement(statements.record(claim_rows, backend.owners))
        self._claim_rows = claim_rows
        self._open_now = statements.open_now(claim_rows)

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        locked = self._lock.lock(connection, request)
        number = next(NUMBERS)
        jobs = self._recorded(connection, owner, number, locked.jobs) if locked.jobs else []
        # If others have claimed some of a full claim, the next one goes on after the same place, not from the head.
        found = request.limit if len(jobs) < len(locked.jobs) == request.size else locked.found
        return locked._replace(jobs=jobs, found=found, owner=owner, batch=number if jobs else 0)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [
            *self._lock.phases(request, keys),
            Phase("record", self._record.statement, self._parameters(owner, 0, keys)),
        ]

    def _recorded(self, connection: sa.Connection, owner: int, number: int, jobs: list[Job]) -> list[Job]:
        """Record those of the locked jobs that are in no claim row now, and return them. Raises OwnerDead."""
        if self._is_recorded(connection, owner, number, jobs):
            return jobs
        keys = [job.key for job in jobs]
        given = {"claimjobs_keys": keys, **self._claim_rows.range_of(keys)}
        taken = {key_of(row) for row in connection.execute(self._open_now, given)}
        free = [job for job in jobs if job.key not in taken]
        if (free or not taken) and not self._is_recorded(connection, owner, number, free or jobs):
            raise OwnerDead
        return free

    def _is_recorded(self, connection: sa.Connection, owner: int, number: int, jobs: list[Job]) -> bool:
        return self._record.count(connection, self._parameters(owner, number, [job.key for job in jobs])) == 1

    def _parameters(self, owner: int, number: int, keys: list[Key]) -> dict[str, object]:
        return {
            "claimjobs_me": owner,
            "claimjobs_number": number,
            "claimjobs_meant": len(keys),
            "claimjobs_keys": keys,
            "claimjobs_json": keys,
            **self._claim_rows.range_of(keys),
        }

"""A claim per batch in one statement, for a database that can return what it writes: find, lock and record at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import CursorStatement
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult
from claimjobs.claim.written_claim import WrittenClaim, can_be_committed_unread
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.transactions import lost_if_it_fails
from claimjobs.job import key_of
from claimjobs.statements.batches import new_keys
from claimjobs.statements.claim import claim_batch
from claimjobs.statements.find import SIZE, KeysetOrder, Selection, keyset_order_of
from claimjobs.table.backend import Backend
from claimjobs.table.batches import OpenBatches


class BatchStatement(CursorStatement[CompiledStatement]):
    """The statement. A second one must look at the open batches again, and be committed with it."""

    def __init__(self, backend: Backend, selection: Selection, batches: OpenBatches, order: KeysetOrder) -> None:
        super().__init__(selection, backend.dialect)
        self.batches, self.dialect = batches, backend.dialect
        self.reader = RowReader(backend.roles, backend.dialect, before=1)
        self._backend, self._order = backend, order
        self._written = WrittenClaim(backend, selection)
        self._left = new_keys(batches)

    def build(self, selection: Selection) -> CompiledStatement:
        backend = self._backend
        return CompiledStatement(
            claim_batch(
                backend.roles,
                backend.dialect,
                selection,
                self._order,
                batches=self.batches,
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


def batch_statement(backend: Backend, selection: Selection, batches: OpenBatches) -> BatchStatement | None:
    """The statement, which is committed before its result is read; None where it cannot be used."""
    order = keyset_order_of(selection)
    if order is None or not (can_be_committed_unread(backend.roles) and backend.dialect.pipelines):
        return None
    return BatchStatement(backend, selection, batches, order)

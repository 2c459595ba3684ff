"""BatchStatement: a claim per batch in one statement. No job is written: it inserts a claim row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import WrittenClaim, can_be_committed_unread
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.statements.claim import claim_batch
from claimjobs.statements.find import SIZE, KeysetOrder, Selection, keyset_order_of
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ClaimRows


class BatchStatement(WrittenClaim):
    """The statement. A second one must look at the claim rows again, and be committed with it."""

    def __init__(self, backend: Backend, selection: Selection, claim_rows: ClaimRows, order: KeysetOrder) -> None:
        super().__init__(backend, selection, RowReader(backend.roles, backend.dialect, before=1))
        self.claim_rows, self.sessions = claim_rows, backend.dialect.sessions
        self._order = order

    def build(self, selection: Selection) -> CompiledStatement:
        roles, dialect, owners = self._backend.roles, self._backend.dialect, self._backend.owners
        rows, read = self.claim_rows, self.reader.parts
        found = claim_batch(roles, dialect, selection, self._order, claim_rows=rows, owners=owners, read=read)
        return CompiledStatement(found, constant=SIZE.key)

    def batch_result(
        self, connection: sa.Connection, rows: Sequence[Any], request: ClaimRequest, *, owner: int, number: int
    ) -> ClaimResult:
        """The result of a claim that returned these rows. `number`: of its claim row."""
        if rows[0][0] < 0:  # the owner was declared dead: the next claim registers a new id
            return NOTHING
        claimed = self.result(connection, rows, request, owner=owner)
        return claimed._replace(batch=number if claimed.jobs else 0)


def batch_statement(backend: Backend, selection: Selection, claim_rows: ClaimRows) -> BatchStatement | None:
    """The statement, which is committed before its result is read; None where it cannot be used."""
    order = keyset_order_of(selection)
    if order is None or not (can_be_committed_unread(backend.roles) and backend.dialect.pipelines):
        return None
    return BatchStatement(backend, selection, claim_rows, order)

"""Claims in one statement, for a database that can return what it writes: find, lock and record at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import WrittenClaim, can_be_committed_unread
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.row_reader import Marked, RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.statements.claim import claim, claim_batch
from claimjobs.statements.find import SIZE, KeysetOrder, Selection, keyset_order_of
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ClaimRows


class OneStatement(WrittenClaim, ClaimStrategy):
    """Claims by lease in one statement. It also returns what a settle that is part of the statement did."""

    is_lazy = True

    def __init__(
        self,
        backend: Backend,
        selection: Selection,
        record: ClaimRecord,
        now: sa.ColumnElement[Any],
        *,
        settle: sa.Delete | sa.Update | None = None,
    ) -> None:
        """`settle`: a statement that settles the batch before, and runs first."""
        self.settled_columns = 1 if settle is None else 1 + len(backend.roles.key)
        """The leading columns, equal in every row: see `statements.claim.SETTLED`."""
        known, before = list(record.written), self.settled_columns
        super().__init__(backend, selection, RowReader(backend.roles, backend.dialect, known, before))
        self._record, self._now = record, now
        self._settled = None if settle is None else settle.cte("claimjobs_settled")
        self.needs_no_transaction = can_be_committed_unread(backend.roles)

    def settling(self, settle: sa.Delete | sa.Update) -> OneStatement:
        """The same statement, which settles the batch before as well."""
        return OneStatement(self._backend, self._selection, self._record, self._now, settle=settle)

    def build(self, selection: Selection) -> CompiledStatement:
        dialect, owners, read = self._backend.dialect, self._backend.owners, self.reader.parts
        found = claim(self._roles, dialect, selection, now=self._now, owners=owners, read=read, settled=self._settled)
        return CompiledStatement(found, constant=SIZE.key)

    def written_by(self, owner: int) -> Marked:
        return self._record.written_by(owner)

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        rows = self.form_for(request).rows(connection, self.parameters(owner, request), self.reader)
        if rows[0][0] < 0:
            raise OwnerDead
        return self.result(connection, rows, request, owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [Phase("claim", self.form_for(request).statement, self.parameters(owner, request))]


class BatchStatement(WrittenClaim):
    """A claim per batch: it writes no job, and inserts a claim row. A second statement must look at the claim rows
    again, and be committed with it.
    """

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
        return claimed._replace(claim_row=number if claimed.jobs else 0)


def batch_statement(backend: Backend, selection: Selection, claim_rows: ClaimRows) -> BatchStatement | None:
    """The statement, which is committed before its result is read; None where it cannot be used."""
    order = keyset_order_of(selection)
    if order is None or not (can_be_committed_unread(backend.roles) and backend.dialect.pipelines):
        return None
    return BatchStatement(backend, selection, claim_rows, order)

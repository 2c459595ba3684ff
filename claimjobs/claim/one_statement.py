"""Claims in one statement, for a database that can return what it updates: find, lock and mark at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.claim.written_claim import WrittenClaim, can_be_committed_unread
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.statements.claim import claim
from claimjobs.statements.find import SIZE, Selection
from claimjobs.table.backend import Backend

SETTLED_COLUMNS: Final = 1
"""The leading columns of a claim, equal in every row: the number of settled jobs of the previous batch; negative if the
owner is dead."""


class OneStatement(ClaimStrategy):
    """Claims by lease in one statement. It also returns what a settle that is part of the statement did."""

    is_lazy = True

    def __init__(self, backend: Backend, selection: Selection, record: ClaimRecord, now: sa.ColumnElement[Any]) -> None:
        self.needs_no_transaction = can_be_committed_unread(backend.roles)
        self._backend, self._selection, self._now, self._record = backend, selection, now, record
        self.key_columns = len(backend.roles.key)
        self._statement = self.statement(SETTLED_COLUMNS)
        self.keyset_order = self._statement.keyset_order

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        statement = self._statement
        rows = statement.of(request).rows(connection, statement.parameters(owner, request), statement.reader)
        if rows[0][0] < 0:
            raise OwnerDead
        return self.result(connection, statement, rows, owner=owner, request=request)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        statement = self._statement
        return [Phase("claim", statement.of(request).statement, statement.parameters(owner, request))]

    def statement(self, before: int, settle: sa.Delete | sa.Update | None = None) -> ClaimStatement:
        """The statement that claims. `settle` is a statement that settles the batch before, and runs first.

        `before`: how many columns of a row stand before those of the job.
        """
        reader = RowReader(self._backend.roles, self._backend.dialect, list(self._record.values_of(0)), before=before)
        return ClaimStatement(self._backend, self._selection, reader, now=self._now, settle=settle)

    def result(
        self,
        connection: sa.Connection,
        statement: ClaimStatement,
        rows: Sequence[Any],
        *,
        owner: int,
        request: ClaimRequest,
    ) -> ClaimResult:
        """The result of a claim by a statement of this strategy, which returned these rows."""
        return statement.result(connection, rows, request, owner=owner, marked=self._record.values_of(owner))


class ClaimStatement(WrittenClaim):
    """The statement that finds, locks and marks."""

    def __init__(
        self,
        backend: Backend,
        selection: Selection,
        reader: RowReader,
        *,
        now: sa.ColumnElement[Any],
        settle: sa.Delete | sa.Update | None,
    ) -> None:
        super().__init__(backend, selection, reader)
        self._now = now
        self._settled = None if settle is None else settle.cte("claimjobs_settled")

    def build(self, selection: Selection) -> CompiledStatement:
        backend, read = self._backend, self.reader.parts
        roles, dialect, owners = backend.roles, backend.dialect, backend.owners
        found = claim(roles, dialect, selection, now=self._now, owners=owners, read=read, settled=self._settled)
        return CompiledStatement(found, constant=SIZE.key)

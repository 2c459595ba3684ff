"""Claims in one statement, for a database that can return what it updates: find, lock and mark at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs.claim.candidates import WrittenClaim, can_be_committed_unread
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.statements.claim import claim
from claimjobs.statements.find import SIZE, Selection
from claimjobs.table.backend import Backend


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
        known, before = list(record.values_of(0)), self.settled_columns
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

    def values_of(self, owner: int) -> Mapping[str, Any]:
        return self._record.values_of(owner)

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        rows = self.of(request).rows(connection, self.parameters(owner, request), self.reader)
        if rows[0][0] < 0:
            raise OwnerDead
        return self.result(connection, rows, request, owner=owner)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [Phase("claim", self.of(request).statement, self.parameters(owner, request))]

"""Claims in one statement, for a database that can return what it updates: find, lock and mark at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateCount, CursorStatement, at_most, check_keys
from claimjobs.claim.claimed_values import ClaimedValues
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.dialects import Key
from claimjobs.statements.claim import claim
from claimjobs.statements.find import SIZE, Selection
from claimjobs.table.backend import Backend

READABLE: Final = (sa.Integer, sa.Numeric, sa.String, sa.Uuid, sa.LargeBinary)
"""Types of which Python can hold every value."""
SETTLED_COLUMNS: Final = 1
"""The leading columns of a claim, equal in every row: the number of settled jobs of the previous batch; negative if the
owner is dead."""


class OneStatement(ClaimStrategy):
    """Claims by lease in one statement. It also returns what a settle that is part of the statement did."""

    is_lazy = True

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        # The claim must be rolled back if a key names two rows, or if Python cannot hold a key (an instant or a date
        # out of its range). Both show only when the jobs are marked.
        can_be_read = all(isinstance(column.type, READABLE) for column in backend.roles.key)
        self.needs_no_transaction = backend.roles.key_index is None and can_be_read
        self._backend, self._selection, self._now = backend, selection, now
        self._values = ClaimedValues(backend.roles)
        self.key_columns = len(backend.roles.key)
        self._statement = self.statement(SETTLED_COLUMNS)
        self._count = CandidateCount(backend, selection)
        self.keyset_order = self._statement.keyset_order

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        statement = self._statement
        rows = statement.of(request).rows(connection, statement.parameters(owner, request), statement.reader)
        if rows[0][0] < 0:
            raise OwnerDead
        return self.result(connection, statement.reader, rows, owner=owner, request=request)

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        statement = self._statement
        return [Phase("claim", statement.of(request).statement, statement.parameters(owner, request))]

    def statement(self, before: int, settle: sa.Delete | sa.Update | None = None) -> ClaimStatement:
        """The statement that claims. `settle` is a statement that settles the batch before, and runs first.

        `before`: how many columns of a row stand before those of the job.
        """
        reader = RowReader(self._backend.roles, self._backend.dialect, self._values.names, before=before)
        return ClaimStatement(self._backend, self._selection, self._now, reader=reader, settle=settle)

    def result(
        self, connection: sa.Connection, reader: RowReader, rows: Sequence[Any], *, owner: int, request: ClaimRequest
    ) -> ClaimResult:
        """The result of a claim that returned these rows."""
        claimed = [] if reader.is_none(rows[0]) else rows
        jobs = reader.jobs(claimed, self._values.of(owner))
        check_keys(self._backend.roles, jobs)
        group_size = reader.group_sizes(claimed[:1])[0] if claimed else 0
        is_full = len(claimed) == at_most(request.size, group_size)
        # Jobs that are claimed now are candidates no more.
        examined = len(claimed) if is_full else len(claimed) + self._count.count(connection, request)
        return ClaimResult(jobs, examined, examined, owner, suspects=bool(group_size))


class ClaimStatement(CursorStatement[CompiledStatement]):
    """The statement that finds, locks and marks; and the reader of the rows that it returns."""

    def __init__(
        self,
        backend: Backend,
        selection: Selection,
        now: sa.ColumnElement[Any],
        *,
        reader: RowReader,
        settle: sa.Delete | sa.Update | None,
    ) -> None:
        super().__init__(selection, backend.dialect)
        self.reader = reader
        self._backend, self._now = backend, now
        self._settled = None if settle is None else settle.cte("claimjobs_settled")

    def build(self, selection: Selection) -> CompiledStatement:
        backend, read = self._backend, self.reader.parts
        return CompiledStatement(
            claim(
                backend.roles,
                backend.dialect,
                selection,
                now=self._now,
                owners=backend.owners,
                read=read,
                settled=self._settled,
            ),
            constant=SIZE.key,
        )

    def parameters(self, owner: int, request: ClaimRequest) -> dict[str, Any]:
        """Of the statement for this request, without those of a settle."""
        return {"claimjobs_size": request.size, "claimjobs_me": owner, **(request.after or {})}

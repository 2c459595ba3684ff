"""Claims in one statement, for a database that can return what it writes: find, lock and record at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateFinder, CursorStatement, at_most, check_keys
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.row_reader import UNMARKED, RowReader
from claimjobs.claim.strategy import ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.transactions import commits_by_itself
from claimjobs.dialects import Key
from claimjobs.statements.claim import claim, claim_batch
from claimjobs.statements.find import SIZE, KeysetOrder, Selection
from claimjobs.table.backend import Backend
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.roles import ColumnRoles

READABLE: Final = (sa.Integer, sa.Numeric, sa.String, sa.Uuid, sa.LargeBinary)
"""Types of which Python can hold every value, as the driver reads it."""


class WrittenClaim(CursorStatement[CompiledStatement]):
    """A claim in one statement, which finds, locks and records jobs. It may be committed before its result is read."""

    _record: ClaimRecord | None = None
    """What says which columns the statement writes, and does not return; None: it writes none."""

    def __init__(self, backend: Backend, selection: Selection, reader: RowReader) -> None:
        super().__init__(backend, selection)
        self.reader, self._finder = reader, CandidateFinder(backend, selection)

    def parameters(self, owner: int, request: ClaimRequest) -> dict[str, Any]:
        """The parameters of the statement for this request."""
        return {"claimjobs_me": owner, "claimjobs_size": request.size, **(request.after or {})}

    def result(
        self, connection: sa.Connection, rows: Sequence[Any], request: ClaimRequest, *, owner: int
    ) -> ClaimResult:
        """The result of a claim that returned these rows. A claim of nothing has one, in which the job is NULL."""
        claimed = [] if self.reader.is_none(rows[0]) else rows
        jobs = self.reader.jobs(claimed, UNMARKED if self._record is None else self._record.written_by(owner))
        check_keys(self._roles, jobs)
        group_size = self.reader.group_sizes(claimed[:1])[0] if claimed else 0
        is_full = len(claimed) == at_most(request.size, group_size)
        try:  # jobs that are claimed now are candidates no more
            examined = len(claimed) if is_full else len(claimed) + self._finder.count(connection, request)
        except sa.exc.DBAPIError:
            # In autocommit the claim is committed, though the caller gets an error. That is so for a lost connection,
            # too: so this one is invalidated, as a lost one is.
            if not connection.invalidated and commits_by_itself(connection, unknown=False):
                connection.invalidate()
            raise
        return ClaimResult(jobs, examined, examined, owner, suspects=bool(group_size))


def can_be_committed_unread(roles: ColumnRoles) -> bool:
    """Whether a claim may be committed before its result is read. It must be rolled back if a key names two rows, or if
    Python cannot hold a key (an instant or a date out of its range, a value that an Enum does not have).

    It is also the condition for keys that are compared as the driver reads them.
    """
    return roles.key_index is None and all(
        isinstance(type_, READABLE)
        and not isinstance(type_, sa.Enum)
        and (not isinstance(type_, sa.Uuid) or (type_.as_uuid and type_.native_uuid))
        for type_ in (column.type for column in roles.key)
    )


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
        self._record: ClaimRecord = record
        self._now = now
        self._settled = None if settle is None else settle.cte("claimjobs_settled")
        self.needs_no_transaction = can_be_committed_unread(backend.roles)

    def settling(self, settle: sa.Delete | sa.Update) -> OneStatement:
        """The same statement, which settles the batch before as well."""
        return OneStatement(self._backend, self._selection, self._record, self._now, settle=settle)

    def build(self, selection: Selection) -> CompiledStatement:
        dialect, owners, read = self._backend.dialect, self._backend.owners, self.reader.parts
        found = claim(self._roles, dialect, selection, now=self._now, owners=owners, read=read, settled=self._settled)
        return CompiledStatement(found, constant=SIZE.key)

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

"""A claim in one statement, which finds, locks and records jobs. It may be committed before its result is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateCount, CursorStatement, at_most, check_keys
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import ClaimRequest, ClaimResult
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.transactions import lost_if_it_fails
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend
from claimjobs.table.roles import ColumnRoles

READABLE: Final = (sa.Integer, sa.Numeric, sa.String, sa.Uuid, sa.LargeBinary)
"""Types of which Python can hold every value, as the driver reads it."""


def can_be_committed_unread(roles: ColumnRoles) -> bool:
    """Whether a claim may be committed before its result is read. It must be rolled back if a key names two rows, or if
    Python cannot hold a key (an instant or a date out of its range, a value that an Enum does not have).

    It is also the condition for keys that are compared as the driver reads them.
    """
    return roles.key_index is None and all(_is_plain(column.type) for column in roles.key)


def _is_plain(type_: sa.types.TypeEngine[Any]) -> bool:
    if isinstance(type_, sa.Uuid):
        return bool(type_.as_uuid and type_.native_uuid)
    return isinstance(type_, READABLE) and not isinstance(type_, sa.Enum)


class WrittenClaim(CursorStatement[CompiledStatement]):
    """Such a statement, and the reader of the rows that it returns."""

    def __init__(self, backend: Backend, selection: Selection, reader: RowReader) -> None:
        super().__init__(selection, backend.dialect)
        self._backend, self.reader = backend, reader

    def parameters(self, owner: int, request: ClaimRequest) -> dict[str, Any]:
        """Of the statement for this request."""
        return {"claimjobs_me": owner, "claimjobs_size": request.size, **(request.after or {})}

    def result(
        self,
        connection: sa.Connection,
        rows: Sequence[Any],
        request: ClaimRequest,
        *,
        owner: int,
        marked: Mapping[str, Any] = AS_IT_IS,
    ) -> ClaimResult:
        """The result of a claim that returned these rows. A claim of nothing has one, in which the job is NULL."""
        claimed = [] if self.reader.is_none(rows[0]) else rows
        jobs = self.reader.jobs(claimed, marked)
        check_keys(self._backend.roles, jobs)
        group_size = self.reader.group_sizes(claimed[:1])[0] if claimed else 0
        is_full = len(claimed) == at_most(request.size, group_size)
        with lost_if_it_fails(connection):  # jobs that are claimed now are candidates no more
            examined = len(claimed) if is_full else len(claimed) + self._count.count(connection, request)
        return ClaimResult(jobs, examined, examined, owner, suspects=bool(group_size))

    @cached_property
    def _count(self) -> CandidateCount:
        return CandidateCount(self._backend, self._selection)

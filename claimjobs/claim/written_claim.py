"""The result of a claim that one statement found, locked and recorded. It may be committed before it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateCount, at_most, check_keys
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import ClaimRequest, ClaimResult
from claimjobs.database.transactions import lost_if_it_fails
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED
from claimjobs.table.roles import ColumnRoles


class ClaimedValues:
    """The values of the columns for state and owner after a claim. `owner_date` is missing: the server sets it."""

    def __init__(self, roles: ColumnRoles) -> None:
        self._roles = roles
        self._last: tuple[int | None, Mapping[str, Any]] = (None, {})

    @property
    def names(self) -> list[str]:
        """The names of these columns."""
        return list(self._compute(0))

    def of(self, owner: int) -> Mapping[str, Any]:
        """The values by column, for jobs that this owner claimed. They are computed once for an owner."""
        last, values = self._last
        if owner != last:
            values = self._compute(owner)
            self._last = owner, values
        return values

    def _compute(self, owner: int) -> Mapping[str, Any]:
        written = self._roles.state.becomes(CLAIMED, sa.literal(owner))
        return {
            column.name: value.value if isinstance(value, sa.BindParameter) else value
            for column, value in written.items()
        }


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


class WrittenClaim:
    """Makes the result of a claim from the rows of the statement that found, locked and recorded its jobs."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._roles = backend.roles
        self._count = CandidateCount(backend, selection)

    def result(
        self,
        connection: sa.Connection,
        rows: Sequence[Any],
        request: ClaimRequest,
        *,
        reader: RowReader,
        owner: int,
        marked: Mapping[str, Any] = AS_IT_IS,
    ) -> ClaimResult:
        """The result. A claim of nothing has one row, in which the columns of the job are NULL."""
        claimed = [] if reader.is_none(rows[0]) else rows
        jobs = reader.jobs(claimed, marked)
        check_keys(self._roles, jobs)
        group_size = reader.group_sizes(claimed[:1])[0] if claimed else 0
        is_full = len(claimed) == at_most(request.size, group_size)
        with lost_if_it_fails(connection):  # jobs that are claimed now are candidates no more
            examined = len(claimed) if is_full else len(claimed) + self._count.count(connection, request)
        return ClaimResult(jobs, examined, examined, owner, suspects=bool(group_size))

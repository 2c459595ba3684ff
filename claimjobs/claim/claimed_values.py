"""What a claim writes into a job, as values: so these columns need not be read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

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

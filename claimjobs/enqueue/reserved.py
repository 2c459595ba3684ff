"""Reserved: the columns that claimjobs writes. A new row must not set them, or its job would never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles

MEANINGS: Final = {
    "owner_id": "who holds a job",
    "owner_date": "since when a job is claimed, done or dead",
    "attempts": "how often a job has failed",
    "suspect": "whether a job is suspect",
}
"""What the reserved columns say."""
FRESH: Final = {"attempts": (None, 0, "0"), "suspect": (None, 0, "0")}
"""The values that a row may have in them, because a new job has them anyway. In the other columns: NULL."""


class Reserved:
    """The reserved columns of a table."""

    def __init__(self, roles: ColumnRoles) -> None:
        self._state = roles.state
        found = {role: getattr(roles, role) for role in MEANINGS}
        self._roles = {column.key: role for role, column in found.items() if _is_ours(role, column)}
        self._status = None if roles.status is None else roles.status.key

    def among(self, names: Iterable[str]) -> Collection[str]:
        """Those of these columns whose values must be checked."""
        return [name for name in names if name in self._roles or name == self._status]

    def misfit(self, row: Mapping[str, Any], names: Collection[str]) -> str | None:
        """Why the values in these columns forbid to enqueue the row; None: they do not."""
        return next((flaw for name in names if (flaw := self._flaw(name, row[name]))), None)

    def _flaw(self, name: str, value: Any) -> str | None:
        if name == self._status:
            return self._state_flaw(name, value)
        role = self._roles[name]
        if value in FRESH.get(role, (None,)):
            return None
        return f"column {name!r} says {MEANINGS[role]}, and only claimjobs writes it: leave it out"

    def _state_flaw(self, name: str, value: Any) -> str | None:
        state = self._state.meant_by(value)
        if state is None:
            return None
        fresh = self._state.values[UNCLAIMED]
        return f"{value!r} in column {name!r} means that a job is {state}: leave it out, or give {fresh!r}"


def _is_ours(role: str, column: Column | None) -> bool:
    """Whether the column is reserved. An `owner_date` that cannot be NULL is the date of the last change."""
    return column is not None and (role != "owner_date" or bool(column.nullable))

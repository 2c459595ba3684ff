"""Reserved: what claimjobs keeps for itself in a row, so that nobody enqueues a job which nobody would ever run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.job_state import Column
from claimjobs.table.roles import Roles

MEANINGS: Final = {
    "owner_id": "who holds a job",
    "owner_date": "since when a job is claimed, done or dead",
    "attempts": "how often a job has failed",
    "suspect": "whether a job is suspect",
}
"""What the columns that a row must not bring along tell."""
FRESH: Final = {"attempts": (None, 0, "0"), "suspect": (None, 0, "0")}
"""What they may hold all the same: what a new job has anyway. The others: NULL."""


class Reserved:
    """The columns of a table that a row must leave as they are in a new job."""

    def __init__(self, roles: Roles) -> None:
        self._state = roles.state
        found = {role: getattr(roles, role) for role in MEANINGS}
        self._roles = {column.key: role for role, column in found.items() if _is_ours(role, column)}
        self._status = None if roles.status is None else roles.status.key

    def among(self, names: Iterable[str]) -> Collection[str]:
        """Those of these columns that have to be looked at."""
        return [name for name in names if name in self._roles or name == self._status]

    def misfit(self, row: Mapping[str, Any], names: Collection[str]) -> str | None:
        """Why a row cannot be enqueued, by what it holds in these columns; None: it can."""
        return next((flaw for name in names if (flaw := self._flaw(name, row[name]))), None)

    def _flaw(self, name: str, value: Any) -> str | None:
        if name == self._status:
            return self._state_flaw(name, value)
        role = self._roles[name]
        if value in FRESH.get(role, (None,)):
            return None
        return f"column {name!r} tells {MEANINGS[role]}, which claimjobs keeps for itself: leave it out"

    def _state_flaw(self, name: str, value: Any) -> str | None:
        state = self._state.meant_by(value)
        if state is None:
            return None
        fresh = self._state.values[UNCLAIMED]
        return f"{value!r} in column {name!r} means that a job is {state}: leave it out, or give {fresh!r}"


def _is_ours(role: str, column: Column | None) -> bool:
    """A date that cannot be NULL tells of the last change, whatever that was."""
    return column is not None and (role != "owner_date" or bool(column.nullable))

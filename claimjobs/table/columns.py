"""Columns: which column of a table plays which role, and which of its values mean which state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

UNCLAIMED: Final = "unclaimed"
CLAIMED: Final = "claimed"
DONE: Final = "done"
DEAD: Final = "dead"
STATES: Final = (UNCLAIMED, CLAIMED, DONE, DEAD)
"""The first three are the article's; `dead` is a job out of attempts, kept for a person to look at."""


@dataclass(frozen=True)
class Columns:
    """The column map of a table that claimjobs did not make.

    Each role is named with the column that plays it. A role that is left out is played by a column of its own name,
    where there is one; None: by no column. What lacks its column is off: without `run_at` nothing can be delayed,
    without `attempts` nothing retried, without `owner_id` no claim can be held by lease.
    """

    key: str | Sequence[str] | None = None
    """What names a row: one column or several, unique together and at the head of an index. None: the primary key."""
    status: str | None = "status"
    owner_id: str | None = "owner_id"
    """Whole numbers. Without a status column, and where one value means two states, NULL is unclaimed."""
    owner_date: str | None = "owner_date"
    priority: str | None = "priority"
    """Lower first, unless `order_by` says otherwise."""
    run_at: str | None = "run_at"
    attempts: str | None = "attempts"
    last_error: str | None = "last_error"
    suspect: str | None = "suspect"
    assignee: str | None = None
    """For `Assignments`: a unique column, NULL in a row that is free."""
    states: Mapping[str, Any] | None = None
    """The value of the status column for each of `unclaimed`, `claimed`, `done` and `dead`, as far as there are any.

    None: the words themselves; for a boolean column True is unclaimed, False claimed or done.
    """

    def __post_init__(self) -> None:
        """Raises ValueError for a state that does not exist, or a column that plays two roles."""
        for name in (names := list(self.names.values())):
            if names.count(name) > 1:
                raise ValueError(f"column {name!r} plays two roles: name another one, or None, for one of them")
        unknown = [state for state in self.states or () if state not in STATES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no state: they are {', '.join(STATES)}")

    @classmethod
    def of_claims(cls, key: Sequence[str]) -> Columns:
        """The map of a table of claims with this key: a name that the key has taken is lengthened."""
        roles = ("status", "owner_id", "owner_date", "run_at", "attempts", "last_error", "suspect")
        names: dict[str, Any] = {role: f"claim_{role}" if role in key else role for role in roles}
        return cls(key=key, priority=None, **names)

    @property
    def beside_claims(self) -> Columns:
        """What counts of this map where the claims are kept in another table: key, priority and run_at."""
        kept = {name: None for name in self.names if name not in ("priority", "run_at")}
        return replace(self, states=None, **kept)

    @property
    def names(self) -> dict[str, str]:
        """The column of each role that has one."""
        roles = {field.name: getattr(self, field.name) for field in fields(self)}
        return {role: name for role, name in roles.items() if role not in ("key", "states") and name}

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns of the key; none: the primary key."""
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else tuple(self.key)

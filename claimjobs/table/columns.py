"""Columns: which column of a table plays which role, and which of its values mean which state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from claimjobs.errors import BadMap

UNCLAIMED: Final = "unclaimed"
CLAIMED: Final = "claimed"
DONE: Final = "done"
DEAD: Final = "dead"
Ended = Literal["done", "dead"]
"""The states of a job that has ended: it does not run again. A `dead` one has no attempts left."""
ENDED: Final[tuple[Ended, ...]] = get_args(Ended)
STATES: Final = (UNCLAIMED, CLAIMED, *ENDED)
"""The first three are the article's."""

OURS: Final = ("status", "owner_id", "owner_date", "priority", "run_at", "attempts", "last_error", "suspect")
"""The roles whose columns each table of jobs has that claimjobs makes."""
ROLES: Final = (*OURS, "run_again", "traceparent")
"""What a column can be, beside a part of the key."""
BESIDE_SIDE_CAR: Final = ("key", "priority", "run_at")
"""What a map may say of a table that has a side-car."""


@dataclass(frozen=True, kw_only=True)
class JobCounts:
    """How many jobs are in each state but done: done jobs are deleted, or are most of the table.

    Unclaimed jobs are those that meet the queue's predicate. Of the other states all jobs of the table count, because a
    row may not meet it any more.
    """

    unclaimed: int
    claimed: int
    dead: int


@dataclass(frozen=True)
class Columns:
    """The column map of a table that claimjobs did not make.

    It names the column of each role. The default is a column with the role's own name, if the table has one. None: no
    column plays the role, and what needs it is off: without `run_at` no job can be delayed, without `attempts` none
    retried, without `owner_id` no claim can be held by lease.
    """

    key: str | Sequence[str] | None = None
    """One column or several that name a row. They are unique together, and an index begins with them. None: the primary
    key."""
    status: str | None = "status"
    owner_id: str | None = "owner_id"
    """Whole numbers. Without a status column, and if one value means two states, NULL is unclaimed."""
    owner_date: str | None = "owner_date"
    priority: str | None = "priority"
    """The lowest number first, unless `order_by` gives another order."""
    run_at: str | None = "run_at"
    attempts: str | None = "attempts"
    last_error: str | None = "last_error"
    suspect: str | None = "suspect"
    run_again: str | None = "run_again"
    """A boolean: whether a claimed job runs once more after its settle. See `enqueue(on_duplicate="again")`."""
    traceparent: str | None = None
    """Text, at least 55 characters: the trace context in which a job was enqueued, for OpenTelemetry."""
    states: Mapping[str, Any] | None = None
    """The value of the status column for each of `unclaimed`, `claimed`, `done` and `dead`, as far as there are any.

    None: the words themselves; for a boolean column True is unclaimed, False claimed or done.
    """

    def __post_init__(self) -> None:
        """Raise ValueError for what is no name, no state or no value of one, and for a column that plays two roles."""
        for role in ROLES:
            name = getattr(self, role)
            if not (name is None or (isinstance(name, str) and name)):
                raise ValueError(f"{role} = {name!r}: give the name of one column in quotes, or none")
        keys = self.key_names if isinstance(self.key, Sequence) else ()
        if self.key is not None and not (keys and all(isinstance(name, str) and name for name in keys)):
            raise ValueError(f"key = {self.key!r}: give the name of a column in quotes, or a list of several")
        for name in (names := list(self.names.values())):
            if names.count(name) > 1:
                raise ValueError(f"column {name!r} plays two roles: name another one, or None, for one of them")
        if self.states and not self.status:
            raise ValueError("states are values of the status column: name that column, or leave out states")
        for state, value in (self.states or {}).items():
            if state not in STATES:
                raise ValueError(f"{state!r} is no state: they are {', '.join(STATES)}")
            if type(value) in (list, dict):
                raise ValueError(f"{state} = {value!r}: give a number, true, false or a text in quotes")

    @classmethod
    def of_side_car(cls, key: Sequence[str]) -> Columns:
        """The map of a side-car with this key. A role whose name is a column of the key gets a longer name.

        To some databases `Status` is the name `status`.
        """
        roles = ("status", "owner_date", "run_at", "attempts", "last_error", "suspect")
        taken = {name.lower() for name in key}
        names: dict[str, Any] = {role: f"claim_{role}" if role in taken else role for role in roles}
        return cls(key=key, owner_id=None, priority=None, **names)

    @property
    def beside_side_car(self) -> Columns:
        """The part of this map that applies to a table with a side-car: key, priority and run_at.

        Raises BadMap for another part of it, which would have no effect: the rows that it calls done would be claimed.
        """
        others = [field for field in fields(self) if field.name not in BESIDE_SIDE_CAR]
        if given := [field.name for field in others if getattr(self, field.name) not in (None, field.default)]:
            raise BadMap(
                f"with a side-car the state of a job is kept there, and {', '.join(given)} of the map would have no "
                f"effect: leave that out, and give a `where` that says which rows are jobs"
            )
        return replace(self, **{field.name: None for field in others})

    @property
    def names(self) -> dict[str, str]:
        """The column of each role that has one."""
        return {role: name for role in ROLES if (name := getattr(self, role))}

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns of the key; none: the primary key."""
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else tuple(self.key)

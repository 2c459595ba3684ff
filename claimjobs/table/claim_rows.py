"""Claims per batch: a claim is one row of `claimjobs_batches` with the keys of its jobs, and no job is written.

A job is claimed while its key is in such a claim row. A settle deletes the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect

ME: Final = sa.bindparam("claimjobs_me", type_=sa.Integer)
"""The id of the owner for whom a statement is sent."""


@dataclass(frozen=True)
class ClaimRows:
    """The claim rows of one queue."""

    table: sa.Table
    """`claimjobs_batches`."""
    recorded_as: str
    """The name of the queue's table of jobs."""
    key: tuple[sa.Column[Any], ...]
    """The key of that table."""
    dialect: Dialect

    @property
    def ours(self) -> sa.ColumnElement[bool]:
        """The predicate of a claim row of this queue."""
        return self.table.c.claims == self.recorded_as

    def of(self, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate of a claim row of this owner."""
        return sa.and_(self.ours, self.table.c.owner_id == owner)

    def keys(self, which: sa.ColumnElement[bool] | None = None, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """The keys in the claim rows that meet this predicate (None: in all of this queue), after these columns."""
        listed, values = self.dialect.keys_in_json(self.table.c["keys"], self.key)
        rows = sa.select(*columns, *values).select_from(self.table.join(listed, sa.true()))
        return rows.where(self.ours if which is None else which)

    def contain(self, which: sa.ColumnElement[bool] | None = None) -> sa.ColumnElement[bool]:
        """The predicate of a job whose key is in one of these claim rows."""
        key: Any = self.key[0] if len(self.key) == 1 else sa.tuple_(*self.key)
        which = self.ours if which is None else which
        predicate: sa.ColumnElement[bool] = key.in_(self.dialect.keys_listed(self.table.c["keys"], self.key, which))
        return predicate

    def without(self, after: Mapping[sa.Column[Any], Any] | None = None) -> sa.ColumnElement[bool]:
        """The predicate of a job that is in no claim row, for jobs after this place (None: for all). A place is the
        values of columns in whose order, which ascends, the jobs are read.

        A job with the values of the place in all columns before the key has a larger key than the place. So it is in no
        claim row whose last key is smaller. For such jobs, which are nearly all, few claim rows are read.
        """
        if not self.have_ranges or after is None or self.key[0] is not list(after)[-1]:
            return ~self.contain()
        *before, (_, key) = after.items()
        among_larger = ~self.contain(sa.and_(self.ours, self.table.c.last_key > key))
        if not before:
            return among_larger
        near = sa.and_(*(column == value for column, value in before))
        return sa.and_(among_larger, sa.or_(near, ~self.contain()))

    @cached_property
    def have_ranges(self) -> bool:
        """Whether a claim row says between which keys its keys are: they are single whole numbers."""
        [first, *others] = self.key
        return isinstance(first.type, sa.Integer) and not getattr(first.type, "unsigned", False) and not others

    def range_of(self, keys: Sequence[Any]) -> dict[str, int | None]:
        """The parameters for the first and the last of these keys."""
        if not self.have_ranges:
            return {}
        return {"claimjobs_first": min(keys, default=None), "claimjobs_last": max(keys, default=None)}

    def overlap(self, first: sa.ColumnElement[int], last: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """The predicate of a claim row of this queue that may have a key between these two."""
        if not self.have_ranges:
            return self.ours
        return sa.and_(self.ours, self.table.c.last_key >= first, self.table.c.first_key <= last)

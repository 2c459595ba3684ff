"""Claims per batch: a claim is one row of `claimjobs_batches` with the keys of its jobs, and no job is written.

A job is claimed while its key is in such a row, which is an open batch. A settle deletes the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect


@dataclass(frozen=True)
class OpenBatches:
    """The open batches of one queue."""

    table: sa.Table
    """`claimjobs_batches`."""
    claims: str
    """The name of the queue's table of jobs."""
    key: tuple[sa.Column[Any], ...]
    """The key of that table."""
    dialect: Dialect

    @property
    def ours(self) -> sa.ColumnElement[bool]:
        """The predicate of a batch of this queue."""
        return self.table.c.claims == self.claims

    def of(self, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate of a batch of this owner."""
        return sa.and_(self.ours, self.table.c.owner_id == owner)

    def keys(self, batches: sa.ColumnElement[bool] | None = None, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """The keys in the batches that meet this predicate (None: in all of this queue), after these columns."""
        listed, values = self.dialect.keys_in_json(self.table.c["keys"], self.key)
        rows = sa.select(*columns, *values).select_from(self.table.join(listed, sa.true()))
        return rows.where(self.ours if batches is None else batches)

    def contain(self, batches: sa.ColumnElement[bool] | None = None) -> sa.ColumnElement[bool]:
        """The predicate of a job whose key is in one of these batches."""
        predicate: sa.ColumnElement[bool] = self._key.in_(self._listed(self.ours if batches is None else batches))
        return predicate

    @property
    def without(self) -> sa.ColumnElement[bool]:
        """The predicate of a job that is in no open batch."""
        predicate: sa.ColumnElement[bool] = self._key.not_in(self._listed(self.ours))
        return predicate

    def _listed(self, batches: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return self.dialect.keys_listed(self.table, self.table.c["keys"], self.key, batches)

    @property
    def _key(self) -> Any:
        return self.key[0] if len(self.key) == 1 else sa.tuple_(*self.key)

"""Errors of a table's columns, their roles and the values of their states."""

from __future__ import annotations

import shlex
from typing import ClassVar

from claimjobs.errors.base import ClaimjobsError, Quote, quoted, state_option
from claimjobs.errors.tables import UnfitTable


class BadMap(ClaimjobsError, ValueError):
    """A map of columns cannot be read, or names a role, a state or a choice that does not exist."""


class ColumnMissing(UnfitTable):
    """A table lacks a column that an operation needs."""

    TYPES: ClassVar[dict[str, str]] = {
        "status": "VARCHAR(16) NOT NULL DEFAULT 'unclaimed'",
        "owner_id": "INTEGER",
        "priority": "INTEGER NOT NULL DEFAULT 0",
        "attempts": "INTEGER NOT NULL DEFAULT 0",
        "last_error": "TEXT",
        "suspect": "INTEGER NOT NULL DEFAULT 0",
        "assignee": "INTEGER UNIQUE",
    }

    def __init__(
        self, table: str, column: str, purpose: str, quote: Quote = str, *, mapped_as: str | None = None
    ) -> None:
        """`mapped_as`: the role for which a map names the column."""
        # The type of an instant, and its default in UTC, differ between databases.
        step = (
            f"run `claimjobs setup-tables --table {shlex.quote(table)}`, which shows the statement that adds it"
            if column in ("owner_date", "run_at")
            else f"ALTER TABLE {quoted(table, quote)} ADD COLUMN {quote(column)} {self.TYPES.get(column, '...')}"
        )
        why = f"{purpose} needs: {step}" if mapped_as is None else f"{purpose} names as {mapped_as}: check the map"
        super().__init__(f"table {table!r} has no column {column!r}, which {why}")
        self.table = table
        self.column = column


class StateMissing(UnfitTable):
    """No value of the status column means a state that an operation needs."""

    def __init__(self, table: str, column: str, state: str, purpose: str) -> None:
        super().__init__(
            f"no value of column {column!r} of table {table!r} means {state!r}, which {purpose} needs: "
            f"name one, as in {state_option(state)}"
        )


class ColumnUnfit(UnfitTable):
    """A column cannot have its role, its state or its name: a claim could not write it, or nobody could read it."""


def reserved_name(table: str, column: str) -> ColumnUnfit:
    """The error for a column that has the name of a column of claimjobs, or of a parameter."""
    return ColumnUnfit(
        f"column {column!r} of table {table!r} has a name that claimjobs uses for a column or a parameter of its own: "
        "rename it"
    )

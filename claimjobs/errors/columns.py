"""Errors of a table's columns, their roles and the values of their states."""

from __future__ import annotations

import shlex
from typing import Any, ClassVar

from claimjobs.errors.base import ClaimjobsError, Quote, column_option, quoted, state_option, unique_index
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

    def __init__(self, table: str, column: str, purpose: str, quote: Quote = str) -> None:
        # The type of an instant, and its default in UTC, differ between databases.
        step = (
            f"run `claimjobs setup-tables --table {shlex.quote(table)}`, which shows the statement that adds it"
            if column in ("owner_date", "run_at")
            else f"ALTER TABLE {quoted(table, quote)} ADD COLUMN {quote(column)} {self.TYPES.get(column, '...')}"
        )
        super().__init__(f"table {table!r} has no column {column!r}, which {purpose} needs: {step}")
        self.table = table
        self.column = column


class SideCarThere(ColumnMissing):
    """A table lacks a column that an operation needs, because its claims are in a side-car."""

    def __init__(self, table: str, column: str, side_car: str) -> None:
        UnfitTable.__init__(
            self,
            f"table {table!r} has no column {column!r}, which claiming needs; but {side_car!r} is its side-car: "
            "add --side-car (side_car=True)",
        )
        self.table = table
        self.column = column


class NotInTable(ColumnMissing):
    """A map names a column that the table does not have."""

    def __init__(self, table: str, column: str, role: str) -> None:
        UnfitTable.__init__(
            self, f"table {table!r} has no column {column!r}, which its column map names as {role}: check the map"
        )
        self.table = table
        self.column = column


class ColumnUnfit(UnfitTable):
    """A column cannot hold the values of its role."""

    def __init__(self, table: str, role: str, found: tuple[str, str], needed: tuple[str, str]) -> None:
        (column, type_), (what, step) = found, needed
        super().__init__(
            f"column {column!r} of table {table!r} is {type_}, and as {role} it must be {what}: name another one, "
            f"as in {column_option(role)}; to add one: {step}"
        )


class ReservedName(UnfitTable):
    """A column of the table has a name that claimjobs uses: that of a column of its own, or of a parameter."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r} has a name that claimjobs uses for a column or a parameter of its "
            "own: rename it"
        )


class RoleInKey(UnfitTable):
    """A claim would change the key of its row, or move the row to another partition."""

    def __init__(self, table: str, column: str, role: str, where: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r} is part of its {where}, and as {role} each claim would change it: "
            f"name another column, as in {column_option(role)}, or keep claims in a second table "
            "(side_car=True, --side-car)"
        )


class RoleComputed(UnfitTable):
    """The database computes a column that claimjobs must write."""

    def __init__(self, table: str, column: str, role: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r} is a generated column, and as {role} claimjobs must write it: "
            f"name another column, as in {column_option(role)}"
        )


class StateMissing(UnfitTable):
    """No value of the status column means a state that an operation needs."""

    def __init__(self, table: str, column: str, state: str, purpose: str) -> None:
        super().__init__(
            f"no value of column {column!r} of table {table!r} means {state!r}, which {purpose} needs: "
            f"name one, as in {state_option(state)}"
        )


class StatesClash(UnfitTable):
    """Two states have the same value, and no other column distinguishes them."""

    def __init__(self, table: str, column: str, states: tuple[str, str], value: Any) -> None:
        first, second = states
        super().__init__(
            f"{first!r} and {second!r} are both {value!r} in column {column!r} of table {table!r}, so nothing "
            f"distinguishes them: choose another value for one of them, or leave {second!r} out of the states"
        )


class StateUnfit(UnfitTable):
    """The status column cannot hold the value of a state, so no row would ever be in that state."""

    def __init__(self, table: str, column: str, meant: tuple[str, Any], holds: str) -> None:
        state, value = meant
        super().__init__(
            f"column {column!r} of table {table!r} cannot hold {value!r}, which is to mean {state!r}: it {holds}; "
            f"check the value, as in {state_option(state)}"
        )


class NoAssignee(UnfitTable):
    """An assignment needs a column that holds the worker, and the map names none."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table!r} has no column with the role assignee, which holds the worker of a row: name one that is "
            "unique, and NULL in a free row, as in Columns(assignee=...)"
        )


class NotExclusive(UnfitTable):
    """An assignment needs a unique index over these columns, and the table has none."""

    def __init__(self, table: str, columns: list[str], quote: Quote = str) -> None:
        super().__init__(
            f"{', '.join(columns)} of table {table!r} has no unique index of its own, so that one worker could have "
            f"two rows, or one row two workers: {unique_index(table, columns, quote)}"
        )

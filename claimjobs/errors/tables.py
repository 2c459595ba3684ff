"""Errors of a table: it is missing, its rows cannot be claimed, or its columns, its key or a predicate do not fit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from claimjobs.errors.base import ClaimjobsError, Quote, first_keys, quoted, state_option


class UnfitTable(ClaimjobsError):
    """The table is missing, or cannot be used as a queue."""


_WITHOUT_TABLE = ("jobs", "claimjobs_owners", "claimjobs_queues", "claimjobs_batches")
"""What `claimjobs setup-tables` makes if no table is named."""
_DOT = " (the schema is before the last dot; a table with a dot in its own name is described in Python, as a Table)"


class TableMissing(UnfitTable):
    """A table is not in the database: that of jobs, one that queues share, or a side-car."""

    def __init__(self, name: str, *, words: str | None = None, within: str | None = None) -> None:
        """`words`: what makes it, after `setup-tables`; `within`: the table of jobs in whose schema it must be."""
        what = f"table {name!r} is not in this database"
        if within is not None and "." in name:
            what += f", and it must be in the schema of {within!r}"
            step = f"run `claimjobs setup-tables --table {shlex.quote(within)}`"
        elif words is not None or name in _WITHOUT_TABLE:
            command = "claimjobs setup-tables" if words is None else f"claimjobs setup-tables {words}"
            step = f"run `{command}`, or check the name and the URL"
        else:  # a name alone would make the table of the demonstration
            step = "check the name and the URL; `claimjobs setup-tables --table MODULE:ATTRIBUTE` makes a described one"
            step += _DOT if "." in name else ""
        super().__init__(f"{what}: {step}")


def claims_missing(name: str, source: str, *, chosen: bool = False) -> TableMissing:
    """The error for a table whose side-car is not in the database. `chosen`: its name, which for a command stands in a
    map.
    """
    return TableMissing(name, words="--map FILE" if chosen else f"--table {shlex.quote(source)} --side-car")


class ClaimsDiffer(UnfitTable):
    """Other consumers of the table record their claims in another way: neither would see the other's claims."""


class OwnersOutdated(UnfitTable):
    """A table that queues share lacks a column: an earlier version of claimjobs made it, or somebody dropped it."""


class TableInUse(ClaimjobsError):
    """DDL did not get its lock on a table in time. All later statements on the table would have waited behind it."""


class NotClaimable(UnfitTable):
    """Rows of the table cannot be locked or changed: it is a view, or its engine has no row locks."""

    def __init__(self, table: str, what: str, step: str) -> None:
        super().__init__(f"table {table!r} {what}: {step}")


class DoneUndecided(UnfitTable):
    """`on_done` is not set for a table that claimjobs did not make."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"claimjobs did not make table {table!r}, and on_done does not say what happens to its done jobs: choose "
            "on_done='delete' (--on-done delete), which deletes their rows, 'keep', which needs a value for done, "
            "as in Columns(status='state', states={'unclaimed': ..., 'done': ...}) or [states] of the --map file, "
            "or 'leave', where the handler itself makes the queue's `where` false"
        )


class StillDue(ClaimjobsError):
    """With `on_done="leave"`, too many rows were still due after their handler had returned."""


_TYPES: Final = {
    "status": "VARCHAR(16) NOT NULL DEFAULT 'unclaimed'",
    "owner_id": "INTEGER",
    "priority": "INTEGER NOT NULL DEFAULT 0",
    "attempts": "INTEGER NOT NULL DEFAULT 0",
    "last_error": "TEXT",
    "suspect": "INTEGER NOT NULL DEFAULT 0",
    "run_again": "BOOLEAN NOT NULL DEFAULT FALSE",
}


class ColumnMissing(UnfitTable):
    """A table lacks a column that an operation needs."""

    def __init__(
        self, table: str, column: str, purpose: str, quote: Quote = str, *, mapped_as: str | None = None
    ) -> None:
        """`mapped_as`: the role for which a map names the column."""
        # The type of an instant, and its default in UTC, differ between databases.
        step = (
            f"run `claimjobs setup-tables --table {shlex.quote(table)}`, which shows the statement that adds it"
            if column in ("owner_date", "run_at")
            else f"ALTER TABLE {quoted(table, quote)} ADD COLUMN {quote(column)} {_TYPES.get(column, '...')}"
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


class BadMap(ClaimjobsError, ValueError):
    """A map of columns cannot be read, or names a role, a state or a choice that does not exist."""


class KeyUnfit(UnfitTable):
    """The key of a table cannot name its jobs: there is none, no index has it, or a row is not found by it again."""


def key_unequal(table: str, keys: Sequence[Any]) -> KeyUnfit:
    """The error for keys that were read, and do not find their rows again."""
    return KeyUnfit(
        f"the key {first_keys(keys)} was read from table {table!r}, and no row is found by it: its type does not "
        "compare equal to what is read of it (FLOAT, an interval, ...), or each UPDATE changes it (a trigger, ON "
        "UPDATE CURRENT_TIMESTAMP), so no outcome can be written; choose other columns that are unique together as "
        "Columns(key=...)"
    )


def key_unreadable(table: str, text: str) -> KeyUnfit:
    """The error for a key that Python, or its driver, cannot hold, so that nothing names the row."""
    return KeyUnfit(
        f"the key of a row of table {table!r} cannot be read ({text}), and no claim passes it: correct the row, leave "
        "it out with a `where`, or choose other columns as Columns(key=...)"
    )


class BadPredicate(ClaimjobsError):
    """A `where` or an `order_by` is not one whole SQL expression, or the database does not understand it."""


def not_understood(reason: str, *, is_order: bool = False) -> BadPredicate:
    """The error for a predicate, or an order, that the database does not understand."""
    if is_order:
        return BadPredicate(
            f"the database does not understand the order ({reason}): it is the name of a column, `-name` for the "
            "highest first, or SQL as after ORDER BY; check its columns and quotes"
        )
    return BadPredicate(
        f"the database does not understand the predicate ({reason}): it is SQL as after WHERE, for this table; check "
        "its columns and quotes"
    )

"""Errors of keys: of the key that names a job, and of other unique indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from claimjobs.errors.base import first_keys
from claimjobs.errors.tables import UnfitTable


class KeyUnfit(UnfitTable):
    """The key of a table cannot name its jobs: there is none, no index has it, or a row is not found by it again."""


class NotUnique(UnfitTable):
    """The table has no unique index over the columns that are to keep a second row out."""


def key_not_unique(table: str) -> KeyUnfit:
    """The error for two rows of a table that have the same key."""
    return KeyUnfit(
        f"two rows of table {table!r} have the same key, so neither can be named: choose columns that are unique "
        "together as Columns(key=...)"
    )


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


def key_index_gone(table: str, reason: str) -> KeyUnfit:
    """The error for an index of the key that was dropped, renamed or hidden while the queue was used."""
    return KeyUnfit(
        f"the index of table {table!r} by which rows are found was dropped, renamed or hidden ({reason}): check the "
        "table, and make the index again, or show it; if another one begins with the key, start again"
    )

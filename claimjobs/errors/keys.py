"""Errors of keys: of the key that names a job, and of other unique indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from claimjobs.errors.base import ClaimjobsError, Quote, column_option, first_keys, unique_index
from claimjobs.errors.tables import UnfitTable


class NoPrimaryKey(UnfitTable):
    """A table has no primary key, or a hidden one, so nothing names a job."""

    def __init__(self, table: str, show: str | None = None) -> None:
        """`show`: the statement that shows a hidden one."""
        what, step = ("no", "add one, or choose another table") if show is None else ("only a hidden", show)
        super().__init__(f"table {table!r} has {what} primary key to name a job by: {step}")


class KeyUnfit(UnfitTable):
    """A column of the key has a type whose values, once read, do not find their row again."""

    def __init__(self, table: str, column: str, type_: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r}, which is part of its key, is {type_}: a value that is read from "
            "such a column may differ from the stored one, so that a job would not be found again; name other columns "
            f"that are unique together, as in {column_option('key')}"
        )


class KeyNotIndexed(UnfitTable):
    """No index begins with the columns of the key, so each claim would read, or lock, the whole table.

    `unused`: indexes that do, but that no statement can use: they are invisible, ignored or invalid.
    """

    def __init__(self, table: str, columns: list[str], quote: Quote = str, unused: Sequence[str] = ()) -> None:
        which = f" that statements can use (not {', '.join(unused)}, which is invisible, ignored or invalid)"
        super().__init__(
            f"no index of table {table!r}{which if unused else ''} begins with its key, {', '.join(columns)}: "
            f"{unique_index(table, columns, quote)}"
        )


class KeyIndexGone(UnfitTable):
    """The index by which statements find rows was dropped, renamed or hidden while the queue was used."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"the index of table {table!r} by which rows are found was dropped, renamed or hidden ({reason}): check "
            "the table, and make the index again, or show it; if another one begins with the key, start again"
        )


class KeyNotUnique(UnfitTable):
    """Two rows of a table have the same key."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"two rows of table {table!r} have the same key, so neither can be named: "
            "choose columns that are unique together as Columns(key=...)"
        )


class Inherited(KeyNotUnique):
    """Other tables inherit from this one. Its queries return their rows too, and its key is not unique among them."""

    def __init__(self, table: str, child: str) -> None:
        UnfitTable.__init__(
            self,
            f"table {child!r} inherits from table {table!r}, so that two of their rows can have the same key: "
            f"make {table!r} a partitioned table, or give each of its children a queue of its own",
        )


class KeyUnequal(UnfitTable):
    """A key that was read does not find its row again."""

    def __init__(self, table: str, keys: Sequence[Any]) -> None:
        super().__init__(
            f"the key {first_keys(keys)} was read from table {table!r}, and no row is found by it: its type does not "
            "compare equal to what is read of it (FLOAT, an interval, ...), or each UPDATE changes it (a trigger, ON "
            "UPDATE CURRENT_TIMESTAMP), so no outcome can be written; choose other columns that are unique together as "
            "Columns(key=...)"
        )


class KeyUnreadable(UnfitTable):
    """Python, or its driver, cannot hold the key of a row, so nothing names the row."""

    def __init__(self, table: str, text: str) -> None:
        super().__init__(
            f"the key of a row of table {table!r} cannot be read ({text}), and no claim passes it: correct the row, "
            "leave it out with a `where`, or choose other columns as Columns(key=...)"
        )


class NotAKey(ClaimjobsError, ValueError):
    """What was given as the key of a job does not have one value for each column of the key."""

    def __init__(self, table: str, columns: Sequence[str], given: Any) -> None:
        form = "a value" if len(columns) == 1 else f"a tuple of {len(columns)} values"
        super().__init__(
            f"{given!r} is no key of a job of table {table!r}, whose key is {', '.join(columns)}: give {form}, "
            "such as `job.key`"
        )


class BadUnique(ClaimjobsError, ValueError):
    """A unique key would not keep its value, because claimjobs writes the column."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"jobs of table {table!r} cannot be unique by {column!r}, which claimjobs changes when it claims or "
            "retries a job: name columns of their payload"
        )


class NotUnique(UnfitTable):
    """Rows are to be enqueued by a unique key that the table does not have."""

    def __init__(self, table: str, columns: tuple[str, ...], quote: Quote = str) -> None:
        super().__init__(
            f"table {table!r} has no unique index over {', '.join(columns)}, so nothing keeps a second such job out: "
            f"{unique_index(table, columns, quote)}"
        )


class OtherIndex(ClaimjobsError, ValueError):
    """A row cannot be assigned, or paired, because an unrelated unique index refuses it."""

    def __init__(self, table: str, index: str, reason: str) -> None:
        super().__init__(
            f"another unique index of table {table!r}, {index!r}, refuses this row ({reason}): give a value that no "
            "other row has, or a `where` that leaves such rows out"
        )

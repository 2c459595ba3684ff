"""Errors of single rows: rows that cannot be read, inserted, deleted or settled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claimjobs.errors.base import ClaimjobsError, first_keys
from claimjobs.key_text import key_in_message


class Unreadable(ClaimjobsError, ValueError):
    """Python, or its driver, cannot hold a value of a row. `text` describes the value.

    If the column of a job is read, only that job fails; the other jobs of its batch do not.
    """

    def __init__(self, key: Any, column: str, text: str) -> None:
        super().__init__(
            f"column {column!r} of the row with the key {key_in_message(key)} cannot be read ({text}): correct the "
            "row, or do not read this column"
        )
        self.key = key
        self.column = column
        self.text = text


class BadRow(ClaimjobsError, ValueError):
    """A row to enqueue does not fit the table. `line` counts from 1; `row` is the row as the caller gave it, and the
    trace context if a column stores that.
    """

    def __init__(self, line: int, reason: str, row: Any = None) -> None:
        super().__init__(f"row {line}: {reason}")
        self.line = line
        self.reason = reason
        self.row = row


class RowsRefused(ClaimjobsError):
    """The database refuses to delete or requeue some rows; all others are written. `keys` names the refused rows."""

    def __init__(self, table: str, what: str, refused: Mapping[Any, str], others: int) -> None:
        keys = list(refused)
        super().__init__(
            f"{what} is refused for {len(keys)} of {len(keys) + others} rows of table {table!r}, such as "
            f"{first_keys(keys)} ({refused[keys[0]]}); the others are done: mend these rows, or leave them out"
        )
        self.keys = tuple(keys)
        self.others = others


class OutcomeRefused(ClaimjobsError):
    """The database refuses both the outcome of some jobs and the record of their failure.

    All other jobs of the batch are settled. This owner keeps the refused jobs claimed while it lives, so that nobody
    else does them again, and tries to write their failures again every few seconds. `keys` names them.
    """

    def __init__(
        self, table: str, refused: Mapping[Any, str], others: int = 0, *, are_duplicates: bool = False
    ) -> None:
        keys = list(refused)
        step = "mend the row, or what refuses it (a constraint, a trigger, a rule)"
        if are_duplicates:
            step = (
                "they are tried again until the row that has the same values is gone; let the unique index count "
                "claimed jobs as well, so that no such row is enqueued meanwhile"
            )
        super().__init__(
            f"the outcome of job {first_keys(keys)} of table {table!r} cannot be written ({refused[keys[0]]}), nor "
            f"that it failed; {others} others of its batch are settled: {step}"
        )
        self.keys = tuple(keys)
        self.others = others
        self.are_duplicates = are_duplicates
        """Whether a unique index refuses each of them, because another row has its values: that may pass."""

"""Errors of jobs: of single rows, of a batch and its transaction, and of the owner that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claimjobs.errors.base import ClaimjobsError, first_keys
from claimjobs.errors.tables import UnfitTable
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


class WriteSwallowed(UnfitTable):
    """A write reached fewer rows than this owner holds, though the database reported no error and no job was lost."""

    def __init__(self, table: str, what: str, counts: tuple[int, int], keys: Sequence[Any] = ()) -> None:
        reached, meant = counts
        named = f" (such as {first_keys(keys)})" if keys else ""
        super().__init__(
            f"{what} of {meant} jobs of table {table!r} reached {reached} of their rows, and no other owner holds the "
            f"others{named}: a trigger or a rule swallows the write, the handler deleted the row by itself, or a key "
            "does not compare equal to what was read of it; change the trigger, the rule or the handler, or choose "
            "other columns as Columns(key=...)"
        )
        self.keys = tuple(keys)


class SettleFailed(ClaimjobsError):
    """The database refuses a settle for a reason that no single row causes. It wrote nothing."""

    def __init__(self, table: str, jobs: int, reason: str) -> None:
        super().__init__(
            f"the outcomes of {jobs} jobs of table {table!r} cannot be written ({reason}): this owner holds them until "
            "it ends; check what its account may do, and what belongs to the table (rules, triggers, views)"
        )


class ClaimRefused(ClaimjobsError):
    """The database refuses to mark rows as claimed: a constraint, a trigger or a policy forbids it."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"jobs of table {table!r} cannot be marked as claimed ({reason}): change the constraint, the trigger or "
            "the policy that refuses it, keep outcomes in a second table (side_car=True, --side-car), or use "
            "hold='transaction'"
        )


class NoOpenTransaction(ClaimjobsError):
    """A batch was asked for its transaction, and has none, or its transaction has ended."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this batch {what}: make the Queue with hold='transaction', and leave commit to `with batch`")


class BatchRolledBack(ClaimjobsError):
    """The transaction that held a batch was rolled back: its jobs are free, and all writes for them are undone.

    If the connection broke during the commit, the whole batch may be done instead; never a part of it.
    """

    def __init__(
        self, kind: str, *, isolates: bool = False, lost_after: float | None = None, limit: str | None = None
    ) -> None:
        free = "they are claimed again in smaller and smaller batches until the refused job is alone and fails"
        why = kind if lost_after is None else f"{kind} after {lost_after:.1f} s"
        step = "claim another batch"
        if limit is not None:
            why += f"; the server ends such a transaction: {limit}"
            step = "raise this limit for the account, or handle fewer jobs in a batch (--batch-size), or hold='lease'"
        super().__init__(
            f"the batch was rolled back as a whole ({why}): the writes for its jobs are undone, and "
            f"{free if isolates else 'they are free'}; {step}"
        )
        self.kind = kind
        self.lost_after = lost_after
        """Seconds from the claim until it was found out that the connection was lost; None: it was not."""
        self.limit = limit
        """The setting of the server that may have ended the transaction, with its value; None: no known one."""
        self.isolates = isolates
        """Whether the database refused a row, and the jobs are marked as suspects, so that the batch will not come
        again as it was."""


class BatchMisused(ClaimjobsError):
    """A batch was used after it was settled, or left open, or for a job that is not in it or cannot be undone."""


class Fail(Exception):
    """A handler raises it to say how its job failed; `retry=False`: it is dead at once. No error of claimjobs."""

    retry_in: float | None = None
    """Seconds until the job runs again; None: after its back-off."""

    def __init__(self, error: str = "the handler failed it", *, retry: bool = True) -> None:
        super().__init__(error)
        self.retry = retry


class RetryLater(Fail):
    """A handler raises it to run its job again in so many seconds. It counts as a failed attempt."""

    def __init__(self, seconds: float, error: str = "the handler wants it later") -> None:
        super().__init__(error)
        self.retry_in = seconds


class NothingDone(ClaimjobsError):
    """All jobs of several batches in a row were released, so draining the queue would never end."""

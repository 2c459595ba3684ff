"""Errors of a batch: its outcomes, its transaction, and the owner that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from claimjobs.errors.base import ClaimjobsError, first_keys
from claimjobs.errors.tables import UnfitTable


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


class OwnerDeclaredDead(ClaimjobsError):
    """An owner was declared dead again and again, each time before it could claim anything."""

    def __init__(self, table: str, times: int) -> None:
        super().__init__(
            f"this owner of jobs of table {table!r} was declared dead {times} times in a row before it could claim: "
            "give it a longer lease, or find out who declares it dead (another clock, a cleaning job of your own)"
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


class NothingDone(ClaimjobsError):
    """All jobs of several batches in a row were released, so draining the queue would never end."""

    def __init__(self, batches: int, why: str) -> None:
        super().__init__(f"no job of {batches} batches in a row was done, the last time because of this: {why}")

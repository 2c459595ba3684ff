"""Liveness: how long an owner may be silent, and how long it tries to reach its database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from claimjobs.backoff import Backoff

HoldKind = Literal["lease", "transaction"]
"""What keeps a claim while its jobs are worked on: the lease of a living owner, or the locks of an open transaction."""
HOLDS: Final = get_args(HoldKind)
LockKind = Literal["rows", "advisory"]
"""What keeps others from claiming the same job: the lock of its row, or an advisory lock on its key."""
LOCKS: Final = get_args(LockKind)

CHECK_EVERY: Final = 0.4
"""Seconds between two checks of owners by the one process that has the named lock."""


@dataclass(frozen=True)
class Liveness:
    """All in seconds. Raises ValueError for figures that make no sense."""

    lease: float = 10.0
    """Without a sign of life for so long an owner is dead, whatever its session lock says."""
    max_batch_time: float = 3600.0
    """An owner whose batch makes no progress for so long gives no more signs of life: its handler hangs."""
    patience: float = 60.0
    """How long a claim or a settle goes on trying when the database cannot be reached."""
    session_lock: bool | None = None
    """False: the lease alone tells who lives, as behind a pooler. None: found out."""

    def __post_init__(self) -> None:
        if self.lease < 2 or self.max_batch_time <= 0 or self.patience < 0:
            raise ValueError(f"{self}: lease from 2, max_batch_time above 0, patience from 0 seconds")

    @property
    def beat(self) -> float:
        """Between two signs of life: a lease outlives four lost ones."""
        return self.lease / 5

    @property
    def lock_timeout(self) -> float:
        """How long a statement waits for a row lock before it gives others their turn."""
        return max(1.0, self.lease / 5)  # whole seconds on some servers


@dataclass(frozen=True)
class Retry:
    """Exponential back-off with jitter: `base * 2 ** n` seconds after n + 1 failures, at most `cap`.

    The wait is drawn between half of that and all of it, so that jobs that failed together do not come back
    together. After `attempts` failures a job is dead. Raises ValueError for figures that make no sense.
    """

    attempts: int = 5
    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.cap < 0:
            raise ValueError(f"{self}: attempts from 1, base and cap (seconds) from 0")

    def is_last(self, attempts_before: int) -> bool:
        """Whether a job that had failed so often before this failure is dead now."""
        return attempts_before + 1 >= self.attempts

    def wait(self, attempts_before: int) -> float:
        """Seconds until a job that had failed so often before this failure may run again."""
        return Backoff(self.base, self.cap).after(attempts_before)


LONGEST = 10 * 366 * 86_400.0
"""Seconds, ten years: a wait beyond that is a mistake, and no database need be asked whether it can add it."""


def bounded(seconds: float) -> float:
    """A wait that a database can add to its clock: what is longer than ten years is ten years, below 0 is 0.

    Raises ValueError for what is no number of seconds.
    """
    if seconds != seconds:  # noqa: PLR0124 - only NaN is not itself
        raise ValueError("retry_in is not a number: give seconds")
    return min(max(float(seconds), 0.0), LONGEST)


@dataclass(frozen=True)
class SideCar:
    """How the claims on a table are kept in a table of their own, `<table>_claims` unless `table` names another.

    `lock_source=True`: a claim locks the rows that it takes for the moment in which their keys are inserted, so that
    no two consumers insert the same key, and none waits. It needs the right to lock rows, which comes with the right
    to update them. `False`: rows are only read. Consumers that insert the same key then wait for each other, and the
    second one goes without it: for few consumers, or a table that this user may only read. All consumers of a table
    must use the same.

    The row of a done job stays, and its key is kept as done, so that it is not found again; claims walk over done keys
    at the head of the order, a tenth of a second for 100,000 of them. A key that comes to be used again is a new job
    only where done keys are not kept.
    """

    lock_source: bool = True
    table: str | None = None

    def name_for(self, source: str) -> str:
        """The name of the table of claims on this one, both with their schema, if any."""
        return self.table or f"{source}_claims"

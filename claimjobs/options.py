"""Options of a queue that are plain data: its kind, liveness, retries, side-car, limits per key."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, get_args

from claimjobs.job import values_of

HoldKind = Literal["lease", "transaction"]
"""What keeps a claim while its jobs are worked on: the lease of a live owner, or the locks of an open transaction."""
HOLDS: Final = get_args(HoldKind)

ClaimsKind = Literal["rows", "batches"]
"""Where a claim is recorded: in the row of each job, or in one row of `claimjobs_batches` for all jobs of the batch."""
CLAIMS: Final = get_args(ClaimsKind)

Kind = Literal["rows", "batches", "transaction", "side-car"]
ALL_KINDS: Final = get_args(Kind)
KINDS: Final[dict[tuple[HoldKind, ClaimsKind | None, bool], Kind]] = {
    ("lease", None, False): "rows",
    ("lease", "rows", False): "rows",
    ("lease", "batches", False): "batches",
    ("lease", None, True): "side-car",
    ("lease", "batches", True): "side-car",
    ("transaction", None, False): "transaction",
    ("transaction", "rows", False): "transaction",
}
"""The kind of a queue by `hold`, `claims` and whether there is a side-car. There is none for other values."""

Finish = Literal["delete", "keep"]
"""What happens to the row of a done job: it is deleted, or kept with the status `done`."""
FINISHES: Final = get_args(Finish)
LEAVE: Final = "leave"
"""A done job is only released: its handler has made the queue's predicate false."""

CHECK_EVERY: Final = 0.4
"""Seconds between two checks of owners by the one process that has the named lock."""


@dataclass(frozen=True)
class Liveness:
    """How an owner shows that it is alive. All values are seconds. Raises ValueError for values out of range."""

    lease: float = 10.0
    """An owner without a heartbeat for so long is dead, even if its session lock is held."""
    max_batch_time: float = 3600.0
    """The jobs of a batch that makes no progress for so long are given to others: its handler hangs."""
    patience: float = 60.0
    """How long a claim or a settle tries again when the database cannot be reached."""
    session_lock: bool | None = None
    """Whether an owner also shows by a session lock that it is alive.

    None: it does if no pooler is in between. True: it does, also behind a pooler that shares no session; where it
    cannot, SessionsShared is raised before the first claim. False: only the lease counts.
    """

    def __post_init__(self) -> None:
        if self.lease < 2 or self.max_batch_time <= 0 or self.patience < 0:
            raise ValueError(f"{self}: lease from 2, max_batch_time above 0, patience from 0 seconds")

    @property
    def beat(self) -> float:
        """Between two heartbeats: a lease lasts longer than four lost ones."""
        return self.lease / 5

    @property
    def idle_beat(self) -> float:
        """The most between two heartbeats of an owner that sleeps."""
        return 0.75 * self.lease

    @property
    def lock_timeout(self) -> float:
        """How long a statement waits for a row lock before its transaction is rolled back and tried again."""
        return max(1.0, self.lease / 5)  # whole seconds on some servers


DOUBLINGS: Final = 64
"""No more are computed: a float cannot hold 2 ** 1024, and the longest pause is reached long before."""


@dataclass
class Backoff:
    """Pauses in seconds that double from `first` to `longest`. Each is a random part of that, at least `least`.

    So those that failed together do not try again together. A `least` of 0 spreads the most, 1 is not random.
    """

    first: float
    longest: float
    least: float = 0.5
    _pauses: int = field(default=0, init=False)

    def pause(self) -> float:
        self._pauses += 1
        return self.after(self._pauses - 1)

    def after(self, pauses: int) -> float:
        """The pause after so many others."""
        full = min(self.first * 2.0 ** min(pauses, DOUBLINGS), self.longest)
        return full * random.uniform(self.least, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._pauses = 0


@dataclass(frozen=True)
class Retry:
    """Exponential back-off with jitter: `base * 2 ** n` seconds after n + 1 failures, at most `cap`.

    The wait is a random part of that, from half to all of it, so that jobs that failed together do not run again
    together. After `attempts` failures a job is dead. With the defaults that is after 78 to 157 minutes:
    an outage of an hour kills no job. Raises ValueError for values out of range.
    """

    attempts: int = 25
    base: float = 1.0
    cap: float = 600.0

    def __post_init__(self) -> None:
        pauses = (self.base, self.cap)
        seconds = all(isinstance(each, (int, float)) and 0 <= each <= LONGEST_WAIT_SECONDS for each in pauses)
        if not (isinstance(self.attempts, int) and self.attempts >= 1 and seconds):
            raise ValueError(f"{self}: give attempts from 1, base and cap (seconds) from 0")

    def is_last(self, attempts_before: int) -> bool:
        """Whether a job that had failed so often before this failure is dead now."""
        return attempts_before + 1 >= self.attempts

    def wait(self, attempts_before: int) -> float:
        """Seconds until a job that had failed so often before this failure may run again."""
        return Backoff(self.base, self.cap).after(attempts_before)


LONGEST_WAIT_SECONDS = 10 * 366 * 86_400.0
"""Seconds, ten years: every database can add it to its clock, and a longer wait is a mistake."""


def bounded(seconds: float) -> float:
    """A wait from 0 to ten years, which every database can add to its clock: a value out of range becomes the nearest.

    Raises ValueError for NaN, and for what is no number.
    """
    try:
        found = float(seconds)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"retry_in is {seconds!r}, which is not a number: give seconds")
    return min(max(found, 0.0), LONGEST_WAIT_SECONDS)


SIDE_CAR: Final = "_claims"
"""What the name of a side-car ends in, after that of its table."""


@dataclass(frozen=True)
class SideCar:
    """A second table for what becomes of jobs, whose own table is not altered: `Queue(side_car=SideCar(...))`."""

    also_writes: str | Sequence[str] = ()
    """Columns, or one, of the user's table whose values `Batch.done(job, **columns)` writes there."""
    name: str | bool = True
    """The name of the second table; True: the name of the user's table with `_claims`."""


_GRANTS: Final = "run the GRANT statements of docs/security.md"

INSTEAD: Final = {
    "--account": _GRANTS,
    "--grants": _GRANTS,
    "--column": "write the name of the column into [columns] of a --map file",
    "--partition-by-time": "make the partitions yourself, as docs/operating.md shows under 'Kept jobs'",
    "--state": "write the value of the state into [states] of a --map file",
    "--rejects": "a line that does not fit is told with its number, and all others are enqueued",
    "--chunk": "a file is one transaction; make smaller files, as with `split -l 100000`",
    "--from-line": "give the lines from there on, as with `tail -n +1000 FILE | claimjobs enqueue -`",
    "--ledger": "make the ledger in Python, by claimjobs.contrib.ledger",
    "--attempts": "give --retry-attempts, or [retry] of a --map file",
    "--picture": "record the terminal, as with asciinema",
    "--prefetch": "handle many jobs at once by --concurrency N, with a function of a job",
    "--lock": "choose advisory locks in Python: Queue(hold='transaction', locking=AdvisoryLocks())",
    "--candidates-url": "read candidates from a replica in Python: Queue(locking=Replica(url))",
    "candidates": "use locking=Replica(url) of claimjobs.contrib.replica",
    "lock": "use locking=AdvisoryLocks() of claimjobs.contrib.advisory_locks, with hold='transaction'",
}
"""What to use instead of the options of commands, and of parameters of Queue, that claimjobs had once."""


# --- limits, order, turns and rates for each value of a column of the jobs, such as their customer ---------------

AfterFailure = Literal["wait", "skip"]
"""What a failed job does to later jobs of its key: they wait for its next attempt, or do not."""
UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
LARGEST_BATCH: Final = 10_000_000
"""The most jobs of one claim. It may read some hundred times as many candidates, whose number is one of 32 bits."""
LARGEST_LIMIT: Final = 100_000
"""The largest limit, and the largest rate a second."""


class Rate(NamedTuple):
    interval: float
    """Seconds from one to the next, on average."""
    burst: int
    """How many may begin at once, after a time without any."""


@dataclass(frozen=True)
class PerKey:
    """What holds for each value of these columns (each *key*), over all consumers on all machines.

    `at_most`: so many jobs of a key are claimed at any moment. `in_order`: one at a time, in the order of the queue; a
    failed one is waited for until it is done or dead, or not with `after_failure="skip"`. `rate`: so many are claimed
    in each second, minute, hour or day, such as "100/min"; `burst` of them at once, by default as many as in one
    second. `fair`: keys take turns, and one claim takes at most its own size of a key; without it the key that has
    waited longest goes on until it has no job. `weights`: how much a key gets in its turn, in proportion to 1; a
    claim is then at most half of one key. A claim smaller than twice the largest weight divided by the smallest, which
    is 1 for a key without a weight, has no room for them: the shares are then more equal.

    Raises ValueError for values that do not go together.
    """

    columns: str | Sequence[str]
    at_most: int | None = None
    in_order: bool = False
    fair: bool = True
    rate: str | None = None
    burst: int | None = None
    weights: Mapping[Any, float] = field(default_factory=dict)
    after_failure: AfterFailure = "wait"

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            raise ValueError(f"per_key columns={self.columns!r}: give the name of a column, or several")
        for name in ("at_most", "burst"):
            given = getattr(self, name)
            if given is not None and not (
                isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= LARGEST_LIMIT
            ):
                raise ValueError(f"per_key {name}={given!r}: give a whole number from 1 to {LARGEST_LIMIT:,}")
        if self.in_order and self.at_most not in (None, 1):
            raise ValueError(f"per_key in_order=True is one job at a time, not at_most={self.at_most}: leave that out")
        if self.after_failure not in get_args(AfterFailure) or (self.after_failure == "skip" and not self.in_order):
            raise ValueError(f"per_key after_failure={self.after_failure!r}: give 'wait' or 'skip', with in_order=True")
        if self.burst is not None and self.rate is None:
            raise ValueError(f"per_key burst={self.burst} is that of a rate: give rate, too")
        if self.weights and not (
            self.fair
            and all(
                isinstance(one, (int, float)) and not isinstance(one, bool) and 0 < one <= 1_000
                for one in self.weights.values()
            )
        ):
            raise ValueError("per_key weights are numbers above 0, up to 1,000, with fair=True")
        for key in self.weights:
            if len(values_of(key)) != len(self.names):
                names = ", ".join(self.names)
                raise ValueError(f"per_key weights: {key!r} is no key of {names}: give one value for each column")
        _ = self.pace  # raises for a rate that cannot be read

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)

    @property
    def limit(self) -> int | None:
        """How many jobs of a key may be claimed at once; None: any number."""
        return 1 if self.in_order else self.at_most

    @property
    def waits(self) -> bool:
        """Whether a failed job is waited for."""
        return self.in_order and self.after_failure == "wait"

    @cached_property
    def pace(self) -> Rate | None:
        """The rate. Raises ValueError if it cannot be read."""
        if self.rate is None:
            return None
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(s|min|h|d)\s*", str(self.rate))
        per_second = int(found[1]) / UNITS[found[2]] if found else 0.0
        if not 0 < per_second <= LARGEST_LIMIT:
            raise ValueError(f"per_key rate={self.rate!r}: give a number for a time, such as 10/s, 100/min, 5/h or 1/d")
        return Rate(1 / per_second, self.burst or max(1, int(per_second)))

    def share(self, weight: float, size: int) -> int:
        """How many jobs a claim of `size` takes of a key of this weight at most. With weights it is at most half of the
        claim: a turn that has no room for its share would get less than that.
        """
        if not self.weights:
            return size
        largest = max(1.0, *self.weights.values())
        return max(1, round(size / 2 * weight / largest))

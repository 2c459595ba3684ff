"""Backlog and Overview: what waits, and what a queue is doing now, by statements that read at most so many rows; and
how that went of late.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.admin.pause import read_pause
from claimjobs.admin.stats import OwnerStats, oldest_of, owners_of
from claimjobs.admin.stored_jobs import StoredJob, StoredJobs
from claimjobs.claim.claim_plan import ClaimPlans
from claimjobs.database.clock import in_seconds
from claimjobs.dialects import Key
from claimjobs.instants import age
from claimjobs.job import key_of
from claimjobs.lease.registry import check_claims
from claimjobs.statements import stored_jobs
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD, UNCLAIMED, JobCounts
from claimjobs.table.roles import ColumnRoles

LIMIT: Final = 10_000
"""Up to how many jobs are counted in each state."""
FAILED_SHOWN: Final = 10
"""How many dead jobs are read, and how many that failed and will be tried again."""
KEYS_SHOWN: Final = 5
"""How many keys of `per_key` are read that wait longest, and how many that are held back."""
KEYS_READ: Final = 4 * KEYS_SHOWN
"""How many of those that wait longest are read: some may have no job any more."""
READINGS_KEPT: Final = 240
"""Readings that a history keeps: eight minutes of one every 2 s."""
COUNTED_STATES: Final = tuple(field.name for field in fields(JobCounts))
"""The states that are counted."""


@dataclass(frozen=True)
class Backlog(JobCounts):
    """Jobs and owners of a queue. A number of jobs that is equal to `limit` means: so many or more."""

    limit: int
    due: int
    """Of the unclaimed jobs that were counted: those that may be claimed now."""
    oldest: float | None
    """Seconds for which the oldest of these has been due; None where none is, or no `run_at` tells."""
    retrying: int
    """Of the unclaimed jobs that were counted: those that failed before, or are suspects."""
    owners: dict[str, int]
    """How many owners are `awake`, `asleep` and `dead`. Empty with `hold="transaction"`."""
    paused: bool
    """Whether the queue is paused."""


@dataclass(frozen=True)
class FailedJob:
    """A job that failed, and is dead or will be tried again."""

    key: Key
    failures: int | None
    """How often it failed; None: the table does not count that."""
    error: str
    """Its last error."""
    next_in: float | None = None
    """Seconds until it is tried again; None: it is dead, or no `run_at` tells."""

    @property
    def when(self) -> str:
        """When it is tried again, in words."""
        return "" if self.next_in is None else f"in {age(self.next_in)}" if self.next_in > 0 else "due"


@dataclass(frozen=True)
class KeyState:
    """A key of `per_key`."""

    key: Key
    jobs: int
    """How many of its jobs are claimed."""
    next_in: float
    """Seconds until a claim looks at it; below 0: for so long it may have, and others were first."""
    is_full: bool = False
    """Whether as many of its jobs are claimed as the limit of this queue allows."""

    @property
    def is_held_back(self) -> bool:
        """Whether a limit or a rate holds back its jobs."""
        return self.is_full or self.next_in > 0

    @property
    def when(self) -> str:
        """When jobs of it may be claimed, in words."""
        if self.next_in > 0:
            return f"held back, again in {age(self.next_in)}"
        return "held back by its limit" if self.is_full else f"due for {age(-self.next_in)}"


@dataclass(frozen=True)
class Overview:
    """A queue at one moment."""

    table: str
    now: datetime
    """The time of the database."""
    backlog: Backlog
    owners: tuple[OwnerStats, ...]
    dead: tuple[FailedJob, ...]
    """Dead jobs, the last of the queue's order first."""
    retrying: tuple[FailedJob, ...]
    """Jobs that failed and will be tried again, those with the most failures first."""
    paused: float | None
    """Seconds for which the queue has been paused; None: it is not paused."""
    pause_reason: str | None
    keys: tuple[KeyState, ...] = ()
    """With `per_key`: the keys that wait longest for their turn, and then those that are held back."""

    def jobs(self, state: str) -> int:
        """How many jobs are in this state; `backlog.limit` or more if that is the number."""
        count: int = getattr(self.backlog, state)
        return count

    def is_exact(self, state: str) -> bool:
        """Whether no more jobs are in this state than were counted."""
        return self.jobs(state) < self.backlog.limit

    @property
    def has_consumers(self) -> bool:
        """Whether an owner lives. With open transactions there are no owners: then it is True."""
        owners = self.backlog.owners
        return not owners or owners["awake"] + owners["asleep"] > 0

    def count(self, state: str) -> str:
        """How many jobs are in this state, in words: with a plus if there may be more."""
        return f"{self.jobs(state):,}{'' if self.is_exact(state) else '+'}"


def outlook(seen: Overview, history: History) -> Iterator[str]:
    """What waits, for how long, and until when, in words."""
    backlog = seen.backlog
    yield f"{backlog.due:,}{'' if seen.is_exact('unclaimed') else '+'} due"
    if backlog.oldest is not None:
        yield f"the oldest has been due for {age(backlog.oldest)}"
    if backlog.retrying:
        yield f"{backlog.retrying:,} failed and will be tried again"
    if seen.has_consumers and (left := history.empty_in()) is not None:
        yield f"empty in {age(left)}"


class OverviewReader:
    """Reads the backlog and the overview of a queue, each by some short statements."""

    def __init__(self, backend: Backend, plans: ClaimPlans, now: sa.ColumnElement[Any], limit: int) -> None:
        self._backend, self._plans, self._now, self._limit = backend, plans, now, limit
        self._upper = {"claimjobs_limit": limit}
        self._rows = rows = job_rows(backend, now)
        of_queue = plans.lasting
        self._unclaimed = rows.in_state(UNCLAIMED, *of_queue)
        self._order = order = plans.selection(None).order
        self._order_with_state = rows.order(order)
        unclaimed = rows.unclaimed_with_state(of_queue)
        self._worst_failed = stored_jobs.worst_failed(backend.roles, unclaimed, self._order_with_state)

    def backlog(
        self, connection: sa.Connection, owners: Sequence[OwnerStats] | None = None, paused: bool | None = None
    ) -> Backlog:
        """The backlog; `owners` and `paused` are read if they are not given.

        With a side-car a dead job whose row was deleted is not counted, but read. Raises ClaimsDiffer.
        """
        backend, rows, order, upper = self._backend, self._rows, self._order, self._upper
        check_claims(connection, backend, only_reads=True)
        if owners is None:
            owners, _ = owners_of(connection, backend)
        if paused is None:
            paused = read_pause(connection, backend)[0] is not None
        due = rows.due(backend.source.run_at_passed(self._now))
        first = stored_jobs.first_waiting(backend.source, self._unclaimed, order, self._now, due=due)
        waiting = connection.execute(first, upper).one()
        failed = sa.select(sa.func.count()).select_from(self._worst_failed.subquery())
        lives = Counter(owner.life for owner in owners or ())
        others = {of: connection.scalar(rows.up_to(of, order), upper) for of in COUNTED_STATES if of != UNCLAIMED}
        return Backlog(
            **{state: min(self._limit, jobs) for state, jobs in {UNCLAIMED: waiting.jobs, **others}.items()},
            limit=self._limit,
            due=waiting.due,
            oldest=oldest_of([waiting]),
            retrying=int(connection.scalar(failed, upper) or 0) if backend.roles.failure_counts else 0,
            owners={} if owners is None else {"awake": lives[""], "asleep": lives["asleep"], "dead": lives["dead"]},
            paused=paused,
        )

    def overview(self, connection: sa.Connection) -> Overview:
        """What a queue is doing, without its failed jobs. Raises ClaimsDiffer."""
        owners, _ = owners_of(connection, self._backend, self._rows)
        paused, reason = read_pause(connection, self._backend)
        backlog = self.backlog(connection, owners, paused is not None)
        return Overview(
            table=self._backend.source.name,
            now=connection.execute(sa.select(self._now)).scalar_one(),
            backlog=backlog,
            owners=owners or (),
            dead=(),
            retrying=(),
            paused=paused,
            pause_reason=reason,
            keys=self._keys(connection),
        )

    def _keys(self, connection: sa.Connection) -> tuple[KeyState, ...]:
        """The keys that wait longest, and those that are held back among the next `limit` ones."""
        statements = self._plans.key_statements
        if statements is None:
            return ()
        due = connection.execute(statements.first_due(KEYS_SHOWN, KEYS_READ)).all()
        rows = [*due, *connection.execute(statements.first_held_back(KEYS_SHOWN, self._limit))]
        waiting = {key_of(key): (at - now).total_seconds() for *key, at, now in rows}
        counted = connection.execute(statements.claimed, {"claimjobs_per_keys": list(waiting)}) if waiting else ()
        jobs = {key_of(key): count for *key, count in counted}
        limit = self._backend.key_rows.limit if self._backend.key_rows else None
        return tuple(
            KeyState(key, held, next_in, is_full=limit is not None and held >= limit)
            for key, next_in in waiting.items()
            for held in (jobs.get(key, 0),)
        )

    def with_failed_jobs(self, seen: Overview, jobs: StoredJobs) -> Overview:
        """The same with its failed jobs, if it has counted some."""
        roles = self._backend.roles
        dead, retrying = [], []
        if seen.backlog.dead:
            last = stored_jobs.last_keys(roles, roles.state.job_is(DEAD), self._order_with_state)
            dead = [_failed_job(stored, roles) for stored in jobs.found_by(last, FAILED_SHOWN)]
        if seen.backlog.retrying:
            worst = jobs.found_by(self._worst_failed.limit(FAILED_SHOWN), self._limit)
            retrying = [_failed_job(stored, roles, seen.now) for stored in worst]
        return replace(seen, dead=tuple(dead), retrying=tuple(retrying))


def _failed_job(stored: StoredJob, roles: ColumnRoles, now: datetime | None = None) -> FailedJob:
    """`now`: the time of the database, if the job will be tried again."""
    record = stored.outcome
    again = roles.value_of("run_at", record)
    next_in = in_seconds(again) - in_seconds(now) if now is not None and isinstance(again, datetime) else None
    error = str(roles.value_of("last_error", record, ""))
    return FailedJob(stored.key, roles.value_of("attempts", record), error, next_in)


class History:
    """The last readings of one queue."""

    def __init__(self) -> None:
        self._readings: deque[Overview] = deque(maxlen=READINGS_KEPT)

    def add(self, reading: Overview) -> None:
        """Add the newest one."""
        self._readings.append(reading)

    def counts(self, state: str) -> Sequence[tuple[datetime, int]]:
        """How many jobs were in this state, and when."""
        return [(reading.now, reading.jobs(state)) for reading in self._readings]

    def change(self, state: str, seconds: float = 30.0) -> float | None:
        """By how many jobs a second this state grows (below 0: shrinks), over the last `seconds`; None: not known, as
        where there are more jobs than are counted.
        """
        known = [reading for reading in self._readings if reading.is_exact(state)]
        if not known or known[-1] is not self._readings[-1]:
            return None
        last = known[-1]
        first = next(one for one in known if (last.now - one.now).total_seconds() <= seconds)
        span = (last.now - first.now).total_seconds()
        return (last.jobs(state) - first.jobs(state)) / span if span > 0 else None

    def shown_change(self, state: str) -> str:
        """The change of this state, in words; empty if it is not known."""
        change = self.change(state)
        return "" if change is None else f"{change:+,.1f}"

    def empty_in(self) -> float | None:
        """Seconds until no job is unclaimed, if it goes on like that; None: not known, or never."""
        change = self.change("unclaimed")
        if change is None or change >= 0:
            return None
        return self._readings[-1].jobs("unclaimed") / -change or None

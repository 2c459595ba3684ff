"""Overview: what a queue is doing now, by statements that read at most so many rows; and how that went of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.admin.backlog import Backlog, read_backlog
from claimjobs.admin.stats import OwnerStats, owners_of, read_pause
from claimjobs.admin.stored_jobs import StoredJob, StoredJobs
from claimjobs.database.clock import in_seconds
from claimjobs.dialects import Key
from claimjobs.instants import age
from claimjobs.job import key_of
from claimjobs.statements.count import Predicates
from claimjobs.statements.job_rows import job_rows
from claimjobs.statements.key_rows import KeyStatements
from claimjobs.table.backend import Backend
from claimjobs.table.columns import DEAD
from claimjobs.table.roles import ColumnRoles

FAILED_SHOWN: Final = 10
"""So many dead jobs are read, and so many that failed and will be tried again."""
KEYS_SHOWN: Final = 5
"""Keys of `per_key` that are read: so many that wait longest, and so many that are held back."""
KEPT: Final = 240
"""Readings that a history keeps: eight minutes of one every 2 s."""
COUNTED: Final = ("unclaimed", "claimed", "dead")
"""The states that are counted: done jobs are deleted, or are most of the table."""


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
    """Seconds until jobs of it may be claimed; below 0: for so long they may have been, and others were first."""

    @property
    def is_held_back(self) -> bool:
        """Whether a limit or a rate holds back its jobs."""
        return self.next_in > 0

    @property
    def when(self) -> str:
        """When jobs of it may be claimed, in words."""
        return f"held back, again in {age(self.next_in)}" if self.is_held_back else f"due for {age(-self.next_in)}"


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

    @property
    def dead_owners_first(self) -> Sequence[OwnerStats]:
        """The owners in the order in which a person wants to see them."""
        return sorted(self.owners, key=lambda owner: (not owner.dead, owner.id))

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


def read_overview(
    connection: sa.Connection,
    backend: Backend,
    order: Sequence[sa.ColumnElement[Any]],
    of_queue: Sequence[sa.ColumnElement[bool]],
    *,
    key_statements: KeyStatements | None,
    now: sa.ColumnElement[Any],
    limit: int,
) -> Overview:
    """What a queue is doing, without its failed jobs. `key_statements`: those of `per_key`, if there is one. The others
    are as for `read_backlog`.
    """
    backlog = read_backlog(connection, backend, order, of_queue, now=now, limit=limit)
    owners, _ = owners_of(connection, backend, job_rows(backend, now))
    paused, reason = read_pause(connection, backend)
    moment: datetime = connection.execute(sa.select(now)).scalar_one()
    keys = () if key_statements is None else _read_keys(connection, key_statements, limit)
    return Overview(backend.source.name, moment, backlog, owners, (), (), paused, reason, keys)


def with_failed_jobs(
    seen: Overview,
    jobs: StoredJobs,
    roles: ColumnRoles,
    order: Sequence[sa.ColumnElement[Any]],
    *,
    of_queue: Predicates,
) -> Overview:
    """The same with its failed jobs, if it has counted some. `of_queue`: the predicates of its jobs."""
    backlog = seen.backlog
    dead = jobs.last(DEAD, order, FAILED_SHOWN) if backlog.dead else ()
    retrying = jobs.worst(of_queue, order, among=backlog.limit, most=FAILED_SHOWN) if backlog.retrying else ()
    return replace(
        seen,
        dead=tuple(_failed_job(stored, roles) for stored in dead),
        retrying=tuple(_failed_job(stored, roles, seen.now) for stored in retrying),
    )


def _failed_job(stored: StoredJob, roles: ColumnRoles, now: datetime | None = None) -> FailedJob:
    """`now`: the time of the database, if the job will be tried again."""
    record: Mapping[str, Any] = stored.record or {}
    again = None if now is None else roles.value_of("run_at", record)
    next_in = None if now is None or again is None else in_seconds(again) - in_seconds(now)
    error = str(roles.value_of("last_error", record, ""))
    return FailedJob(stored.key, roles.value_of("attempts", record), error, next_in)


def _read_keys(connection: sa.Connection, statements: KeyStatements, limit: int) -> tuple[KeyState, ...]:
    """The keys that wait longest, and those that are held back among the next `limit` ones."""
    due = connection.execute(statements.first_due(KEYS_SHOWN)).all()
    rows = [*due, *connection.execute(statements.first_held_back(KEYS_SHOWN, limit))]
    waiting = {key_of(key): (at - now).total_seconds() for *key, at, now in rows}
    counted = connection.execute(statements.claimed, {"claimjobs_per_keys": list(waiting)}) if waiting else ()
    jobs = {key_of(key): count for *key, count in counted}
    return tuple(KeyState(key, jobs.get(key, 0), next_in) for key, next_in in waiting.items())


class History:
    """The last readings of one queue."""

    def __init__(self, kept: int = KEPT) -> None:
        self._readings: deque[Overview] = deque(maxlen=kept)

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

"""Stats: the jobs of a queue by status, and its owners."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.database.transactions import savepoint
from claimjobs.lease.registry import OwnerState, check_claims, dead_among, read_owners
from claimjobs.statements import count, pause
from claimjobs.statements.job_rows import JobRows, job_rows
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, DEAD, DONE, STATES, UNCLAIMED
from claimjobs.table.definitions import FIRST_OWNER
from claimjobs.table.roles import ColumnRoles


@dataclass(frozen=True)
class OwnerStats:
    """One owner, and how many jobs it holds."""

    id: int
    host: str
    pid: int
    age: float
    """Seconds since it registered."""
    silence: float
    """Seconds since its last heartbeat."""
    lease: float
    """Seconds of silence after which it is dead."""
    lock: str
    """Its session lock: `held`; `free`, which is a sign of death; `none`: only the lease counts."""
    dead: bool
    """Whether it is dead, so that its jobs are about to be reclaimed."""
    asleep: float | None
    """Seconds for which it has slept; None: it is awake."""
    jobs: int
    unclaimable: int
    """How many rows it leaves, because no claim can take them: its log names them (`jobs_unclaimable`)."""

    @property
    def life(self) -> str:
        """`dead` or `asleep`; empty: it is awake."""
        return "dead" if self.dead else "" if self.asleep is None else "asleep"


@dataclass(frozen=True)
class Stats:
    """Counts of jobs by status, and the owners."""

    unclaimed: int
    """Those that meet the queue's predicate. Of the other states all jobs of the table count, because a row may not
    meet it any more."""
    claimed: int
    done: int
    dead: int
    oldest: float | None
    """Seconds that the longest-waiting unclaimed job has been due; None where none is, or no `run_at` tells."""
    due: int
    """Of the unclaimed jobs: those that may be claimed now."""
    owners: tuple[OwnerStats, ...]
    others: Mapping[Any, int] = field(default_factory=dict)
    """How many rows have each value of the status column that means no state, the most frequent first. They are never
    claimed."""

    not_in_queue: int = 0
    """Unclaimed rows that do not meet the queue's predicate."""
    ownerless: int = 0
    """Claimed jobs without an owner's id. Nobody works on them, and only `reclaim_ownerless` releases them."""
    strangers: Mapping[int, int] = field(default_factory=dict)
    """Claimed jobs by their `owner_id`, if that is another program's. Consumers do not reclaim them."""

    paused: float | None = None
    """Seconds for which the queue has been paused; None: it is not paused."""
    pause_reason: str | None = None

    @property
    def unclaimable(self) -> int:
        """Rows that no claim can take, as far as the owners have found out. They count as unclaimed, and as due."""
        return max((owner.unclaimable for owner in self.owners), default=0)

    @property
    def left(self) -> int:
        """Jobs that are still to be done: unclaimed and claimed."""
        return self.unclaimed + self.claimed


@dataclass(frozen=True)
class Retries:
    """The jobs that failed, or are suspects, and wait for their next attempt."""

    jobs: int
    next_in: float | None
    """Seconds until the first of them is due; None where none waits."""
    due: int = 0
    """Such jobs that do not wait any more: their next attempt may begin."""


def read_retries(
    connection: sa.Connection, roles: ColumnRoles, now: sa.ColumnElement[Any], where: Sequence[sa.ColumnElement[bool]]
) -> Retries:
    """The retries in a queue's table, or in its side-car, that match these predicates. Without `run_at` none waits."""
    if roles.run_at is None:
        return Retries(0, None)
    row = connection.execute(count.retries(roles, now, *where)).one()
    seconds = None if row.next is None else max(0.0, (_aware(row.next) - _aware(row.now)).total_seconds())
    return Retries(row.jobs, seconds, row.due)


def read_stats(
    connection: sa.Connection,
    backend: Backend,
    of_queue: Sequence[sa.ColumnElement[bool]],
    now: sa.ColumnElement[Any],
) -> Stats:
    """The stats of a queue's table, by three statements or a few more. `of_queue`: its predicate.

    Raises ClaimsDiffer if it would not see the claims.
    """
    rows = job_rows(backend, now)
    known, others = _sorted(row for counts in rows.counts(of_queue) for row in connection.execute(counts))
    check_claims(connection, backend, only_reads=True)
    jobs = {state: sum(row.jobs for row in known[state]) for state in STATES}
    owners, held = owners_of(connection, backend, rows)
    paused, reason = read_pause(connection, backend)
    mine = sum(row.mine for row in known[UNCLAIMED])
    return Stats(
        unclaimed=mine,
        claimed=jobs[CLAIMED],
        done=jobs[DONE],
        dead=jobs[DEAD],
        oldest=_oldest(known[UNCLAIMED]),
        due=sum(row.due for row in known[UNCLAIMED]),
        owners=owners,
        strangers={owner: jobs for owner, jobs in held.items() if owner < FIRST_OWNER},
        others=dict(others.most_common()),
        not_in_queue=jobs[UNCLAIMED] - mine,
        ownerless=_ownerless(connection, backend) if jobs[CLAIMED] else 0,
        paused=paused,
        pause_reason=reason,
    )


def read_pause(connection: sa.Connection, backend: Backend) -> tuple[float | None, str | None]:
    """For how many seconds the queue has been paused, and why. A transaction as a hold needs no table of queues."""
    try:
        with savepoint(connection):
            row = connection.execute(pause.read(backend.queues, backend.roles.claims)).first()
    except sa.exc.DBAPIError:
        if backend.by_lease:
            raise
        return None, None
    return (None, None) if row is None else (_since(row.paused, row.now), row.reason)


def _sorted(rows: Iterable[Any]) -> tuple[defaultdict[str, list[Any]], Counter[Any]]:
    """The number of rows in each state, and the number of rows with each value that means no state."""
    known: defaultdict[str, list[Any]] = defaultdict(list)
    others: Counter[Any] = Counter()
    for row in rows:
        if row.claimjobs_state is not None:
            known[row.claimjobs_state].append(row)
        elif row.jobs:  # a table without columns for a state has one group, which may be empty
            others[row[0]] += row.jobs
    return known, others


def _oldest(rows: Sequence[Any]) -> float | None:
    """How long the first run_at that has come is past."""
    ages = [(_aware(row.now) - _aware(row.oldest)).total_seconds() for row in rows if row.oldest is not None]
    return max((seconds for seconds in ages if seconds >= 0), default=None)


def owners_of(
    connection: sa.Connection, backend: Backend, jobs: JobRows
) -> tuple[tuple[OwnerStats, ...], Mapping[int, int]]:
    """The owners of a queue, and how many jobs each owner holds, also one of another program. An open transaction has
    no owner.
    """
    if not backend.by_lease:
        return (), {}
    held = {row.owner_id: row.jobs for row in connection.execute(jobs.by_owner) if row.owner_id is not None}
    owners = read_owners(connection, backend)
    dead = dead_among(owners, connection, backend)
    return tuple(_owner(seen, held.get(seen.id, 0), dead=seen in dead) for seen in owners), held


def _ownerless(connection: sa.Connection, backend: Backend) -> int:
    if backend.roles.owner_id is None:
        return 0
    return int(connection.execute(count.ownerless(backend.roles)).scalar_one())


def _owner(seen: OwnerState, jobs: int, *, dead: bool) -> OwnerStats:
    lock = "none" if seen.server_since is None else "free" if seen.holder is None else "held"
    return OwnerStats(
        id=seen.id,
        host=seen.host,
        pid=seen.pid,
        age=_since(seen.started, seen.now),
        silence=_since(seen.beat, seen.now),
        lease=seen.lease,
        lock=lock,
        dead=dead,
        asleep=None if seen.asleep is None else _since(seen.asleep, seen.now),
        jobs=jobs,
        unclaimable=seen.unclaimable or 0,
    )


def _since(instant: datetime, now: datetime) -> float:
    """Seconds; 0 for what was written after the transaction that reads it had begun: on Postgres that is its `now`."""
    return max(0.0, (_aware(now) - _aware(instant)).total_seconds())


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)

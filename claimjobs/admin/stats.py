"""Stats: the jobs of a queue by status, and its owners."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from claimjobs.admin.pause import read_pause
from claimjobs.database.clock import age_at
from claimjobs.lease.registry import check_claims, dead_among, read_owners
from claimjobs.statements import stored_jobs
from claimjobs.statements.job_rows import JobRows, job_rows
from claimjobs.statements.owners import claimed_by_nobody, of_other_tables
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, STATES, UNCLAIMED, JobCounts
from claimjobs.table.definitions import FIRST_OWNER


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
class Stats(JobCounts):
    """Counts of jobs by status, and the owners."""

    done: int
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
    """Claimed jobs by their `owner_id`, if that is another program's, or claims from another table by its row, as after
    a rename of this one. Consumers do not reclaim them."""

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


def read_stats(
    connection: sa.Connection, backend: Backend, of_queue: Sequence[sa.ColumnElement[bool]], now: sa.ColumnElement[Any]
) -> Stats:
    """The stats of a queue's table, by three statements or a few more. `of_queue`: its predicate.

    Raises ClaimsDiffer if it would not see the claims.
    """
    rows, roles = job_rows(backend, now), backend.roles
    known: defaultdict[str, list[Any]] = defaultdict(list)
    others: Counter[Any] = Counter()
    for counts in rows.counts(of_queue):
        for row in connection.execute(counts):
            if row.claimjobs_state is not None:
                known[row.claimjobs_state].append(row)
            elif row.jobs:  # a table without columns for a state has one group, which may be empty
                others[row[0]] += row.jobs
    check_claims(connection, backend, only_reads=True)

    jobs = {state: sum(row.jobs for row in known[state]) for state in STATES}
    mine = sum(row.mine for row in known[UNCLAIMED])
    owners, held = owners_of(connection, backend, rows)
    paused, reason = read_pause(connection, backend)
    elsewhere: Sequence[int] = ()
    if held.keys() - {owner.id for owner in owners or ()}:
        elsewhere = connection.scalars(of_other_tables(backend.owners, roles.recorded_as)).all()
    ownerless = 0
    if jobs[CLAIMED] and roles.owner_id is not None:
        ownerless = connection.execute(stored_jobs.count(roles, (claimed_by_nobody(roles),))).scalar_one()
    return Stats(
        **{**jobs, UNCLAIMED: mine},
        oldest=oldest_of(known[UNCLAIMED]),
        due=sum(row.due for row in known[UNCLAIMED]),
        owners=owners or (),
        strangers={owner: jobs for owner, jobs in held.items() if owner < FIRST_OWNER or owner in elsewhere},
        others=dict(others.most_common()),
        not_in_queue=jobs[UNCLAIMED] - mine,
        ownerless=ownerless,
        paused=paused,
        pause_reason=reason,
    )


def oldest_of(rows: Iterable[Any]) -> float | None:
    """How long the first run_at of the due jobs (`oldest`) of these rows is past."""
    return max((age_at(row.now, row.oldest) for row in rows if row.oldest is not None), default=None)


def owners_of(
    connection: sa.Connection, backend: Backend, jobs: JobRows | None = None
) -> tuple[tuple[OwnerStats, ...] | None, Mapping[int, int]]:
    """The owners of a queue (None: open transactions have no owners), and how many of these jobs each owner holds, also
    one of another program. Without `jobs` they are not counted.
    """
    if not backend.by_lease:
        return None, {}
    counts = () if jobs is None else connection.execute(jobs.by_owner)
    held = {row.owner_id: row.jobs for row in counts if row.owner_id is not None}
    owners = read_owners(connection, backend)
    dead = dead_among(owners, connection, backend)
    found = tuple(
        OwnerStats(
            id=seen.id,
            host=seen.host,
            pid=seen.pid,
            age=age_at(seen.now, seen.started),
            silence=age_at(seen.now, seen.beat),
            lease=seen.lease,
            lock="none" if seen.server_since is None else "free" if seen.holder is None else "held",
            dead=seen in dead,
            asleep=None if seen.asleep is None else age_at(seen.now, seen.asleep),
            jobs=held.get(seen.id, 0),
            unclaimable=seen.unclaimable or 0,
        )
        for seen in owners
    )
    return found, held

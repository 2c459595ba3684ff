"""What a queue holds, read from the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.census import Seen, dead_among, look
from claimjobs.columns import CLAIMED, DEAD, DONE, STATES, UNCLAIMED
from claimjobs.statements import count
from claimjobs.statements.side_car import Pair, waiting


@dataclass(frozen=True)
class OwnerStats:
    """One owner, and what it holds."""

    id: int
    host: str
    pid: int
    age: float
    """Seconds since it registered."""
    silence: float
    """Seconds since its last sign of life."""
    lease: float
    """Seconds of silence after which it is dead."""
    lock: str
    """`held`: its session lock tells at once when it dies; `free`: that is gone; `none`: the lease alone tells."""
    dead: bool
    """Whether its jobs are about to be handed back."""
    jobs: int


@dataclass(frozen=True)
class Stats:
    """Counts of jobs by status, and who holds them."""

    unclaimed: int
    claimed: int
    done: int
    dead: int
    oldest: float | None
    """Seconds that the longest-waiting unclaimed job has been due; None where none is, or no `run_at` tells."""
    owners: tuple[OwnerStats, ...]

    @property
    def left(self) -> int:
        """Jobs that are still to be done: unclaimed and claimed."""
        return self.unclaimed + self.claimed


def read(connection: sa.Connection, backend: Backend, now: sa.ColumnElement[Any]) -> Stats:
    """The statistics of a queue's table, in three statements, or four where an owner may be dead."""
    roles = backend.roles
    told = len(roles.state.told_by)
    counted = {roles.state.named(row[:told]): row for row in connection.execute(count.by_state(roles, now))}
    if backend.apart is not None:  # most of its unclaimed jobs have no row there; and some rows have no job any more
        pair = Pair(backend.apart, roles, backend.dialect, now)
        counted[UNCLAIMED] = connection.execute(waiting(pair)).one()
    counts = {state: getattr(counted.get(state), "jobs", 0) for state in STATES}
    return Stats(
        unclaimed=counts[UNCLAIMED],
        claimed=counts[CLAIMED],
        done=counts[DONE],
        dead=counts[DEAD],
        oldest=_age(counted.get(UNCLAIMED)),
        owners=_owners(connection, backend) if backend.by_lease else (),
    )


def _age(row: Any) -> float | None:
    if row is None or row.oldest is None:
        return None
    return max(0.0, (_aware(row.now) - _aware(row.oldest)).total_seconds())


def _owners(connection: sa.Connection, backend: Backend) -> tuple[OwnerStats, ...]:
    held = {row.owner_id: row.jobs for row in connection.execute(count.by_owner(backend.roles))}
    owners = look(connection, backend)
    dead = dead_among(owners, connection, backend)
    return tuple(_owner(seen, held.get(seen.id, 0), dead=seen in dead) for seen in owners)


def _owner(seen: Seen, jobs: int, *, dead: bool) -> OwnerStats:
    age = (seen.now - seen.started).total_seconds()
    lock = "none" if seen.server_since is None else "free" if seen.session is None else "held"
    return OwnerStats(
        id=seen.id,
        host=seen.host,
        pid=seen.pid,
        age=age,
        silence=seen.silence,
        lease=seen.lease,
        lock=lock,
        dead=dead,
        jobs=jobs,
    )


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)

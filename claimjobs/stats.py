"""What a queue holds, read from the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.roles import Roles
from claimjobs.schema import CLAIMED, DEAD, DONE, STATES, UNCLAIMED
from claimjobs.statements import count, owners


@dataclass(frozen=True)
class OwnerStats:
    """One owner, and what it holds."""

    id: int
    host: str
    pid: int
    age: float
    """Seconds since it registered."""
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


def read(connection: sa.Connection, roles: Roles, owner_table: sa.Table, now: sa.ColumnElement[Any]) -> Stats:
    """The statistics of a queue's table, in two or three statements."""
    by_status = {row.status: row for row in connection.execute(count.by_status(roles, now))}
    counts = {status: getattr(by_status.get(status), "jobs", 0) for status in STATES}
    return Stats(
        unclaimed=counts[UNCLAIMED],
        claimed=counts[CLAIMED],
        done=counts[DONE],
        dead=counts[DEAD],
        oldest=_age(by_status.get(UNCLAIMED)),
        owners=_owners(connection, roles, owner_table, now),
    )


def _age(row: Any) -> float | None:
    if row is None or row.oldest is None:
        return None
    return max(0.0, _seconds(row.now, row.oldest))


def _owners(
    connection: sa.Connection, roles: Roles, owner_table: sa.Table, now: sa.ColumnElement[Any]
) -> tuple[OwnerStats, ...]:
    held = {row.owner_id: row.jobs for row in connection.execute(count.by_owner(roles))}
    rows = connection.execute(owners.everyone(owner_table, now), {"claims": roles.name})
    return tuple(
        OwnerStats(row.id, row.host, row.pid, _seconds(row.now, row.started), held.get(row.id, 0)) for row in rows
    )


def _seconds(later: datetime, earlier: datetime) -> float:
    return (_aware(later) - _aware(earlier)).total_seconds()


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)

"""Backlog: how much work waits, by statements that read at most so many rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.admin.stats import read_pause
from claimjobs.database.clock import in_seconds
from claimjobs.lease.registry import check_claims
from claimjobs.statements import count, stored_jobs
from claimjobs.statements.job_rows import job_rows
from claimjobs.table.backend import Backend
from claimjobs.table.columns import CLAIMED, DEAD

LIMIT: Final = 10_000
"""Up to how many jobs are counted in each state."""


@dataclass(frozen=True)
class Backlog:
    """Jobs and owners of a queue. A number of jobs that is equal to `limit` means: so many or more.

    Unclaimed jobs are those that meet the queue's predicate. Claimed and dead ones are all of the table, because a row
    may not meet it any more.
    """

    limit: int
    unclaimed: int
    due: int
    """Of the unclaimed jobs that were counted: those that may be claimed now."""
    oldest: float | None
    """Seconds for which the oldest of these has been due; None where none is, or no `run_at` tells."""
    retrying: int
    """Of the unclaimed jobs that were counted: those that failed before, or are suspects."""
    claimed: int
    dead: int
    owners: dict[str, int]
    """How many owners are `awake`, `asleep` and `dead`, by their leases. Empty with `hold="transaction"`."""
    paused: bool
    """Whether the queue is paused."""


def read_backlog(
    connection: sa.Connection,
    backend: Backend,
    order: Sequence[sa.ColumnElement[Any]],
    of_queue: Sequence[sa.ColumnElement[bool]],
    *,
    now: sa.ColumnElement[Any],
    limit: int,
) -> Backlog:
    """The backlog, by some short statements. `order`: that of the queue, which its claim index has. `of_queue`: its
    predicate.

    With a side-car a dead job whose row was deleted is not counted, but read. Raises ClaimsDiffer.
    """
    check_claims(connection, backend, only_reads=True)
    roles, upper = backend.roles, {"claimjobs_limit": limit}
    source, rows = backend.source, job_rows(backend, now)
    ripe = rows.claimable(source.ripe(now))
    mine = sa.and_(rows.unclaimed, *of_queue)
    waiting = connection.execute(count.first_waiting(source, mine, order, now, ripe=ripe), upper).one()
    failed = stored_jobs.count_failed(roles, rows.unclaimed_among(of_queue), rows.order(order))

    return Backlog(
        limit=limit,
        unclaimed=waiting.jobs,
        due=waiting.due,
        oldest=_age(waiting),
        retrying=int(connection.execute(failed, upper).scalar_one()) if roles.failure_counts else 0,
        claimed=min(limit, connection.scalar(rows.up_to(CLAIMED, order), upper)),
        dead=connection.scalar(rows.up_to(DEAD, order), upper),
        owners=_owners(connection, backend) if backend.by_lease else {},
        paused=read_pause(connection, backend)[0] is not None,
    )


def _age(waiting: Any) -> float | None:
    """None if the first run_at is still to come: then only jobs without one are due."""
    if waiting.oldest is None or not waiting.due:
        return None
    seconds = in_seconds(waiting.now) - in_seconds(waiting.oldest)
    return seconds if seconds >= 0 else None


def _owners(connection: sa.Connection, backend: Backend) -> dict[str, int]:
    lives = count.owners_by_life(backend.owners, backend.dialect)
    return dict(connection.execute(lives, {"claims": backend.roles.claims}).mappings().one())

"""Counts of jobs by state and by owner, and how long they have waited."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.statements.owners import claimed_by_nobody
from claimjobs.table.columns import CLAIMED, UNCLAIMED
from claimjobs.table.roles import Roles


def by_state(roles: Roles, now: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """One row for each state: the columns that distinguish it, `jobs`, `oldest` (the first run_at, if any), `now`."""
    oldest = sa.null() if roles.run_at is None else sa.func.min(roles.run_at)
    counts: tuple[Any, ...] = (sa.func.count().label("jobs"), oldest.label("oldest"), now.label("now"))
    state = roles.state.distinguishing_columns
    return sa.select(*state, *counts).select_from(roles.table).group_by(*state)


def retries(roles: Roles, now: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """One row: `jobs` (that failed and wait for their next attempt), `next` (their earliest run_at), `now`."""
    run_at = roles.need("run_at", "waiting for a retry")
    failed = [column > 0 for column in (roles.attempts, roles.suspect) if column is not None]
    wait = sa.select(sa.func.count().label("jobs"), sa.func.min(run_at).label("next"), now.label("now"))
    return wait.where(roles.state.is_(UNCLAIMED), sa.or_(sa.false(), *failed), *where)


def by_owner(roles: Roles) -> sa.Select[Any]:
    """One row for each owner that holds jobs: `owner_id`, `jobs`."""
    owner = roles.need("owner_id", "counting what owners hold")
    columns: tuple[Any, ...] = (owner.label("owner_id"), sa.func.count().label("jobs"))
    return sa.select(*columns).where(roles.state.is_(CLAIMED)).group_by(owner)


def ownerless(roles: Roles) -> sa.Select[Any]:
    """How many rows are claimed without an owner."""
    return sa.select(sa.func.count()).select_from(roles.table).where(claimed_by_nobody(roles))

"""How many jobs there are, of what kind, and how long they have waited."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.roles import Roles
from claimjobs.schema import CLAIMED


def by_status(roles: Roles, now: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """One row a status: `status`, `jobs`, `oldest` (the earliest run_at, if the table has one) and `now`."""
    oldest = sa.null() if roles.run_at is None else sa.func.min(roles.run_at)
    columns: tuple[Any, ...] = (roles.status.label("status"), sa.func.count().label("jobs"), oldest.label("oldest"))
    return sa.select(*columns, now.label("now")).group_by(roles.status)


def by_owner(roles: Roles) -> sa.Select[Any]:
    """One row an owner that holds something: `owner_id`, `jobs`."""
    columns: tuple[Any, ...] = (roles.owner_id.label("owner_id"), sa.func.count().label("jobs"))
    return sa.select(*columns).where(roles.status == CLAIMED).group_by(roles.owner_id)


def rows(table: sa.Table) -> sa.Select[Any]:
    """How many rows a table has."""
    return sa.select(sa.func.count()).select_from(table)


def owners(table: sa.Table) -> sa.Select[Any]:
    """How many owners are registered for jobs of the table `claims`."""
    return rows(table).where(table.c.claims == sa.bindparam("claims", type_=sa.String))

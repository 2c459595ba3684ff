"""Dead jobs: retry and drop them. A write changes only jobs that are still dead."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.table.columns import DEAD, DONE, UNCLAIMED
from claimjobs.table.roles import ColumnRoles


def retry_dead(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any]) -> sa.Update:
    """Make those of the jobs `keys` that are dead unclaimed, as if they had never failed. Their last error stays."""
    date = roles.owner_date if roles.owner_date is not None and roles.owner_date.nullable else None
    fresh = {date: None, roles.run_at: now, roles.attempts: 0, roles.suspect: 0}
    values = {column: value for column, value in fresh.items() if column is not None}
    update = sa.update(roles.table).values({**roles.state.becomes(UNCLAIMED), **values})
    return dialect.restrict_to_keys(update.where(roles.state.is_(DEAD)), roles.key, roles.key_index)


def drop_dead(roles: ColumnRoles, dialect: Dialect) -> sa.Delete:
    """Delete those of the jobs `keys` that are dead."""
    delete = dialect.delete(roles.table).where(roles.state.is_(DEAD))
    return dialect.restrict_to_keys(delete, roles.key, roles.key_index)


def call_done(claims: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any]) -> sa.Update:
    """Make those of the jobs `keys` that are dead done, in a side-car. Their last error stays.

    Without an entry there a row of the user's table would be a new job.
    """
    values = {**claims.state.becomes(DONE), claims.need("owner_date", "dropping a dead job"): now}
    update = sa.update(claims.table).values(values).where(claims.state.is_(DEAD))
    return dialect.restrict_to_keys(update, claims.key, claims.key_index)

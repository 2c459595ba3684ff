"""The mark: locked jobs become the owner's."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.owners import alive
from claimjobs.table.columns import CLAIMED
from claimjobs.table.roles import ColumnRoles


def mark(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any], owners: sa.Table) -> sa.Update:
    """Mark the jobs `keys`, which this transaction has locked, as claimed by `me`; none if `me` was declared dead."""
    update = sa.update(roles.table).where(alive(owners)).values(ownership(roles, now))
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


def ownership(roles: ColumnRoles, now: sa.ColumnElement[Any]) -> dict[Any, Any]:
    """The values that a claim writes into a job."""
    values = roles.state.becomes(CLAIMED, sa.bindparam("claimjobs_me", type_=sa.Integer))
    if roles.owner_date is not None:
        values[roles.owner_date] = now
    return values

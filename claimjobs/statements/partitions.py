"""Old partitions: whether all rows of one are done and old. It is selected from without the table around it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.table.columns import DONE
from claimjobs.table.roles import ColumnRoles


def count_rows(part: sa.TableClause, roles: ColumnRoles, until: datetime) -> sa.Select[Any]:
    """How many rows a partition has, how many of them are done, and how many since the instant `until` or longer."""
    status, since = _column(roles.need("status", "knowing what is done")), _column(roles.need("owner_date", "age"))
    is_done = status == roles.state.values[DONE]
    is_old = sa.and_(is_done, since <= until)
    counts: list[Any] = [sa.func.count(), *(sa.func.count(sa.case((one, 1))) for one in (is_done, is_old))]
    return sa.select(*counts).select_from(part)


def one_not_done(part: sa.TableClause, roles: ColumnRoles) -> sa.Select[Any]:
    """A row for a partition that has a job that is not done. In the order of the status the claim index finds it."""
    status = _column(roles.need("status", "knowing what is done"))
    is_other = status.in_([value for state, value in roles.state.values.items() if state != DONE])
    return sa.select(sa.literal(1)).select_from(part).where(is_other).order_by(status).limit(1)


def last_key(part: sa.TableClause, key: Sequence[sa.Column[Any]]) -> sa.Select[Any]:
    """The last row of a partition in the order of the key."""
    columns = [_column(column) for column in key]
    return sa.select(*columns).select_from(part).order_by(*(column.desc() for column in columns)).limit(1)


def _column(column: sa.Column[Any]) -> sa.ColumnClause[Any]:
    return sa.column(column.name, column.type)

"""Some rows of a table, for `explain`: the keys of a few, their states, and an owner."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.find import LIMIT
from claimjobs.statements.lock import free_ones
from claimjobs.table.roles import ColumnRoles


def keys(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """The keys of `limit` rows, as far as the driver can read them."""
    return sa.select(*roles.key).where(*dialect.readable(roles.key)).limit(LIMIT)


def states(roles: ColumnRoles, status: sa.Column[Any], limit: int) -> sa.Select[Any]:
    """The values of the status of the first `limit` rows, once each: `value`, `state`; no state: it means none."""
    first = sa.select(status.label("value"), roles.state.name.label("state")).limit(limit).subquery()
    return sa.select(first.c.value, first.c.state).distinct()


def first_with(column: sa.Column[Any], value: Any, *, among: int) -> sa.Select[Any]:
    """1 if one of the first `among` rows has this value; else no row."""
    first = sa.select(column.label("value")).limit(among).subquery()
    return sa.select(sa.literal_column("1")).where(first.c.value == value).limit(1)


def locked(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """Lock those of the rows `keys` that nobody else has locked, as a claim does: their keys."""
    return free_ones(dialect.restrict_to_keys(sa.select(*roles.key), roles.key, roles.key_index), roles)


def some_owner(owners: sa.Table) -> sa.Select[Any]:
    """The id of an owner that was not declared dead; NULL: there is none."""
    return sa.select(sa.func.min(owners.c.id)).where(owners.c.died.is_(None))

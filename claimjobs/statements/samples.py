"""Some rows of a table, for `explain`: their keys, an owner, and locks on them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.claim import skip_locked
from claimjobs.table.roles import ColumnRoles


def keys(roles: ColumnRoles, dialect: Dialect, limit: int) -> sa.Select[Any]:
    """The keys of so many rows, as far as the driver can read them."""
    return sa.select(*roles.key).where(*dialect.readable(roles.key)).limit(limit)


def lock(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """Lock those of the rows `keys` that nobody else has locked, as a claim does: their keys."""
    return skip_locked(dialect.restrict_to_keys(sa.select(*roles.key), roles.key, roles.key_index), roles)


def lock_none(roles: ColumnRoles) -> sa.Select[Any]:
    """Lock no row, which needs the right to lock rows."""
    return sa.select(*roles.key).where(sa.false()).with_for_update()


def living(owners: sa.Table) -> sa.Select[Any]:
    """The id of an owner that was not declared dead; NULL: there is none."""
    return sa.select(sa.func.min(owners.c.id)).where(owners.c.died.is_(None))


def register_none(owners: sa.Table) -> sa.Insert:
    """Insert no owner, with each column, which needs the rights to do so."""
    columns = owners.columns
    return sa.insert(owners).from_select(columns.keys(), sa.select(*columns).where(sa.false()))

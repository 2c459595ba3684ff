"""Backend: what a queue knows of its database once it has looked at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.connect import connected, dialect_for
from claimjobs.dialects import Dialect
from claimjobs.errors import ColumnMissing, OwnersOutdated
from claimjobs.roles import Roles, resolve, roles_of
from claimjobs.schema import owner_table


@dataclass(frozen=True)
class Backend:
    """A server's capabilities, the roles of the table's columns, and the table of owners."""

    dialect: Dialect
    roles: Roles
    owners: sa.Table


def look_at(engine: sa.Engine, table: str | sa.Table | type[Any], dialect: Dialect | None) -> Backend:
    """Look at the server and the tables; `dialect` overrides what the server is found to be.

    Raises ConnectionFailed, ServerTooOld, TableMissing, ColumnMissing, NoPrimaryKey or OwnersOutdated.
    """
    found = dialect_for(engine)
    with connected(engine) as connection:
        roles = roles_of(resolve(connection, table))
        owners = _owners(connection)
    return Backend(dialect or found, roles, owners)


def _owners(connection: sa.Connection) -> sa.Table:
    try:
        return resolve(connection, owner_table())
    except ColumnMissing as missing:
        raise OwnersOutdated(missing.table, missing.column) from None

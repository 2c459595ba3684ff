"""Backend: what a queue knows of its database once it has looked at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from claimjobs.columns import Columns
from claimjobs.connect import connected, dialect_for
from claimjobs.dialects import Dialect
from claimjobs.errors import ColumnMissing, OwnersOutdated
from claimjobs.roles import Roles, check_lease, key_index, roles_of
from claimjobs.schema import owner_table
from claimjobs.tables import collated, map_of, resolve

TableLike = str | sa.Table | type[Any]


@dataclass(frozen=True)
class Backend:
    """A server's capabilities, the roles of the table's columns, and the table of owners."""

    dialect: Dialect
    roles: Roles
    owners: sa.Table
    by_lease: bool = True
    """Whether claims are committed in the name of an owner."""


def look_at(
    engine: sa.Engine,
    table: TableLike,
    dialect: Dialect | None = None,
    *,
    columns: Columns | None = None,
    by_lease: bool = True,
) -> Backend:
    """Look at the server and the tables; `dialect` overrides what the server is found to be.

    `by_lease`: claims are committed in the name of an owner, so that there must be a column for it, and owners.
    An assignment takes neither: where rows are assigned, `leased` looks for both when a first job is claimed.
    Raises ConnectionFailed, ServerTooOld or UnfitTable.
    """
    found = dialect_for(engine)
    given = columns or map_of(table)
    with connected(engine) as connection:
        described = resolve(connection, table, given)
        described = collated(described, found.collations(connection, described))
        roles = roles_of(described, given)
        roles = replace(roles, key_index=key_index(connection, roles))
        backend = Backend(dialect or found, roles, owner_table(), by_lease=False)
        claims = by_lease and roles.assignee is None
        return leased(connection, backend, mapped=given is not None) if claims else backend


def leased(connection: sa.Connection, backend: Backend, *, mapped: bool = True) -> Backend:
    """The same for claims that are held by lease. Raises UnfitTable where the table cannot hold them."""
    check_lease(backend.roles, mapped=mapped)
    return replace(backend, owners=_owners(connection), by_lease=True)


def _owners(connection: sa.Connection) -> sa.Table:
    try:
        return resolve(connection, owner_table())
    except ColumnMissing as missing:
        raise OwnersOutdated(missing.table, missing.column) from None

"""Acceptance: which tables can be claimed from at all, found out before anything is claimed.

A claim is made of row locks, a key that finds its row again, and columns that may change. A table that lacks one of
these does jobs twice, or for ever, without an error: so it is refused at the first look.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import Inherited, KeyUnfit, NotClaimable, ReservedName, RoleComputed, RoleInKey
from claimjobs.table.roles import Roles

WRITTEN: Final = ("status", "owner_id", "owner_date", "run_at", "attempts", "last_error", "suspect", "assignee")
"""The roles whose columns claimjobs writes. `priority` is only read."""

RESERVED: Final = frozenset(
    f"claimjobs_{name}"
    for name in ("candidates", "group_size", "hears", "keys", "limit", "me", "meant", "size", "worker")
)
"""Parameters of our statements. SQLAlchemy takes one for the new value of a column that has the same name."""


def check_table(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> None:
    """Whether rows of this kind of table can be locked and changed. Raises NotClaimable, Inherited or ReservedName."""
    if refusal := dialect.table_rules.unclaimable(connection, table):
        raise NotClaimable(table.fullname, *refusal)
    if child := dialect.table_rules.child(connection, table):
        raise Inherited(table.fullname, child)
    taken = sorted(RESERVED & {column.key for column in table.columns})
    if taken:
        raise ReservedName(table.fullname, taken[0])


def check_key(connection: sa.Connection, dialect: Dialect, roles: Roles) -> None:
    """Whether a row is found again by the key that was read of it. Raises KeyUnfit.

    The type in the database counts, whatever a description in Python says.
    """
    found = _columns(connection, roles.table)
    for column in roles.key:
        type_ = found[column.name]["type"]
        if not dialect.table_rules.finds_again(type_):
            raise KeyUnfit(roles.name, column.name, _shown(type_, connection.dialect))


def check_roles(connection: sa.Connection, dialect: Dialect, roles: Roles) -> None:
    """Whether claimjobs can write the columns that it must, and a row stays the same row. Raises RoleInKey or
    RoleComputed."""
    found = _columns(connection, roles.table)
    places = dialect.table_rules.partition_columns(connection, roles.table)
    for role in WRITTEN:
        column = getattr(roles, role)
        if column is None:
            continue
        if column in roles.key:
            raise RoleInKey(roles.name, column.name, role, "key")
        if column.name in places:
            raise RoleInKey(roles.name, column.name, role, "partition key")
        if "computed" in found[column.name]:
            raise RoleComputed(roles.name, column.name, role)


def _columns(connection: sa.Connection, table: sa.Table) -> dict[str, Any]:
    found = sa.inspect(connection).get_columns(table.name, schema=table.schema)
    return {column["name"]: column for column in found}


def _shown(type_: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> str:
    """None: a type that SQLAlchemy does not know has no name here."""
    return "of an unknown type" if isinstance(type_, sa.types.NullType) else type_.compile(dialect=dialect)

"""Acceptance: checks whether a table can be claimed from, before anything is claimed.

A claim needs row locks, a key that finds its row again, and columns that may change. On a table that lacks one of
these, jobs would be done twice, or again and again, without an error. So such a table is refused.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import (
    Inherited,
    KeyUnfit,
    NoPrimaryKey,
    NotClaimable,
    OwnTable,
    ReservedName,
    RoleComputed,
    RoleInKey,
)
from claimjobs.options import SIDE_CAR
from claimjobs.table.definitions import MADE_BY, OWN_TABLES
from claimjobs.table.reflection import columns_in_database
from claimjobs.table.roles import ColumnRoles

WRITTEN: Final = ("status", "owner_id", "owner_date", "run_at", "attempts", "last_error", "suspect", "assignee")
"""The roles whose columns claimjobs writes. `priority` is only read."""

RESERVED: Final = frozenset(
    f"claimjobs_{name}"
    for name in ("candidates", "group_size", "hears", "keys", "limit", "me", "meant", "size", "worker")
)
"""Parameters of our statements. SQLAlchemy would write one into a column with the same name."""


def check_no_own(table: sa.Table) -> None:
    """Check that this is no table in which claimjobs keeps its own records. Raises OwnTable.

    A side-car is known by its name, its comment and a column that only tables of jobs have.
    """
    if table.name in OWN_TABLES:
        raise OwnTable(table.fullname)
    if table.name.endswith(SIDE_CAR) and MADE_BY in (table.comment or "") and "priority" not in table.c:
        raise OwnTable(table.fullname, is_side_car=True)


def check_table(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> None:
    """Check that rows of this table can be locked and changed. Raises NotClaimable, Inherited or ReservedName."""
    if refusal := dialect.table_rules.unclaimable(connection, table):
        raise NotClaimable(table.fullname, *refusal)
    if child := dialect.table_rules.child(connection, table):
        raise Inherited(table.fullname, child)
    taken = sorted(RESERVED & {column.key for column in table.columns})
    if taken:
        raise ReservedName(table.fullname, taken[0])


def check_hidden_key(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> None:
    """Check that a table without a primary key has no hidden one: it cannot get a second. Raises NoPrimaryKey."""
    if not table.primary_key.columns and (show := dialect.table_rules.hidden_key(connection, table)):
        raise NoPrimaryKey(table.fullname, show)


def check_key(connection: sa.Connection, dialect: Dialect, roles: ColumnRoles) -> None:
    """Check that a row is found again by its key as it is read. Raises KeyUnfit.

    The type in the database counts, not that of a description in Python. But a type of the user's must not convert
    values by SQL (`bind_expression`): keys are also sent within a document, where no SQL can be applied to each.
    """
    found = columns_in_database(connection, roles.table)
    for column in roles.key:
        type_ = found[column.name]["type"]
        if not dialect.table_rules.finds_again(type_):
            raise KeyUnfit(roles.name, column.name, _shown(type_, connection.dialect))
        if column.type._has_bind_expression or column.type._has_column_expression:
            raise KeyUnfit(roles.name, column.name, f"{column.type!r}, whose values are changed by SQL")


def check_roles(connection: sa.Connection, dialect: Dialect, roles: ColumnRoles) -> None:
    """Check that claimjobs can write its columns, and that a write does not change the row's key or partition.

    Raises RoleInKey, RoleComputed or KeyUnfit.
    """
    if any(getattr(roles, role) is not None for role in WRITTEN):
        changed = dialect.table_rules.changed_by_each_update(connection, roles.table)
        for name in (column.name for column in roles.key if column.name in changed):
            raise KeyUnfit(roles.name, name, f"written anew by each UPDATE ({changed[name]})")
    found = columns_in_database(connection, roles.table)
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


def _shown(type_: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> str:
    """The name of a type; SQLAlchemy does not know every type."""
    return "of an unknown type" if isinstance(type_, sa.types.NullType) else type_.compile(dialect=dialect)

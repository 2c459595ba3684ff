"""Acceptance: checks whether a table can be claimed from, before anything is claimed.

A claim needs row locks, a key that finds its row again, and columns that may change. On a table that lacks one of
these, jobs would be done twice, or again and again, without an error. So such a table is refused.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import (
    ColumnUnfit,
    KeyUnfit,
    NotClaimable,
    OwnTable,
    column_option,
    reserved_name,
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
    """Check that rows of this table can be locked and changed. Raises NotClaimable, KeyUnfit or ColumnUnfit."""
    if refusal := dialect.table_rules.unclaimable(connection, table):
        raise NotClaimable(table.fullname, *refusal)
    if child := dialect.table_rules.child(connection, table):
        raise KeyUnfit(
            f"table {child!r} inherits from table {table.fullname!r}, so that two of their rows can have the same key: "
            f"make {table.fullname!r} a partitioned table, or give each of its children a queue of its own"
        )
    taken = sorted(RESERVED & {column.key for column in table.columns})
    if taken:
        raise reserved_name(table.fullname, taken[0])


def check_hidden_key(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> None:
    """Check that a table without a primary key has no hidden one: it cannot get a second. Raises KeyUnfit."""
    if not table.primary_key.columns and (show := dialect.table_rules.hidden_key(connection, table)):
        raise KeyUnfit(f"table {table.fullname!r} has only a hidden primary key to name a job by: {show}")


def check_key(connection: sa.Connection, dialect: Dialect, roles: ColumnRoles) -> None:
    """Check that a row is found again by its key as it is read. Raises KeyUnfit.

    The type in the database counts, not that of a description in Python. But a type of the user's must not convert
    values by SQL (`bind_expression`): keys are also sent within a document, where no SQL can be applied to each.
    """
    found = columns_in_database(connection, roles.table)
    for column in roles.key:
        type_ = found[column.name]["type"]
        if not dialect.table_rules.finds_again(type_):
            raise _key_unfit(roles, column.name, _shown(type_, connection.dialect))
        if column.type._has_bind_expression or column.type._has_column_expression:
            raise _key_unfit(roles, column.name, f"{column.type!r}, whose values are changed by SQL")


def check_roles(connection: sa.Connection, dialect: Dialect, roles: ColumnRoles) -> None:
    """Check that claimjobs can write its columns, and that a write does not change the row's key or partition.

    Raises ColumnUnfit or KeyUnfit.
    """
    if any(getattr(roles, role) is not None for role in WRITTEN):
        changed = dialect.table_rules.changed_by_each_update(connection, roles.table)
        for name in (column.name for column in roles.key if column.name in changed):
            raise _key_unfit(roles, name, f"written anew by each UPDATE ({changed[name]})")
    found = columns_in_database(connection, roles.table)
    places = dialect.table_rules.partition_columns(connection, roles.table)
    for role in WRITTEN:
        column = getattr(roles, role)
        if column is None:
            continue
        what = f"column {column.name!r} of table {roles.name!r} is"
        other = f"another column, as in {column_option(role)}"
        if column in roles.key or column.name in places:
            where = "key" if column in roles.key else "partition key"
            raise ColumnUnfit(
                f"{what} part of its {where}, and as {role} each claim would change it: name {other}, or keep outcomes "
                "in a second table (side_car=True, --side-car)"
            )
        if "computed" in found[column.name]:
            raise ColumnUnfit(f"{what} a generated column, and as {role} claimjobs must write it: name {other}")


def _key_unfit(roles: ColumnRoles, column: str, type_: str) -> KeyUnfit:
    return KeyUnfit(
        f"column {column!r} of table {roles.name!r}, which is part of its key, is {type_}: a value that is read from "
        "such a column may differ from the stored one, so that a job would not be found again; name other columns "
        f"that are unique together, as in {column_option('key')}"
    )


def _shown(type_: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> str:
    """The name of a type; SQLAlchemy does not know every type."""
    return "of an unknown type" if isinstance(type_, sa.types.NullType) else type_.compile(dialect=dialect)

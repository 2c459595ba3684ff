"""The tables beside a user's table, described so that they can be made: the side-car, and the table of keys."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.inspector import inspector_of
from claimjobs.dialects import Dialect
from claimjobs.table import acceptance
from claimjobs.table.backend import source_roles
from claimjobs.table.columns import Columns
from claimjobs.table.ddl import check_side_car_name
from claimjobs.table.definitions import claims_table, shared_tables
from claimjobs.table.key_rows import columns_for, key_table
from claimjobs.table.reflection import TableLike, columns_in_database, map_of, resolve
from claimjobs.table.roles import ColumnRoles, roles_of


def side_car_tables(
    engine: sa.Engine, table: TableLike, side_car: str | bool = True, *, columns: Columns | None = None
) -> list[sa.Table]:
    """The tables that a queue with a side-car needs: the side-car, the owners and the queues.

    For `make`, `ddl` and so on. The user's table is inspected, but not among them. The columns of the side-car's key
    have the types and collations that they have in the database. Raises ConnectionFailed, TableMissing, NotClaimable,
    KeyUnfit if no unique index is over the key, or UnfitTable for the side-car's name.
    """
    dialect = dialect_for(engine)
    given = columns or map_of(table)
    with connected(engine) as connection:
        described = resolve(connection, table, given)
        acceptance.check_no_own(described)
        acceptance.check_table(connection, dialect, described)
        source = source_roles(connection, dialect, described, columns=given)
        key = _key(connection, source, dialect)
        full_name = dialect.table_rules.place(connection, described).full_name(described)
    name = check_side_car_name(dialect, full_name, side_car)
    claims = claims_table(name, key)
    return [claims, *shared_tables(claims.schema)]


def key_tables(
    engine: sa.Engine,
    table: TableLike,
    per_key: Sequence[str],
    *,
    side_car: str | bool = False,
    columns: Columns | None = None,
) -> list[sa.Table]:
    """The table of key rows that `per_key` needs, for `make` and `ddl`. The table of jobs must be there."""
    dialect = dialect_for(engine)
    given = columns or map_of(table)
    with connected(engine) as connection:
        described = resolve(connection, table, given)
        source = source_roles(connection, dialect, described, columns=given) if side_car else roles_of(described, given)
        place = dialect.table_rules.place(connection, described)
        names = [column.name for column in columns_for(connection, source, per_key)]
        key = _columns(connection, source, names, dialect)
    return [key_table(place.name, key, place.metadata)]


def _key(connection: sa.Connection, source: ColumnRoles, dialect: Dialect) -> list[sa.Column[Any]]:
    """The columns of the key as the database has them, not as a description in Python says."""
    return _columns(connection, source, [column.name for column in source.key], dialect)


def _columns(
    connection: sa.Connection, source: ColumnRoles, names: Sequence[str], dialect: Dialect
) -> list[sa.Column[Any]]:
    found = columns_in_database(connection, source.table)
    collations = _collations(connection, source.table)
    return [dialect.key_column(name, _same(found[name]["type"], collations.get(name))) for name in names]


def _same(type_: Any, collation: str | None) -> Any:
    same = copy.copy(type_)
    if collation is not None and isinstance(same, sa.String):
        same.collation = collation
    if hasattr(same, "create_type"):
        same.create_type = False  # the user's type exists already
    return same


def _collations(connection: sa.Connection, table: sa.Table) -> dict[str, str]:
    """The collation of each text column. Reflection returns it only if it is not the table's default."""
    columns = sa.table("columns", *map(sa.column, ("table_schema", "table_name")), schema="information_schema")
    schema = table.schema or inspector_of(connection).default_schema_name
    collations: Any = sa.select(sa.column("column_name").label("name"), sa.column("collation_name").label("collation"))
    rows = connection.execute(
        collations.select_from(columns).where(columns.c.table_schema == schema, columns.c.table_name == table.name)
    )
    return {row.name: row.collation for row in rows if row.collation is not None}

"""Finds the table that a user names, and checks that the database has it as described."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from claimjobs.database.inspector import inspector_of
from claimjobs.dialects import dialect_of
from claimjobs.dialects.types import Instant, WholeSecond
from claimjobs.errors import ColumnMissing, NotClaimable, TableMissing, UnfitTable
from claimjobs.table.columns import Columns
from claimjobs.table.definitions import DEMONSTRATION, MADE_BY

INSTANTS = {"owner_date": WholeSecond, "run_at": Instant}

# A column of such a type is not touched. One that needs a type that is known is refused with an error.
warnings.filterwarnings("ignore", "Did not recognize type", sa.exc.SAWarning, module=r"claimjobs\.")

MAP = "claimjobs"
"""The key of a `Table`'s `info` with its map; a mapped class has it as `__claimjobs__`."""


def resolve(connection: sa.Connection, table: str | sa.Table | type[Any], columns: Columns | None = None) -> sa.Table:
    """The table of a name, a `Table` or a mapped class. The database has it as described.

    Raises TableMissing or ColumnMissing.
    """
    if isinstance(table, str):
        return _reflect(connection, table, columns or Columns())
    described = table if isinstance(table, sa.Table) else mapped_table(table)
    there = _columns(connection, described.fullname)
    missing = [column.name for column in described.columns if column.name not in there]
    if missing:
        quote = connection.dialect.identifier_preparer.quote
        raise ColumnMissing(described.fullname, missing[0], "its description in Python", quote)
    return described


def collated(table: sa.Table, collations: Mapping[str, str]) -> sa.Table:
    """The table with the collations that its texts have in the database.

    A value must have the collation of the text that it is compared with, also if that is the table's default.
    """
    plain = [name for name in collations if name in table.c and not getattr(table.c[name].type, "collation", None)]
    texts = [name for name in plain if isinstance(table.c[name].type, sa.String)]
    if not texts:
        return table
    same = table.to_metadata(sa.MetaData(schema=table.schema))
    for name in texts:
        same.c[name].type = _with_collation(table.c[name].type, collations[name])
    return same


def _with_collation(type_: Any, collation: str) -> Any:
    changed = type_.copy()
    changed.collation = collation
    return changed


def map_of(table: str | sa.Table | type[Any]) -> Columns | None:
    """The map in a `Table` (`info={"claimjobs": Columns(...)}`) or a class (`__claimjobs__`)."""
    if isinstance(table, str):
        return None
    found = table.info.get(MAP) if isinstance(table, sa.Table) else getattr(table, "__claimjobs__", None)
    return found if isinstance(found, Columns) else None


def is_made_by_us(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the table's comment in the database says that claimjobs made it."""
    return MADE_BY in comment_in_database(connection, table)


def is_demonstrations(connection: sa.Connection, table: sa.Table) -> bool:
    """Whether claimjobs made this table for its demonstration."""
    return f"{DEMONSTRATION}, {MADE_BY}" in comment_in_database(connection, table)


def comment_in_database(connection: sa.Connection, table: sa.Table) -> str:
    """The table's comment in the database; empty: it has none."""
    with _readable(connection, table):
        return dialect_of(connection).table_rules.comment(inspector_of(connection), table) or ""


def _reflect(connection: sa.Connection, name: str, columns: Columns) -> sa.Table:
    _columns(connection, name)
    schema, _, bare = name.rpartition(".")
    inspector: Any = inspector_of(connection)
    table: sa.Table = sa.Table(bare, sa.MetaData(), schema=schema or None, autoload_with=inspector, resolve_fks=False)
    instants = {columns.names[role]: kind for role, kind in INSTANTS.items() if role in columns.names}
    for column in table.columns:
        # Columns of instants return aware datetimes, also for a type without a time zone.
        if isinstance(column.type, sa.DateTime) and column.name in instants:
            column.type = instants[column.name]()
    return table


def columns_in_database(connection: sa.Connection, table: sa.Table) -> dict[str, Any]:
    """The columns that a table has in the database, by their names, as SQLAlchemy reflects them."""
    with _readable(connection, table):
        found = inspector_of(connection).get_columns(table.name, schema=table.schema)
    return {column["name"]: column for column in found}


@contextmanager
def _readable(connection: sa.Connection, table: sa.Table) -> Iterator[None]:
    """Raises NotClaimable, with the column, for a table that SQLAlchemy cannot read: for example MySQL's VECTOR(3)."""
    try:
        yield
    except TypeError as error:
        column = dialect_of(connection).table_rules.unreadable_column(connection, table)
        what = "a column" if column is None else f"the column {column[0]!r} of type {column[1]}"
        step = "move it to a table of its own, or upgrade SQLAlchemy"
        raise NotClaimable(table.fullname, f"has {what}, which SQLAlchemy cannot read ({error})", step) from error


def _columns(connection: sa.Connection, name: str) -> set[str]:
    schema, _, bare = name.rpartition(".")
    try:
        return set(columns_in_database(connection, sa.Table(bare, sa.MetaData(), schema=schema or None)))
    except sa.exc.NoSuchTableError:
        raise TableMissing(name) from None
    except sa.exc.DBAPIError as error:
        dialect = dialect_of(connection)
        if dialect.errors.code(error) in dialect.errors.bad_name:
            raise TableMissing(name) from error
        raise


def mapped_table(mapped: type[Any]) -> sa.Table:
    """The table that a class is mapped to. Raises TypeError if it is mapped to none."""
    table = sa.inspect(mapped).local_table
    if not isinstance(table, sa.Table):
        raise TypeError(f"{mapped!r} is mapped to {table!r}, which is no table: give a class mapped to one")
    return table


def checked_table(found: Any, name: str) -> sa.Table | type[Any]:
    """`found`, if it is a Table or a mapped class. Raises UnfitTable, whose message calls it `name`."""
    if isinstance(found, sa.Table) or isinstance(getattr(found, "__table__", None), sa.Table):
        table: sa.Table | type[Any] = found
        return table
    raise UnfitTable(f"{name!r} is {type(found).__name__}: name a sqlalchemy.Table or a class mapped to one")

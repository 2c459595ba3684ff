"""The index that a claim reads: its columns, and whether an existing index serves as well."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import quoted_name

from claimjobs.dialects import dialect_of
from claimjobs.table.ddl import text
from claimjobs.table.roles import ColumnRoles, is_whole
from claimjobs.table.short_names import fitting

Part = tuple[str, bool]
"""A column's name, and whether it is descending."""


def claim_index(roles: ColumnRoles, order: Sequence[sa.ColumnElement[Any]]) -> sa.Index | None:
    """The index that phase 1 reads: it has all columns that find waiting jobs in their order.

    None if the key's own index does, and for an order by anything but columns.
    """
    state = [column for column in (roles.status, roles.owner_id) if column is not None][:1]
    rest = [column for column in (roles.run_at, roles.suspect) if column is not None]
    falling: dict[str, bool] = {}
    for by in (*state, *order, *rest):
        part = _part(by)
        if part is None:
            return None
        falling.setdefault(*part)
    return None if not state and tuple(order) == roles.key else _index(roles, falling)


def _part(by: sa.ColumnElement[Any]) -> Part | None:
    if isinstance(by, sa.Column):
        return by.name, False
    falls = isinstance(by, sa.UnaryExpression) and by.modifier is operators.desc_op
    return (by.element.name, True) if falls and isinstance(by.element, sa.Column) else None


def _index(roles: ColumnRoles, falling: Mapping[str, bool]) -> sa.Index:
    """An index over a copy of the table, so that a user's description does not get one more index."""
    columns = (sa.Column(column.name, column.type) for column in roles.table.columns)
    copy = sa.Table(roles.table.name, sa.MetaData(schema=roles.table.schema), *columns)
    parts = (copy.c[name].desc() if falls else copy.c[name] for name, falls in falling.items())
    return sa.Index(fitting(f"{copy.name}_claim"), *parts)


def indexes_of(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    """The indexes of a table in the database. `column_names` are all columns by which an index is sorted.

    Of an index that no statement can use there is only the name.
    """
    inspector, dialect = sa.inspect(connection), dialect_of(connection)
    found: list[Any] = [*inspector.get_indexes(table.name, schema=table.schema)]
    unused = dialect.table_rules.unused_indexes(connection, table)
    key: list[str] = []
    if dialect.indexes_end_in_the_key:
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    names = {index["name"] for index in found}
    found += [{"name": name, "column_names": []} for name in unused if name not in names]
    columns = [() if index["name"] in unused else (*index["column_names"], *key) for index in found]
    return [{**index, "column_names": list(dict.fromkeys(one))} for index, one in zip(found, columns, strict=True)]


def sweep_order(connection: sa.Connection, roles: ColumnRoles) -> Sequence[sa.Column[Any]]:
    """The order of sweeps, in which consumers claim if any order will do: the default order.

    Empty if there are no sweeps: the columns are not all whole numbers, between which a place can be drawn, or no
    index finds unclaimed jobs in this order. Then each claim would sort all of them.
    """
    order = roles.default_order
    if not all(isinstance(column.type, sa.Integer) for column in order):
        return ()
    index = claim_index(roles, order)
    if index is None:
        return order
    unordered = {column.name for column in (roles.run_at, roles.suspect) if column is not None}
    read = [name for name in index.columns.keys() if name not in unordered]  # noqa: SIM118 - no dict
    found = [other for other in indexes_of(connection, roles.table) if is_whole(other)]
    return order if holds(found, read) else ()


def covers(found: Sequence[Any], index: sa.Index, *, besides: str | None = "suspect") -> bool:
    """Whether there is an index with this name, or one that begins with its columns but for `besides`."""
    named = any(other["name"] == index.name for other in found)
    return named or holds(found, [column.name for column in index.columns if column.name != besides])


def holds(found: Sequence[Any], columns: Sequence[str]) -> bool:
    """Whether an index begins with these columns."""
    return any(other["column_names"][: len(columns)] == list(columns) for other in found)


class MissingIndex(NamedTuple):
    """A claim index that a table lacks."""

    effect: str
    """What claims do without it."""
    ddl: str
    """The statements that add it."""


def missing_index(
    connection: sa.Connection, roles: ColumnRoles, order: Sequence[sa.ColumnElement[Any]]
) -> MissingIndex | None:
    """The claim index, if the table has none with all columns of phase 1."""
    index, found = claim_index(roles, order), indexes_of(connection, roles.table)
    if index is None or holds(found, index.columns.keys()):
        return None
    besides = None if roles.suspect is None else roles.suspect.name
    if holds(found, [name for name in index.columns.keys() if name != besides]):  # noqa: SIM118 - no dict
        return MissingIndex("claims read rows that they do not take", renewed(index, found, connection))
    index.name = quoted_name(_free_name(roles, index, {other["name"] for other in found}), quote=None)
    return MissingIndex("claims have no index", renewed(index, found, connection))


def _free_name(roles: ColumnRoles, index: sa.Index, taken: Collection[str | None]) -> str:
    """A name that no index of a queue on this table with another order has: the usual one, if it is free."""
    columns = index.columns.keys()
    usual = str(index.name)
    longer = [fitting("_".join([roles.table.name, "claim", *some])) for some in (columns[:2][-1:], columns)]
    return next((name for name in (usual, *longer) if name not in taken), usual)


def renewed(index: sa.Index, found: Sequence[Any], bind: sa.Engine | sa.Connection) -> str:
    """The statements that make an index anew, whether the table has another one with its name or not."""
    create, drop = sa.schema.CreateIndex(index), sa.schema.DropIndex(index)
    named = any(other["name"] == index.name for other in found)
    return " ".join(text(statement, bind) for statement in ((drop, create) if named else (create,)))

"""The index that a claim reads: its columns, and whether an existing index serves as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from claimjobs.dialects import dialect_of
from claimjobs.table.ddl import text
from claimjobs.table.definitions import fitting
from claimjobs.table.predicates import column_of
from claimjobs.table.roles import ColumnRoles, is_partial


def claim_index(roles: ColumnRoles, order: Sequence[sa.ColumnElement[Any]]) -> sa.Index | None:
    """The index that phase 1 reads: it has all columns that find waiting jobs in their order.

    None if the key's own index does, and for an order by anything but columns.
    """
    state = [column for column in (roles.status, roles.owner_id) if column is not None][:1]
    if not state and tuple(order) == roles.key:
        return None
    falling: dict[str, bool] = {}
    for by in (*state, *order, *_behind(roles)):
        column, falls = column_of(by)
        if column is None:
            return None
        falling.setdefault(column.name, falls)
    # Over a copy of the table, so that a user's description does not get one more index.
    columns = (sa.Column(column.name, column.type) for column in roles.table.columns)
    copy = sa.Table(roles.table.name, sa.MetaData(schema=roles.table.schema), *columns)
    parts = (copy.c[name].desc() if falls else copy.c[name] for name, falls in falling.items())
    return sa.Index(fitting(f"{copy.name}_claim"), *parts)


def _behind(roles: ColumnRoles) -> list[sa.Column[Any]]:
    """The columns behind the order in the claim index: a claim leaves out rows by them without reading the rows."""
    return [column for column in (roles.run_at, roles.suspect) if column is not None]


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
    behind = {column.name for column in _behind(roles)}
    found = (each for each in indexes_of(connection, roles.table) if not is_partial(each))
    return order if holds(found, [column.name for column in index.columns if column.name not in behind]) else ()


def indexes_of(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    """The indexes of a table in the database. `column_names` are all columns by which an index is sorted.

    Of an index that no statement can use there is only the name.
    """
    inspector, dialect = sa.inspect(connection), dialect_of(connection)
    unused = dialect.table_rules.unused_indexes(connection, table)
    key: list[str] = []
    if dialect.indexes_end_in_the_key:
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    found: dict[Any, Any] = {name: {"name": name, "column_names": []} for name in unused}
    for index in inspector.get_indexes(table.name, schema=table.schema):
        if index["name"] not in found:
            found[index["name"]] = {**index, "column_names": list(dict.fromkeys((*index["column_names"], *key)))}
    return list(found.values())


def holds(found: Iterable[Any], columns: Sequence[str]) -> bool:
    """Whether an index begins with these columns."""
    return any(other["column_names"][: len(columns)] == list(columns) for other in found)


class MissingIndex(NamedTuple):
    """A claim index that a table lacks."""

    effect: str
    """What claims do without it."""
    statements: Sequence[str]
    """What adds it."""

    @property
    def ddl(self) -> str:
        """The statements, for a person."""
        return " ".join(self.statements)


def missing_index(
    bind: sa.Engine | sa.Connection,
    roles: ColumnRoles,
    order: Sequence[sa.ColumnElement[Any]],
    found: Sequence[Any],
) -> MissingIndex | None:
    """The claim index, if none of the indexes that were `found` (`indexes_of`) has all columns of phase 1."""
    index = claim_index(roles, order)
    if index is None:
        return None
    parts, taken = index.columns.keys(), {other["name"] for other in found}
    suspect = None if roles.suspect is None else roles.suspect.name
    if holds(found, parts):
        return None
    effect = "claims have no index"
    if holds(found, [name for name in parts if name != suspect]):
        effect = "claims read rows that they do not take"
    else:
        for more in ((), parts[:2][-1:], parts):  # a queue on this table with another order may have the usual name
            index.name = quoted_name(fitting("_".join((roles.table.name, "claim", *more))), quote=None)
            if index.name not in taken:
                break
    drop = [sa.schema.DropIndex(index)] if index.name in taken else []
    return MissingIndex(effect, [text(statement, bind) for statement in (*drop, sa.schema.CreateIndex(index))])

"""The index that a claim reads: its columns, and whether an existing index serves as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from claimjobs.dialects import dialect_of
from claimjobs.table.ddl import text
from claimjobs.table.definitions import fitting
from claimjobs.table.predicates import column_of
from claimjobs.table.roles import ColumnRoles


def claim_index(roles: ColumnRoles, order: Sequence[sa.ColumnElement[Any]]) -> sa.Index | None:
    """The index that phase 1 reads: it has all columns that find waiting jobs in their order.

    None if the key's own index does, and for an order by anything but columns.
    """
    parts = _parts(roles, order)
    if not parts:
        return None
    # Over a copy of the table, so that a user's description does not get one more index.
    columns = (sa.Column(column.name, column.type) for column in roles.table.columns)
    copy = sa.Table(roles.table.name, sa.MetaData(schema=roles.table.schema), *columns)
    sorted_by = (copy.c[name].desc() if falls else copy.c[name] for name, falls in parts.items())
    return sa.Index(fitting(f"{copy.name}_claim"), *sorted_by)


def _parts(roles: ColumnRoles, order: Sequence[sa.ColumnElement[Any]], *, whole: bool = True) -> dict[str, bool | None]:
    """The columns of the claim index, each with its direction as `holds` wants it. Empty: there is no such index.

    `whole`: also those behind the order, by which a claim leaves out rows without reading them.
    """
    state = [column for column in (roles.status, roles.owner_id) if column is not None][:1]
    if not state and tuple(order) == roles.key:
        return {}
    parts: dict[str, bool | None] = {column.name: None for column in state}
    for column, falls in map(column_of, order):
        if column is None:
            return {}
        parts.setdefault(column.name, falls)
    for behind in (roles.run_at, roles.suspect) if whole else ():
        if behind is not None:
            parts.setdefault(behind.name, None)
    return parts


def sweep_order(connection: sa.Connection, roles: ColumnRoles) -> Sequence[sa.Column[Any]]:
    """The order of sweeps, in which consumers claim if any order will do: the default order.

    Empty if there are no sweeps: the columns are not all whole numbers, between which a place can be drawn, or no
    index finds unclaimed jobs in this order. Then each claim would sort all of them.
    """
    order = roles.default_order
    if not all(isinstance(column.type, sa.Integer) for column in order):
        return ()
    parts = _parts(roles, order, whole=False)
    return order if not parts or holds(indexes_of(connection, roles.table), parts) else ()


def indexes_of(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    """The indexes of a table in the database. `column_names` are all columns by which an index is sorted, `falling`
    those of them that descend. None stands for what gives no order, or not that of a statement.

    Of an index that no statement can use there is only the name.
    """
    inspector, dialect = sa.inspect(connection), dialect_of(connection)
    unused = dialect.table_rules.unused_indexes(connection, table)
    falls = dialect.table_rules.unusual_parts(connection, table)
    key: list[str] = []
    if dialect.indexes_end_in_the_key:
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    found: dict[Any, Any] = {name: {"name": name, "column_names": []} for name in unused}
    for index in inspector.get_indexes(table.name, schema=table.schema):
        if (name := index["name"]) not in found:
            parts = dict.fromkeys((*index["column_names"], *key))
            sorted_by = [part if falls.get((name, part), True) else None for part in parts]
            falling = {part for part in sorted_by if (name, part) in falls}
            found[name] = {**index, "column_names": sorted_by, "falling": falling}
    return list(found.values())


def holds(found: Iterable[Any], wanted: Mapping[str, bool | None]) -> bool:
    """Whether an index begins with these columns, and gives their order when it is read from one end or the other:
    each column rises (False) or falls (True); None: that does not matter.
    """
    for index in found:
        if index["column_names"][: len(wanted)] == [*wanted]:
            turned = {falls != (name in index["falling"]) for name, falls in wanted.items() if falls is not None}
            if len(turned) < 2:
                return True
    return False


class MissingIndex(NamedTuple):
    """A claim index that a table lacks."""

    effect: str
    """What claims do without it; and why no statement adds it, if that is so, with the next step."""
    statements: Sequence[str]
    """What adds it."""

    @property
    def ddl(self) -> str:
        """The statements, for a person."""
        return " ".join(self.statements)


def missing_index(
    connection: sa.Connection, roles: ColumnRoles, order: Sequence[sa.ColumnElement[Any]]
) -> MissingIndex | None:
    """The claim index, if no index of the table has all columns of phase 1."""
    found = indexes_of(connection, roles.table)
    index, parts = claim_index(roles, order), _parts(roles, order)
    if index is None or holds(found, parts):
        return None
    taken = {other["name"] for other in found}
    suspect = None if roles.suspect is None else roles.suspect.name
    effect = "claims have no index"
    if holds(found, {name: falls for name, falls in parts.items() if name != suspect}):
        effect = "claims read rows that they do not take"
    else:
        for more in ((), [*parts][:2][-1:], parts):  # a queue on this table with another order may have the usual name
            index.name = quoted_name(fitting("_".join((roles.table.name, "claim", *more))), quote=None)
            if index.name not in taken:
                break
    if flaw := dialect_of(connection).table_rules.no_index(connection, roles.table, parts):
        return MissingIndex(f"{effect}, and {flaw}", [])
    drop = [sa.schema.DropIndex(index)] if index.name in taken else []
    return MissingIndex(effect, [text(statement, connection) for statement in (*drop, sa.schema.CreateIndex(index))])

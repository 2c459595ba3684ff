"""The index to claim by: which columns it has, and whether one that is there does as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql import operators

from claimjobs.dialects import DIALECTS
from claimjobs.table.roles import Roles

LONGEST: Final = 57
"""Characters of a table's name in that of its index: no database takes less than 63 bytes for it all."""
Part = tuple[str, bool]
"""A column's name, and whether it falls."""


def claim_index(roles: Roles, order: Sequence[sa.ColumnElement[Any]]) -> sa.Index | None:
    """What phase 1 reads: waiting jobs in their order, from the index alone.

    None where the key's own index is that already, and for an order by anything but columns.
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


def _index(roles: Roles, falling: Mapping[str, bool]) -> sa.Index:
    """Over a copy: the table may be the user's own description, which is not to be added to."""
    columns = (sa.Column(column.name, column.type) for column in roles.table.columns)
    copy = sa.Table(roles.table.name, sa.MetaData(schema=roles.table.schema), *columns)
    parts = (copy.c[name].desc() if falls else copy.c[name] for name, falls in falling.items())
    return sa.Index(f"{copy.name[:LONGEST]}_claim", *parts)


def indexes_of(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    """The indexes of a table in the database, each with all `column_names` that it is sorted by."""
    inspector = sa.inspect(connection)
    found = inspector.get_indexes(table.name, schema=table.schema)
    key: list[str] = []
    if DIALECTS[connection.dialect.name].indexes_end_in_the_key:
        key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    return [{**index, "column_names": list(dict.fromkeys((*index["column_names"], *key)))} for index in found]


def covers(found: Sequence[Any], index: sa.Index, *, besides: str | None = "suspect") -> bool:
    """Whether an index of this name is there, or one that holds what claims are ordered and narrowed by."""
    named = any(other["name"] == index.name for other in found)
    return named or holds(found, [column.name for column in index.columns if column.name != besides])


def holds(found: Sequence[Any], columns: Sequence[str]) -> bool:
    """Whether an index begins with these columns."""
    return any(other["column_names"][: len(columns)] == list(columns) for other in found)

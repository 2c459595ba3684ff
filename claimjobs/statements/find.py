"""Phase 1 of a claim, find: which rows are candidates, in which order. Every claim statement is built on this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql import operators

from claimjobs.dialects import Dialect
from claimjobs.table.roles import ColumnRoles

SUSPECT: Final = "claimjobs_suspect"
"""The last column of a candidate: the size of its group of suspects (see `group_size`)."""
PLACE: Final = "claimjobs_place"
"""The number of a job among the candidates, from 1."""
KEY: Final = "claimjobs_k{}"
"""A column of the key among the candidates. No user's table has such names. So a user's predicate, which is in the
same WHERE, may name its columns without the table."""
AFTER: Final = "claimjobs_after_{}"
"""The parameters of a place in the order, after which a claim begins."""

SIZE: Final = sa.bindparam("claimjobs_size", type_=sa.Integer)
"""How many jobs are wanted."""
LIMIT: Final = sa.bindparam("claimjobs_limit", type_=sa.Integer)
"""How many candidates, or rows of a page, are read."""

EXACT: Final = (sa.Integer, sa.String, sa.Numeric, sa.Date, sa.DateTime, sa.Uuid)
"""Types whose values can be read and then compared exactly with their column."""
INEXACT: Final = (sa.Enum, sa.Float)
"""Subtypes that cannot: MySQL orders an ENUM by number and compares it as text; a float is rounded."""


@dataclass(frozen=True)
class Selection:
    """What may be claimed, in which order, and after which place in the order (None: from its beginning)."""

    ready: sa.ColumnElement[bool]
    order: Sequence[sa.ColumnElement[Any]]
    after: sa.ColumnElement[bool] | None = None


@dataclass(frozen=True)
class KeysetOrder:
    """An order that a claim can enter anywhere: columns that are never NULL, all ascending or all descending."""

    columns: Sequence[sa.Column[Any]]
    falling: bool

    def after(self, selection: Selection, dialect: Dialect) -> Selection:
        """The selection after a place, which parameters give."""
        place = [sa.bindparam(AFTER.format(i), type_=column.type) for i, column in enumerate(self.columns)]
        return replace(selection, after=dialect.after_values(self.columns, place, falling=self.falling))

    def place(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the place of this row."""
        return {AFTER.format(i): row[column.name] for i, column in enumerate(self.columns)}

    def order_of(self, rows: sa.FromClause) -> list[sa.ColumnElement[Any]]:
        """The ORDER BY for other rows that have these columns."""
        columns = [rows.c[column.key] for column in self.columns]
        return [column.desc() if self.falling else column for column in columns]


def keyset_order_of(selection: Selection) -> KeysetOrder | None:
    """The order of a selection, if a claim can enter it anywhere."""
    steps = [_step(term) for term in selection.order]
    falls = {falling for _, falling in steps}
    columns = [column for column, _ in steps if column is not None]
    if len(falls) != 1 or len(columns) < len(steps) or any(column.nullable for column in columns):
        return None
    return KeysetOrder(tuple(dict.fromkeys(columns)), falls.pop())


def _step(term: sa.ColumnElement[Any]) -> tuple[sa.Column[Any] | None, bool]:
    """The column of a term of an ORDER BY (None if it is no column of an exact type), and whether it descends."""
    falling = isinstance(term, sa.UnaryExpression) and term.modifier is operators.desc_op
    column = term.element if isinstance(term, sa.UnaryExpression) else term
    exact = isinstance(column, sa.Column) and isinstance(column.type, EXACT) and not isinstance(column.type, INEXACT)
    return (column if exact else None), falling  # type: ignore[return-value]  # exact: a Column


def find(roles: ColumnRoles, selection: Selection) -> sa.Select[Any]:
    """The first `limit` jobs that are ready, in order: their keys, then the sizes of their groups of suspects."""
    return first(sa.select(*roles.key, group_size(roles).label(SUSPECT)), selection)


def group_size(roles: ColumnRoles) -> sa.ColumnElement[int]:
    """How many jobs were in the batch that failed as a whole with this one. 0: the job is no suspect."""
    return sa.literal(0, sa.Integer) if roles.suspect is None else counted(roles.suspect)


def first(rows: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
    """The first `limit` rows of a selection, in order."""
    return in_order(rows, selection).limit(LIMIT)


def in_order(rows: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
    """The rows of a selection, in order."""
    ready = rows.where(selection.ready) if selection.after is None else rows.where(selection.ready, selection.after)
    return ready.order_by(*selection.order)


def how_many(roles: ColumnRoles, selection: Selection) -> sa.Select[Any]:
    """How many rows `find` returns."""
    return sa.select(sa.func.count()).select_from(find(roles, selection).subquery("candidate"))


def numbered(roles: ColumnRoles, selection: Selection) -> sa.Select[Any]:
    """The rows of `find`, each with its number, under names that no table has."""
    found = find(roles, selection).subquery("first")
    keys = [found.c[column.key].label(KEY.format(i)) for i, column in enumerate(roles.key)]
    return sa.select(*keys, found.c[SUSPECT], sa.func.row_number().over().label(PLACE))


def same_key(roles: ColumnRoles, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """The predicate of a row of the table and its candidate."""
    return sa.and_(*(column == other.c[KEY.format(i)] for i, column in enumerate(roles.key)))


def counted(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """A counter; NULL in a user's column counts as 0."""
    return sa.func.coalesce(column, 0) if column.nullable else column

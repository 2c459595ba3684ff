"""Phase 1: which jobs could be claimed. Locks nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql import operators

from claimjobs.dialects import Dialect
from claimjobs.table.roles import Roles

SUSPECT: Final = "claimjobs_suspect"
"""The last column of a candidate: 0, or how many jobs it was in hand with when something went wrong."""
PLACE: Final = "claimjobs_place"
"""Where a job stood among the candidates, from 1."""
KEY: Final = "claimjobs_k{}"
"""A key column among the candidates. No user's table has these names: a predicate, which stands in the same
WHERE, may name its columns plainly."""
AFTER: Final = "claimjobs_after_{}"
"""The parameters of a place in the order, beyond which a look begins."""

EXACT: Final = (sa.Integer, sa.String, sa.Numeric, sa.Date, sa.DateTime, sa.Uuid)
"""What a value that was read says exactly, so that it can be compared with the column it came from."""
INEXACT: Final = (sa.Enum, sa.Float)
"""Those of them that do not: MySQL orders an ENUM by number and compares it as text; a float was rounded."""


@dataclass(frozen=True)
class Selection:
    """What may be claimed, in which order, and where in that order to begin to look (None: at the head)."""

    ready: sa.ColumnElement[bool]
    order: Sequence[sa.ColumnElement[Any]]
    after: sa.ColumnElement[bool] | None = None


@dataclass(frozen=True)
class KeysetOrder:
    """An order that can be entered anywhere: columns that are never NULL, all rising or all falling."""

    columns: Sequence[sa.Column[Any]]
    falling: bool

    def after(self, selection: Selection, dialect: Dialect) -> Selection:
        """The same beyond a place, which is given by parameters."""
        place = [sa.bindparam(AFTER.format(i), type_=column.type) for i, column in enumerate(self.columns)]
        return replace(selection, after=dialect.after_values(self.columns, place, falling=self.falling))

    def place(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the place where this row stands."""
        return {AFTER.format(i): row[column.name] for i, column in enumerate(self.columns)}

    def order_of(self, rows: sa.FromClause) -> list[sa.ColumnElement[Any]]:
        """The same order of rows that have these columns."""
        columns = [rows.c[column.key] for column in self.columns]
        return [column.desc() if self.falling else column for column in columns]


def keyset_order_of(selection: Selection) -> KeysetOrder | None:
    """The order as a way that can be entered anywhere; None where it is none."""
    steps = [_step(term) for term in selection.order]
    falls = {falling for _, falling in steps}
    columns = [column for column, _ in steps if column is not None]
    if len(falls) != 1 or len(columns) < len(steps) or any(column.nullable for column in columns):
        return None
    return KeysetOrder(tuple(dict.fromkeys(columns)), falls.pop())


def _step(term: sa.ColumnElement[Any]) -> tuple[sa.Column[Any] | None, bool]:
    """The column of a term of an order, None where it is something else, and whether it falls."""
    falling = isinstance(term, sa.UnaryExpression) and term.modifier is operators.desc_op
    column = term.element if isinstance(term, sa.UnaryExpression) else term
    exact = isinstance(column, sa.Column) and isinstance(column.type, EXACT) and not isinstance(column.type, INEXACT)
    return (column if exact else None), falling  # type: ignore[return-value]  # exact: a Column


def find(roles: Roles, selection: Selection) -> sa.Select[Any]:
    """The first `limit` jobs that are ready, in order: their keys, then how suspect each is."""
    return first(sa.select(*roles.key, suspicion(roles).label(SUSPECT)), selection)


def suspicion(roles: Roles) -> sa.ColumnElement[int]:
    """How suspect a job is: 0, or how many jobs it was in hand with when something went wrong."""
    return sa.literal(0, sa.Integer) if roles.suspect is None else counted(roles.suspect)


def first(rows: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
    """The first `limit` rows of a selection, from where it begins."""
    return in_order(rows, selection).limit(sa.bindparam("claimjobs_limit", type_=sa.Integer))


def in_order(rows: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
    """The rows of a selection, in order, from where it begins."""
    ready = rows.where(selection.ready) if selection.after is None else rows.where(selection.ready, selection.after)
    return ready.order_by(*selection.order)


def how_many(roles: Roles, selection: Selection) -> sa.Select[Any]:
    """How many `find` finds."""
    return sa.select(sa.func.count()).select_from(find(roles, selection).subquery("candidate"))


def numbered(roles: Roles, selection: Selection) -> sa.Select[Any]:
    """The same as `find`, with the place of each, under names that no table has."""
    found = find(roles, selection).subquery("first")
    keys = [found.c[column.key].label(KEY.format(i)) for i, column in enumerate(roles.key)]
    return sa.select(*keys, found.c[SUSPECT], sa.func.row_number().over().label(PLACE))


def same_key(roles: Roles, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """The predicate of a row and the candidate that stands for it."""
    return sa.and_(*(column == other.c[KEY.format(i)] for i, column in enumerate(roles.key)))


def counted(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """A number that counts from 0, also where a user's column holds NULL."""
    return sa.func.coalesce(column, 0) if column.nullable else column

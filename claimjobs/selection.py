"""What a user says may be claimed, and in which order, as expressions over the queue's own table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.visitors import replacement_traverse

from claimjobs.roles import Roles

Predicate = sa.ColumnElement[bool]
Where = Predicate | sa.TextClause | Callable[[], Predicate | sa.TextClause] | None
Order = str | sa.ColumnElement[Any]
OrderBy = Order | Sequence[Order] | None
"""Columns; or, as text: their names, `-name` for the highest first, or SQL as after ORDER BY."""


def predicates_of(where: Where, roles: Roles) -> tuple[Predicate, ...]:
    """The predicate, if there is one; a callable is asked for it."""
    given = where() if callable(where) else where
    if given is None:
        return ()
    # `and_` takes a piece of SQL as it is: an OR in it would reach around what stands beside it.
    return (Grouping(given) if isinstance(given, sa.TextClause) else _over(given, roles.table),)


def predicate(text: str | None) -> Predicate | None:
    """SQL as after WHERE, as it stands. The line breaks let it end in a comment."""
    return None if text is None else sa.literal_column(f"(\n{text}\n)", sa.Boolean)


def order_of(order_by: OrderBy, roles: Roles) -> Sequence[sa.ColumnElement[Any]]:
    """The user's order, made total by the key, so that everyone sees the same head; None: the table's own."""
    if order_by is None:
        return roles.default_order
    order = tuple(order_by) if isinstance(order_by, (list, tuple)) else (order_by,)
    return (*(_ordered(by, roles.table) for by in order), *roles.key) if order else ()


def _ordered(by: Order, table: sa.Table) -> sa.ColumnElement[Any]:
    if not isinstance(by, str):
        return cast(sa.ColumnElement[Any], _over(by, table))
    falling = by.removeprefix("-")
    if falling != by and by not in table.c and falling in table.c:
        return table.c[falling].desc()
    return table.c[by] if by in table.c else sa.literal_column(by)


def _over(expression: Any, table: sa.Table) -> Any:
    """The same over this table, where it was written over another description of it."""

    def ours(element: Any, **_: Any) -> Any:
        if not isinstance(element, sa.Column) or element.table is table:
            return None
        same = isinstance(element.table, sa.Table) and element.table.fullname == table.fullname
        return table.c.get(element.name) if same else None

    return replacement_traverse(expression, {}, ours)

"""A user's predicate and order, as expressions over the queue's own table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators, roles
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.operators import custom_op
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from claimjobs.dialects import Lexis
from claimjobs.errors import BadPredicate, not_understood
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles

Predicate = sa.ColumnElement[bool]
Condition = roles.ExpressionElementRole[bool] | sa.TextClause | str
"""An expression over the table's columns; or SQL as after WHERE."""
Where = Condition | Callable[[], Condition] | None
Order = roles.ExpressionElementRole[Any] | sa.TextClause | str
OrderBy = Order | Sequence[Order] | None
"""Columns; or texts: a column's name, `-name` for the highest first, or SQL as after ORDER BY."""

_VALUE: Final = re.compile(r"(?<!%)%\([^)]*\)s|__\[POSTCOMPILE_[^\]]*\]")
"""A value in a compiled text. SQLAlchemy names it after its column, whose name may have a quote in it."""
SUBQUERY: Final = frozenset({"select", "table"})
"""Words of which one is in every subquery: TABLE is a short form of SELECT, and else no word of an expression."""


class Enclosed(Grouping[Any]):
    """A user's expression. When it is compiled, it must be one whole expression, so that it changes nothing around it:
    a construct of the user's may write SQL that no element shows.
    """

    inherit_cache = True

    def __init__(self, element: Any, lexis: Lexis, what: str) -> None:
        super().__init__(element)
        self.lexis = lexis
        self.what = what


@compiles(Enclosed)
def _compiled(enclosed: Enclosed, compiler: Any, **options: Any) -> str:
    text: str = compiler.process(enclosed.element, **options)
    _check(_VALUE.sub("?", text), enclosed.lexis, enclosed.what)
    return text


def _check(text: str, lexis: Lexis, what: str) -> None:
    if flaw := lexis.flaw(text):
        raise BadPredicate(f"the {what} is not one whole expression ({flaw}): check its quotes and parentheses")


def _checked(expression: Any, lexis: Lexis, what: str) -> Any:
    """The expression, after a check that each text and operator in it is whole by itself: a NOT before it, for example,
    is about all of it.
    """
    for element in iterate(expression):
        if isinstance(element, sa.TextClause):
            _check(element.text, lexis, what)
        elif isinstance(element, sa.ColumnClause) and element.is_literal:
            _check(element.name, lexis, what)
        for operator in (getattr(element, "operator", None), getattr(element, "modifier", None)):
            if isinstance(operator, custom_op):
                _check(operator.opstring, lexis, what)
    return expression


def predicates_of(where: Where, table: sa.Table, lexis: Lexis) -> tuple[Predicate, ...]:
    """The predicate, if there is one; a callable returns it. Raises BadPredicate, here or when it is compiled."""
    given = _element(where() if callable(where) else where)
    if given is None:
        return ()
    if isinstance(given, str):
        given = sa.literal_column(given, sa.Boolean)
    elif not isinstance(given, sa.ClauseElement):
        raise not_understood(f"{given!r} is no expression: give SQL as text, or an expression over the table's columns")
    # Parentheses around it, because an OR in a text would change the conditions beside it.
    expression = _over(_checked(given, lexis, "predicate"), table)
    return (Grouping(Enclosed(expression, lexis, "predicate")),)


def read_other_rows(predicates: Sequence[Predicate], dialect: sa.Dialect, lexis: Lexis) -> bool:
    """Whether a predicate has a subquery, so that it depends on other rows than that of the job.

    The compiled text is read: a construct of the user's may write SQL that no element shows. What a function reads that
    is stored in the database is not known.
    """
    texts = (_VALUE.sub("?", str(one.compile(dialect=dialect))) for one in predicates)
    return any(lexis.words(text) & SUBQUERY for text in texts)


def is_any_order(order_by: OrderBy) -> bool:
    return isinstance(order_by, (list, tuple)) and not order_by


def order_of(order_by: OrderBy, of: ColumnRoles, lexis: Lexis) -> Sequence[sa.ColumnElement[Any]]:
    """The user's order, then the key, so that all consumers see the same order; None: the table's own order."""
    if order_by is None:
        return of.default_order
    order = tuple(order_by) if isinstance(order_by, (list, tuple)) else (order_by,)
    return (*(_ordered(by, of.table, lexis) for by in order), *of.key) if order else ()


def _element(given: Any) -> Any:
    """The expression of a mapped attribute; anything else as it is."""
    return given.__clause_element__() if hasattr(given, "__clause_element__") else given


def _ordered(by: Any, table: sa.Table, lexis: Lexis) -> sa.ColumnElement[Any]:
    by = _element(by)
    if isinstance(by, str):
        if by in table.c:
            return table.c[by]
        if by.startswith("-") and by[1:] in table.c:
            return table.c[by[1:]].desc()
        by = sa.literal_column(by)
    elif not isinstance(by, sa.ClauseElement):
        reason = f"{by!r} is no expression: give the name of a column, SQL, or an expression over columns"
        raise not_understood(reason, is_order=True)
    term = cast(sa.ColumnElement[Any], _over(_checked(by, lexis, "order"), table))
    is_column = column_of(term)[0] is not None  # a claim looks for these in its order
    return term if is_column else Enclosed(term, lexis, "order")


def column_of(term: Any) -> tuple[Column | None, bool]:
    """The column of a term of an order (None: it is another expression, such as -column), and whether it descends."""
    direction = term.modifier if isinstance(term, sa.UnaryExpression) else None
    column = term.element if direction in (operators.asc_op, operators.desc_op) else term
    return (column if isinstance(column, sa.Column) else None), direction is operators.desc_op


def _over(expression: Any, table: sa.Table) -> Any:
    """Replace columns of other descriptions of this table by its own."""

    def ours(element: Any, **_: Any) -> Any:
        if not isinstance(element, sa.Column):
            return None
        same = isinstance(element.table, sa.Table) and element.table.fullname == table.fullname
        return table.c.get(element.name) if same else None

    return replacement_traverse(expression, {}, ours)

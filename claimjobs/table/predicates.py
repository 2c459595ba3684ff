"""A user's predicate and order, as expressions over the queue's own table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.operators import custom_op
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from claimjobs.dialects import Lexis
from claimjobs.errors import BadPredicate, not_understood
from claimjobs.table.roles import ColumnRoles

Predicate = sa.ColumnElement[bool]


Condition = Predicate | sa.TextClause | str
"""An expression over the table's columns; or SQL as after WHERE."""
Where = Condition | Callable[[], Condition] | None
Order = str | sa.ColumnElement[Any]
OrderBy = Order | Sequence[Order] | None
"""Columns; or texts: a column's name, `-name` for the highest first, or SQL as after ORDER BY."""


def predicates_of(where: Where, roles: ColumnRoles, lexis: Lexis) -> tuple[Predicate, ...]:
    """The predicate, if there is one; a callable returns it. Raises BadPredicate for a text in it."""
    given = where() if callable(where) else where
    if given is None:
        return ()
    # `and_` adds no parentheses around a text: an OR in it would change the conditions beside it.
    one = _written(given, lexis) if isinstance(given, str) else _read(given, roles.table, lexis)
    return (Grouping(Whole(one, lexis, "predicate")),)


class Whole(Grouping[Any]):
    """A user's expression, checked when it is compiled: a construct of theirs may write SQL that no element shows."""

    inherit_cache = True

    def __init__(self, element: Any, lexis: Lexis, what: str) -> None:
        super().__init__(element)
        self.lexis = lexis
        self.what = what


@compiles(Whole)
def _whole(whole: Whole, compiler: Any, **options: Any) -> str:
    text: str = compiler.process(whole.element, **options)
    _check(_without_names_of_values(text), whole.lexis, whole.what)
    return text


def _without_names_of_values(compiled: str) -> str:
    """SQLAlchemy names a value after its column, whose name may have a quote in it. That name is no SQL."""
    return _VALUE.sub("?", compiled)


_VALUE: Final = re.compile(r"(?<!%)%\([^)]*\)s|__\[POSTCOMPILE_[^\]]*\]")


SUBQUERY: Final = frozenset({"select", "table"})
"""Words of which one is in every subquery: TABLE is a short form of SELECT, and else no word of an expression."""


def read_other_rows(predicates: Sequence[Predicate], dialect: sa.Dialect, lexis: Lexis) -> bool:
    """Whether a predicate has a subquery, so that it depends on other rows than that of the job.

    The compiled text is read: a construct of the user's may write SQL that no element shows. What a function reads that
    is stored in the database is not known.
    """
    return any(
        lexis.words(_without_names_of_values(str(one.compile(dialect=dialect)))) & SUBQUERY for one in predicates
    )


def _written(given: str, lexis: Lexis) -> sa.ColumnElement[Any]:
    text = f"{given}\n"  # the line break lets it end in a comment
    _check(text, lexis, "predicate")
    return sa.literal_column(text, sa.Boolean)


def _read(given: Predicate | sa.TextClause, table: sa.Table, lexis: Lexis) -> Any:
    if not isinstance(given, sa.ClauseElement):
        raise not_understood(f"{given!r} is no expression: give SQL as text, or an expression over the table's columns")
    _check_within(given, lexis, "predicate")
    return given if isinstance(given, sa.TextClause) else sa.and_(_over(given, table))


def _check_within(expression: Any, lexis: Lexis, what: str) -> None:
    """Raise BadPredicate for a text in it that is not one whole expression."""
    for element in iterate(expression):
        if isinstance(element, sa.TextClause):
            _check(element.text, lexis, what)
        elif isinstance(element, sa.ColumnClause) and element.is_literal:
            _check(element.name, lexis, what)
        for operator in (getattr(element, "operator", None), getattr(element, "modifier", None)):
            if isinstance(operator, custom_op):
                _check(operator.opstring, lexis, what)


def _check(text: str, lexis: Lexis, what: str) -> None:
    if flaw := lexis.flaw(text):
        raise BadPredicate(
            f"the {what} is not one whole expression ({flaw}): check its quotes, comments and parentheses"
        )


def order_of(order_by: OrderBy, roles: ColumnRoles, lexis: Lexis) -> Sequence[sa.ColumnElement[Any]]:
    """The user's order, then the key, so that all consumers see the same order; None: the table's own order."""
    if order_by is None:
        return roles.default_order
    order = tuple(order_by) if isinstance(order_by, (list, tuple)) else (order_by,)
    return (*(_ordered(by, roles.table, lexis) for by in order), *roles.key) if order else ()


def _ordered(by: Order, table: sa.Table, lexis: Lexis) -> sa.ColumnElement[Any]:
    if not isinstance(by, str):
        if not isinstance(by, sa.ClauseElement):
            reason = f"{by!r} is no expression: give the name of a column, SQL, or an expression over columns"
            raise not_understood(reason, is_order=True)
        _check_within(by, lexis, "order")
        term = cast(sa.ColumnElement[Any], _over(by, table))
        is_column = isinstance(getattr(term, "element", term), sa.Column)  # a claim looks for these in its order
        return term if is_column else Whole(term, lexis, "order")
    falling = by.removeprefix("-")
    if falling != by and by not in table.c and falling in table.c:
        return table.c[falling].desc()
    if by in table.c:
        return table.c[by]
    _check(by, lexis, "order")
    return sa.literal_column(by)


def _over(expression: Any, table: sa.Table) -> Any:
    """Replace columns of other descriptions of this table by its own."""

    def ours(element: Any, **_: Any) -> Any:
        if not isinstance(element, sa.Column) or element.table is table:
            return None
        same = isinstance(element.table, sa.Table) and element.table.fullname == table.fullname
        return table.c.get(element.name) if same else None

    return replacement_traverse(expression, {}, ours)

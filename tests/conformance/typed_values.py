"""Values of every type, a table that holds one of them in each row, and how many rows are many."""

from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from claimjobs import Queue
from claimjobs.enqueue.bulk_insert import FEWEST_ROWS
from claimjobs.table.columns import Columns
from tests.backends import Backend

MANY = FEWEST_ROWS + 50
HALF_PAST_FIVE = timezone(timedelta(hours=5, minutes=30))
NOON = datetime(2024, 5, 6, 12, 30, 15, tzinfo=HALF_PAST_FIVE)


class Colour(enum.Enum):
    RED = "rot"


class Backwards(sa.TypeDecorator[str]):
    """A type that Python writes."""

    impl = sa.String(64)
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: sa.Dialect) -> str | None:
        return None if value is None else value[::-1]


class Louder(sa.TypeDecorator[str]):
    """A type that the database writes."""

    impl = sa.String(64)
    cache_ok = True

    def bind_expression(self, bindparam: sa.BindParameter[str]) -> sa.ColumnElement[str]:
        return sa.func.upper(bindparam)


INSTANT = sa.DateTime(timezone=True)
VALUES: dict[str, tuple[Any, Any]] = {
    "text": (sa.String(64), "plain"),
    "text that a copy marks": (sa.Text(), "tab\tnewline\nreturn\rbackslash\\ \\N \\. quote'\" per%cent %s é☃𝄞"),
    "the end of a copy": (sa.Text(), "\\."),
    "what a copy takes for NULL": (sa.Text(), "\\N"),
    "no text": (sa.String(64), ""),
    "NULL": (sa.String(64), None),
    "text with blanks at its end": (sa.String(5), "abc       "),
    "text for a CHAR": (sa.CHAR(5), "abc"),
    "text too long for a CHAR": (sa.CHAR(2), "abc"),
    "a truth as text": (sa.String(64), True),
    "a number as text": (sa.String(64), 7),
    "a float as text": (sa.String(64), 1e15),
    "an instant as text": (sa.String(64), NOON),
    "a number": (sa.Integer(), -7),
    "a large number": (sa.BigInteger(), -(2**63)),
    "text as a number": (sa.Integer(), "12"),
    "a truth as a number": (sa.Integer(), True),
    "a float as a number": (sa.Integer(), 2.5),
    "a decimal": (sa.Numeric(12, 3), Decimal("-123456789.125")),
    "a decimal to be rounded": (sa.Numeric(5, 1), Decimal("1.25")),
    "a float as a decimal": (sa.Numeric(30, 20), 0.1),
    "a number as a decimal": (sa.Numeric(12, 3), 7),
    "a float": (sa.Double(), 0.1 + 0.2),
    "a large float": (sa.Double(), 1e300),
    "a small float": (sa.REAL(), 0.1),
    "a number as a float": (sa.Double(), 3),
    "a truth": (sa.Boolean(), False),
    "bytes": (sa.LargeBinary(), bytes(range(256))),
    "a date": (sa.Date(), date(2024, 2, 29)),
    "an instant as a date": (sa.Date(), NOON),
    "an instant with its zone": (INSTANT, NOON),
    "an instant without a zone": (INSTANT, NOON.replace(tzinfo=None)),
    "an instant": (sa.DateTime(), NOON.replace(tzinfo=None)),
    "an instant whose zone is not wanted": (sa.DateTime(), NOON),
    "a time": (sa.Time(), time(23, 59, 59)),
    "a duration": (sa.Interval(), timedelta(days=3, seconds=4)),
    "json": (sa.JSON(), {"a": [1, 2.5, None, True, 'é"\\\n'], "b": {}}),
    "no json": (sa.JSON(), None),
    "json that is null": (sa.JSON(none_as_null=True), None),
    "a uuid": (sa.Uuid(), UUID(int=7)),
    "text as a uuid": (sa.Uuid(as_uuid=False), str(UUID(int=7))),
    "an enumeration": (sa.Enum(Colour, name="colour"), Colour.RED),
    "an enumeration of texts": (sa.Enum("rot", "blau", name="farbe"), "blau"),
    "a type of the user's": (Backwards(), "abc"),
    "a type that the database writes": (Louder(), "abc"),
}
ARRAYS: dict[str, tuple[Any, Any]] = {
    "numbers": (sa.ARRAY(sa.Integer), [1, None, 3]),
    "texts": (sa.ARRAY(sa.Text), ["a,b", '"', "\\", "NULL", "", None, "{}", "\t"]),
    "nothing": (sa.ARRAY(sa.Integer), []),
    "instants": (sa.ARRAY(sa.DateTime()), [NOON]),
    "rows of numbers": (sa.ARRAY(sa.Integer, dimensions=2), [[1, 2], [3, 4]]),
    "NULL": (sa.ARRAY(sa.Integer), None),
    "jsonb": (postgresql.JSONB(), {"a": 1.50}),
    "an address": (postgresql.INET(), "10.0.0.0/8"),
    "seconds only": (postgresql.TIMESTAMP(precision=0), NOON.replace(tzinfo=None, microsecond=600_000)),
    "not a number": (sa.Double(), float("nan")),
    "a decimal that is no number": (sa.Numeric(), Decimal("NaN")),
    "endless": (sa.Double(), float("-inf")),
}


def things(type_: Any, **options: Any) -> sa.Table:
    return sa.Table(
        "things",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("value", type_, **options),
        sa.Column("rest", sa.String(8), server_default="default"),
    )


def queue_of(backend: Backend, table: sa.Table, **options: Any) -> Queue:
    """A queue over a table that has only a key, and what there is to it."""
    table.metadata.create_all(backend.engine)
    return backend.bare_queue(table, columns=Columns(), hold="transaction", **{"on_done": "delete", **options})


def as_stored(backend: Backend, table: sa.Table) -> list[tuple[Any, ...]]:
    """Every value as the driver gives it, and the server's text of it, in the order of the keys."""
    text = sa.cast(table.c.value, sa.CHAR if backend.has("table collation") else sa.Text)
    with backend.engine.connect() as connection:
        plain = sa.select(sa.type_coerce(table.c.value, sa.types.NULLTYPE), text, table.c.rest).order_by(table.c.id)
        return [tuple(row) for row in connection.execute(plain)]

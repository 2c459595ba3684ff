"""Rows as psycopg sends them (COPY) and reads them. It is imported late, because psycopg is slow to import.

COPY is several times as fast as INSERT. Its values are texts that the column's type reads. INSERT converts between
types: for a column without a time zone, it converts an instant to the session's zone. If the two could differ for a
column, its rows are inserted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any, Final
from uuid import UUID

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.adapt import Transformer
from psycopg.pq import Format
from psycopg.types.json import Json, Jsonb

from claimjobs.job import PartlyRead, UnreadableValue

Takes = Callable[[Iterable[Any]], bool]

# --- which values ----------------------------------------------------------------------------------------------


def _only(*kinds: type) -> Takes:
    allowed = {*kinds, NoneType}
    return lambda values: set(map(type, values)) <= allowed


def _without_zone(kind: type) -> Takes:
    """INSERT converts a value with a zone to the session's zone; COPY ignores the zone."""
    of_kind = _only(kind)
    return lambda values: of_kind(values) and all(value is None or value.tzinfo is None for value in values)


def _each(takes: Takes) -> Takes:
    lists = _only(list)
    return lambda values: lists(values) and takes(list(chain.from_iterable(filter(None, values))))


_TEXTS: Final = ("text", "character varying")
_TAKES: Final[Mapping[str, Takes]] = {
    **dict.fromkeys(_TEXTS, _only(str)),
    **dict.fromkeys(("smallint", "integer", "bigint"), _only(int)),
    "numeric": _only(int, Decimal),  # INSERT rounds a float to 15 digits
    "double precision": _only(int, float),
    "boolean": _only(bool),
    "bytea": _only(bytes, psycopg.Binary),
    "uuid": _only(UUID),
    "date": _only(date),
    "timestamp with time zone": _only(datetime),
    "timestamp without time zone": _without_zone(datetime),
    "time without time zone": _without_zone(time),
    "interval": _only(timedelta),
    "json": _only(Json),
    "jsonb": _only(Jsonb),
}
"""By the type of a column: whether COPY and INSERT write the same for values as psycopg gets them."""


# --- which columns ---------------------------------------------------------------------------------------------


# COPY ignores rules. The server refuses it for a view and for rows with a policy. Unlike INSERT it writes an identity
# column that is GENERATED ALWAYS.
_COLUMNS: Final = sa.text(
    "SELECT attname, format_type(atttypid, atttypmod), typtype = 'e' FROM pg_attribute "
    "JOIN pg_class ON pg_class.oid = attrelid JOIN pg_type ON pg_type.oid = atttypid "
    "WHERE attrelid = to_regclass(:name) AND relkind IN ('r', 'p') AND NOT relhasrules "
    "AND NOT row_security_active(attrelid) AND attnum > 0 AND NOT attisdropped "
    "AND attidentity <> 'a' AND attgenerated = ''"
)


def copyable(connection: sa.Connection, table: sa.Table, name: str) -> Mapping[str, Takes]:
    """The columns that can be copied, by their keys, and which values. `name` is the table's quoted name."""
    actual = {row[0]: row[1:] for row in connection.execute(_COLUMNS, {"name": name})}
    there = [column for column in table.columns if column.name in actual]
    found = {column.key: _takes(column.type, connection.dialect, *actual[column.name]) for column in there}
    return {key: takes for key, takes in found.items() if takes}


def _takes(declared: sa.types.TypeEngine[Any], dialect: sa.Dialect, actual: str, is_enum: bool) -> Takes | None:
    """None for a column of an unknown type, or whose type in the database is another one than declared."""
    try:
        said = _as_postgres_says(declared.compile(dialect=dialect))
    except sa.exc.CompileError:
        return None
    bare = _bare(actual)
    texts = bare in _TEXTS and _bare(said) in _TEXTS  # the table checks their length, as for INSERT
    if not (said == actual or texts) or declared.bind_expression(sa.bindparam("value", type_=declared)) is not None:
        return None
    if bare.endswith("[]"):
        element = _TAKES.get(bare.removesuffix("[]"))
        return _each(element) if element else None
    return _only(str) if is_enum else _TAKES.get(bare)


def _as_postgres_says(declared: str) -> str:
    """The type that SQLAlchemy writes, as `format_type` writes it."""
    name = declared.partition(" COLLATE ")[0]
    if name.startswith('"'):
        return name
    name = name.lower().replace(", ", ",")
    name = re.sub(r"^varchar\b", "character varying", name)
    return re.sub(r"^float(?=$|\[)", "double precision", name)


def _bare(type_: str) -> str:
    """The type without its length or precision."""
    return re.sub(r"\([\d,]+\)", "", type_)


# --- the copy --------------------------------------------------------------------------------------------------


def copy(connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Copy rows into these columns, in the transaction of `connection`. Raises what SQLAlchemy would raise."""
    place = [table.name] if table.schema is None else [table.schema, table.name]
    columns = sql.SQL(", ").join(sql.Identifier(table.c[key].name) for key in keys)
    command = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*place), columns)
    with closing(connection.connection.cursor()) as cursor:
        try:
            with cursor.copy(command) as copying:
                for row in rows:
                    copying.write_row(row)
        except psycopg.Error as error:
            raise _explained(connection, error, command.as_string()) from error
        except BaseException as error:
            if not isinstance(error, Exception):  # as SQLAlchemy does for its own: the copy may still be under way
                connection.invalidate()
            raise


def _explained(connection: sa.Connection, error: Any, statement: str) -> BaseException:
    """The error as SQLAlchemy raises it for its own statements.

    SQLAlchemy invalidates a broken connection when it rolls back the savepoint around the copy.
    """
    dialect = connection.dialect
    gone = dialect.is_disconnect(error, connection.connection, None)
    options: dict[str, Any] = {"connection_invalidated": gone, "dialect": dialect}
    converted: BaseException = sa.exc.DBAPIError.instance(statement, None, error, psycopg.Error, **options)
    return converted


# --- rows that psycopg cannot read as a whole ------------------------------------------------------------------


def read_partly(cursor: Any) -> Sequence[Any]:
    """All rows of the result of a cursor, with `UnreadableValue` in place of what Python cannot hold."""
    result, made = cursor.pgresult, Transformer.from_context(cursor)
    columns = [(result.ftype(i), Format(result.fformat(i))) for i in range(result.nfields)]
    rows = []
    for number in range(result.ntuples):
        sent = [result.get_value(number, i) for i in range(result.nfields)]
        values = tuple(_value(made, one, *column) for one, column in zip(sent, columns, strict=True))
        rows.append(PartlyRead(values) if any(isinstance(value, UnreadableValue) for value in values) else values)
    return rows


def _value(made: Any, sent: bytes | None, type_: int, format_: Format) -> Any:
    if sent is None:
        return None
    try:
        return made.get_loader(type_, format_).load(sent)
    except Exception as error:
        known = made.adapters.types.get(type_)
        text = bytes(sent).decode(errors="backslashreplace")
        return UnreadableValue(f"{text!r}, {known.name if known else type_}: {error}")

"""Rows as psycopg sends them (COPY) and reads them. psycopg is imported late, because that is slow.

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

import sqlalchemy as sa

from claimjobs.dialects.base import Condition, Dialect, Expressions
from claimjobs.dialects.postgres.sessions import PREPARER
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
    "uuid": _only(UUID),
    "date": _only(date),
    "timestamp with time zone": _only(datetime),
    "timestamp without time zone": _without_zone(datetime),
    "time without time zone": _without_zone(time),
    "interval": _only(timedelta),
}
"""By the type of a column: whether COPY and INSERT write the same for values as psycopg gets them. Others are in
`PsycopgRows.copyable`."""


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


def _type_of(declared: sa.types.TypeEngine[Any], dialect: sa.Dialect, actual: str) -> str | None:
    """The type of a column without its length or precision; None if it is declared as another one."""
    try:
        said = declared.compile(dialect=dialect).partition(" COLLATE ")[0]
    except sa.exc.CompileError:
        return None
    if not said.startswith('"'):  # as `format_type` writes it
        said = re.sub(r"^varchar\b", "character varying", said.lower().replace(", ", ","))
        said = re.sub(r"^float(?=$|\[)", "double precision", said)
    bare, said_bare = (re.sub(r"\([\d,]+\)", "", type_) for type_ in (actual, said))
    texts = bare in _TEXTS and said_bare in _TEXTS  # the table checks their length, as for INSERT
    is_plain = declared.bind_expression(sa.bindparam("value", type_=declared)) is None
    return bare if is_plain and (said == actual or texts) else None


def _value(made: Any, sent: bytes | None, type_: int, format_: Any) -> Any:
    if sent is None:
        return None
    try:
        return made.get_loader(type_, format_).load(sent)
    except Exception as error:
        known = made.adapters.types.get(type_)
        text = bytes(sent).decode(errors="backslashreplace")
        return UnreadableValue(f"{text!r}, {known.name if known else type_}: {error}")


class PsycopgRows(Dialect):
    """How rows are read and copied."""

    copies = True

    def readable(self, key: Expressions) -> Sequence[Condition]:
        # Python has neither 'infinity' nor years BC. In some time zones it lacks the first or the last day.
        found = []
        for column in key:
            if isinstance(column.type, sa.Date):
                first, last = "DATE '0001-01-01'", "DATE '9999-12-31'"
            elif isinstance(column.type, sa.DateTime) and column.type.timezone:
                first, last = "TIMESTAMPTZ '0001-01-02 00:00:00+00'", "TIMESTAMPTZ '9999-12-30 23:59:59+00'"
            elif isinstance(column.type, sa.DateTime):
                first, last = "TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
            else:
                continue
            found.append(column.between(sa.literal_column(first), sa.literal_column(last)))
        return found

    def fetched(self, cursor: Any) -> Sequence[Any]:
        # psycopg makes the values of a row when the row is fetched, and raises for a date that Python does not have.
        try:
            return super().fetched(cursor)
        except Exception:
            if not hasattr(cursor, "pgresult"):  # another driver, which does not keep the values as they were sent
                raise
        from psycopg.adapt import Transformer  # noqa: PLC0415 - psycopg is slow to import
        from psycopg.pq import Format  # noqa: PLC0415

        result, made = cursor.pgresult, Transformer.from_context(cursor)
        columns = [(result.ftype(i), Format(result.fformat(i))) for i in range(result.nfields)]
        rows: list[Any] = []
        for number in range(result.ntuples):
            sent = [result.get_value(number, i) for i in range(result.nfields)]
            values = tuple(_value(made, one, *column) for one, column in zip(sent, columns, strict=True))
            rows.append(PartlyRead(values) if any(isinstance(one, UnreadableValue) for one in values) else values)
        return rows

    def copyable(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, Takes]:
        # Other drivers have other ways, or none.
        if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
            return {}
        from psycopg import Binary  # noqa: PLC0415 - psycopg is slow to import
        from psycopg.types.json import Json, Jsonb  # noqa: PLC0415

        known = {**_TAKES, "bytea": _only(bytes, Binary), "json": _only(Json), "jsonb": _only(Jsonb)}
        found: dict[str, Takes] = {}
        actual = {row[0]: row[1:] for row in connection.execute(_COLUMNS, {"name": PREPARER.format_table(table)})}
        for column in table.columns:
            type_, is_enum = actual.get(column.name, ("", False))
            bare = _type_of(column.type, connection.dialect, type_)
            if bare is None:
                continue
            element = known.get(bare.removesuffix("[]"))
            if is_enum:
                found[column.key] = _only(str)
            elif element is not None:
                found[column.key] = _each(element) if bare.endswith("[]") else element
        return found

    def copy(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        from psycopg import Error, sql  # noqa: PLC0415 - psycopg is slow to import

        place = [table.name] if table.schema is None else [table.schema, table.name]
        columns = sql.SQL(", ").join(sql.Identifier(table.c[key].name) for key in keys)
        command = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*place), columns)
        with closing(connection.connection.cursor()) as cursor:
            try:
                with cursor.copy(command) as copying:
                    for row in rows:
                        copying.write_row(row)
            except Error as error:
                # The error as SQLAlchemy raises it for its own statements. It invalidates a broken connection when it
                # rolls back the savepoint around the copy.
                dialect: Any = connection.dialect
                gone = dialect.is_disconnect(error, connection.connection, None)
                options: dict[str, Any] = {"connection_invalidated": gone, "dialect": dialect}
                raise sa.exc.DBAPIError.instance(command.as_string(), None, error, Error, **options) from error
            except BaseException as error:
                if not isinstance(error, Exception):  # as SQLAlchemy does for its own: the copy may still be under way
                    connection.invalidate()
                raise

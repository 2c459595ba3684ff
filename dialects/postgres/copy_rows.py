"""COPY: rows into Postgres as data, several times as fast as by INSERT. Imported where the driver is psycopg.

COPY writes what it is given into a column as the column reads a text. INSERT converts a value of one type to another:
an instant with a zone into the session's, for a column without one; a number into the words of a text. Where the two
might differ a column is not copied, and what is not copied is inserted.
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
from psycopg.types.json import Json, Jsonb

Takes = Callable[[Iterable[Any]], bool]

# --- which values ----------------------------------------------------------------------------------------------


def _only(*kinds: type) -> Takes:
    allowed = {*kinds, NoneType}
    return lambda values: set(map(type, values)) <= allowed


def _without_zone(kind: type) -> Takes:
    """An INSERT turns those with a zone into the session's, a COPY drops their zone."""
    of_kind = _only(kind)
    return lambda values: of_kind(values) and all(value is None or value.tzinfo is None for value in values)


def _each(takes: Takes) -> Takes:
    lists = _only(list)
    return lambda values: lists(values) and takes(list(chain.from_iterable(filter(None, values))))


_TEXTS: Final = ("text", "character varying")
_TAKES: Final[Mapping[str, Takes]] = {
    **dict.fromkeys(_TEXTS, _only(str)),
    **dict.fromkeys(("smallint", "integer", "bigint"), _only(int)),
    "numeric": _only(int, Decimal),  # a float is rounded to 15 digits by an INSERT
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
"""By the type of a column: whether values, as psycopg gets them, mean the same in a COPY as in an INSERT."""


# --- which columns ---------------------------------------------------------------------------------------------


# COPY passes rules by, is refused where rows have a policy or a view stands for a table, and fills in an identity that
# is GENERATED ALWAYS, as an INSERT does not.
_COLUMNS: Final = sa.text(
    "SELECT attname, format_type(atttypid, atttypmod), typtype = 'e' FROM pg_attribute "
    "JOIN pg_class ON pg_class.oid = attrelid JOIN pg_type ON pg_type.oid = atttypid "
    "WHERE attrelid = to_regclass(:name) AND relkind IN ('r', 'p') AND NOT relhasrules "
    "AND NOT row_security_active(attrelid) AND attnum > 0 AND NOT attisdropped "
    "AND attidentity <> 'a' AND attgenerated = ''"
)


def copyable(connection: sa.Connection, table: sa.Table, name: str) -> Mapping[str, Takes]:
    """The columns that can be copied, by their keys, and which of their values. `name` is the table's, quoted."""
    actual = {row[0]: row[1:] for row in connection.execute(_COLUMNS, {"name": name})}
    there = [column for column in table.columns if column.name in actual]
    found = {column.key: _takes(column.type, connection.dialect, *actual[column.name]) for column in there}
    return {key: takes for key, takes in found.items() if takes}


def _takes(declared: sa.types.TypeEngine[Any], dialect: sa.Dialect, actual: str, is_enum: bool) -> Takes | None:
    """None for a column of a type that is not known here, or is not what it was declared to be."""
    try:
        said = _as_postgres_says(declared.compile(dialect=dialect))
    except sa.exc.CompileError:
        return None
    bare = _bare(actual)
    texts = bare in _TEXTS and _bare(said) in _TEXTS  # an INSERT leaves their length to the table
    if not (said == actual or texts) or declared.bind_expression(sa.bindparam("value", type_=declared)) is not None:
        return None
    if bare.endswith("[]"):
        element = _TAKES.get(bare.removesuffix("[]"))
        return _each(element) if element else None
    return _only(str) if is_enum else _TAKES.get(bare)


def _as_postgres_says(declared: str) -> str:
    """The type that SQLAlchemy writes, in the words of `format_type`."""
    name = declared.partition(" COLLATE ")[0]
    if name.startswith('"'):
        return name
    name = name.lower().replace(", ", ",")
    name = re.sub(r"^varchar\b", "character varying", name)
    return re.sub(r"^float(?=$|\[)", "double precision", name)


def _bare(type_: str) -> str:
    """Without its length or precision."""
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
        except (KeyboardInterrupt, SystemExit):
            connection.invalidate()  # as SQLAlchemy does for its own statements: the copy may still be under way
            raise


def _explained(connection: sa.Connection, error: Any, statement: str) -> BaseException:
    """The error as SQLAlchemy raises it where it runs a statement itself.

    A broken connection it takes for invalid when the savepoint around the copy is undone.
    """
    dialect = connection.dialect
    gone = dialect.is_disconnect(error, connection.connection, None)
    options: dict[str, Any] = {"connection_invalidated": gone, "dialect": dialect}
    converted: BaseException = sa.exc.DBAPIError.instance(statement, None, error, psycopg.Error, **options)
    return converted

"""Many rows with the same columns: by COPY, or in an INSERT whose text and types are prepared once for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.enqueue.rows import Row
from claimjobs.statements.enqueue import insert_rows

FEWEST_ROWS: Final = 100
"""For fewer rows the preparation costs more than it saves."""

_SHORT: Final = {bool, int, float, Decimal, date, datetime, time, timedelta, UUID}
"""Types whose values have at most _LENGTH characters in SQL."""
_LENGTH: Final = 80
_KNOWN: Final = {*_SHORT, NoneType, str, bytes}
_MOST_PARAMETERS: Final = 65_535
"""The limit of a prepared statement."""
_PLACEHOLDER: Final = re.compile(r"(?<!%)%\((\w+)\)s")
"""A parameter by name, in a text for a driver."""


class RowValues:
    """Reads the values of these columns out of rows, and converts each as an INSERT does for the driver."""

    def __init__(self, types: Mapping[str, sa.types.TypeEngine[Any]], dialect: sa.Dialect) -> None:
        self.names = tuple(types)
        self._read: Callable[[Row], Any] = itemgetter(*self.names)
        self._write = [type_.dialect_impl(dialect).bind_processor(dialect) for type_ in types.values()]

    def rows(self, rows: Iterable[Row]) -> list[tuple[Any, ...]]:
        """The values of each row. A type may raise an error for a value that it cannot convert."""
        read = map(self._read, rows)
        tuples = list(read) if len(self.names) > 1 else [(value,) for value in read]
        if not any(self._write):
            return tuples
        columns = zip(zip(*tuples, strict=True), self._write, strict=True)
        written = (values if write is None else map(write, values) for values, write in columns)
        return list(zip(*written, strict=True))


class BulkInsert:
    """Writes many rows at a time into one table, where that is the same as what SQLAlchemy would write.

    COPY is used if all of this is true. `Enqueuer` writes at least FEWEST_ROWS rows with the same columns, and knows no
    `unique`. Neither a translated schema nor a default of Python is missing in the rows (`_way`). The driver and the
    table can take it, and each value has a type that COPY reads as an INSERT would (`Dialect.copyable`).
    """

    def __init__(self, connection: sa.Connection, table: sa.Table, dialect: Dialect) -> None:
        self._connection, self._table, self._dialect = connection, table, dialect
        self._ways: dict[frozenset[str], tuple[RowValues, str, list[Set[type]]] | None] = {}
        """By the columns of rows: what reads their values, the INSERT of a row, and the types of values that can be
        copied. None: SQLAlchemy writes them."""

    def write(self, rows: Sequence[Row]) -> bool:
        """Write rows that have the same columns. False: none was written, and SQLAlchemy must."""
        columns = frozenset(rows[0])
        if columns not in self._ways:
            self._ways[columns] = self._way(rows[0])
        way = self._ways[columns]
        if way is None:
            return False
        values, text, copied = way
        tuples = values.rows(rows)
        types = (set(map(type, column)) for column in zip(*tuples, strict=True))
        if all(copied) and all(found <= allowed for found, allowed in zip(types, copied, strict=True)):
            self._dialect.copy(self._connection, self._table, values.names, tuples)
            return True
        # In one statement, if it is short enough for that; else by the driver's `executemany`.
        longest = self._dialect.joins_rows
        flat = tuple(chain.from_iterable(tuples)) if longest else ()
        if flat and len(flat) <= _MOST_PARAMETERS and size_in_sql(flat) <= longest:
            head, keyword, row = text.rpartition(" VALUES ")
            self._connection.exec_driver_sql(head + keyword + ", ".join([row] * len(tuples)), flat)
        else:
            self._connection.exec_driver_sql(text, tuples)
        return True

    def _way(self, row: Row) -> tuple[RowValues, str, list[Set[type]]] | None:
        """None where SQLAlchemy must translate a schema, or compute defaults of Python for columns that are left out.

        A tuple is cheaper to read than a mapping, for us and for the driver. Drivers of the style `pyformat` take both.
        """
        translated = self._connection.get_execution_options().get("schema_translate_map")
        completed = {column.key for column in self._table.columns if column.default is not None}
        if not row or translated or not row.keys() >= completed:
            return None
        insert = insert_rows(self._table)
        compiled: Any = insert.compile(self._connection, column_keys=list(row), for_executemany=True)
        text = _PLACEHOLDER.sub("%s", compiled.string)
        names = compiled.positiontup or _PLACEHOLDER.findall(compiled.string)
        if sorted(names) != sorted(row):
            return None  # the compiler has changed a name
        types = {name: self._table.c[name].type for name in names}
        copied = [self._copyable.get(name, frozenset()) for name in names]
        return RowValues(types, self._connection.dialect), text, copied

    @cached_property
    def _copyable(self) -> Mapping[str, Set[type]]:
        return self._dialect.copyable(self._connection, self._table)


def size_in_sql(values: tuple[Any, ...]) -> float:
    """An upper bound of the bytes of these values in a statement; infinite if a type is unknown."""
    kinds = set(map(type, values))
    if not kinds <= _KNOWN:
        return float("inf")
    text = "".join(values if kinds == {str} else (value for value in values if type(value) is str))
    data = sum(len(value) for value in values if type(value) is bytes) if bytes in kinds else 0
    return len(values) * _LENGTH + len(text) * (2 if text.isascii() else 8) + data * 2  # any character may be escaped

"""Rows of one shape as a driver takes them: what SQLAlchemy looks up for each row is looked up once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

Row = Mapping[str, Any]
Write = Callable[[Any], Any]

FEW: Final = 100
"""Of so many rows and more the look-up is worth its time."""

_SHORT: Final = {bool, int, float, Decimal, date, datetime, time, timedelta, UUID}
"""Types whose values are short in any notation, if a column can hold them."""
_LENGTH: Final = 80
_KNOWN: Final = {*_SHORT, NoneType, str, bytes}
_MOST_PARAMETERS: Final = 65_535
"""A server that has a statement prepared takes no more."""


class RowValues:
    """Reads the values of these types out of rows, and writes each as an INSERT would hand it to the driver."""

    def __init__(self, types: Mapping[str, sa.types.TypeEngine[Any]], dialect: sa.Dialect) -> None:
        self.names = tuple(types)
        self._read: Callable[[Row], Any] = itemgetter(*self.names)
        self._write = [type_.dialect_impl(dialect).bind_processor(dialect) for type_ in types.values()]

    def rows(self, rows: Iterable[Row]) -> list[tuple[Any, ...]]:
        """The values of each row. Raises whatever a type raises for a value that it cannot write."""
        read = map(self._read, rows)
        tuples = list(read) if len(self.names) > 1 else [(value,) for value in read]
        if not any(self._write):
            return tuples
        columns = zip(*tuples, strict=True)
        return list(zip(*map(_written, columns, self._write), strict=True))


def _written(values: Sequence[Any], write: Write | None) -> Iterable[Any]:
    return values if write is None else map(write, values)


@dataclass(frozen=True)
class Prepared:
    """An INSERT of rows of one shape, as text for the driver: its head, and the parameters of a row."""

    head: str
    group: str
    values: RowValues

    def run(self, connection: sa.Connection, rows: Sequence[Row], joined: int) -> None:
        """Insert the rows: as one statement, if it takes at most `joined` bytes, else as the driver does with many."""
        tuples = self.values.rows(rows)
        flat = tuple(chain.from_iterable(tuples)) if joined else ()
        if flat and len(flat) <= _MOST_PARAMETERS and _size(flat) <= joined:
            connection.exec_driver_sql(self.head + ", ".join([self.group] * len(rows)), flat)
        else:
            connection.exec_driver_sql(self.head + self.group, tuples)


def _size(values: tuple[Any, ...]) -> float:
    """At least the bytes that values take within a statement; infinite where nobody can tell."""
    kinds = set(map(type, values))
    if not kinds <= _KNOWN:
        return float("inf")
    text = "".join(values if kinds == {str} else filter(_is_text, values))
    data = sum(len(value) for value in values if type(value) is bytes) if bytes in kinds else 0
    return len(values) * _LENGTH + len(text) * (2 if text.isascii() else 8) + data * 2  # any character may be escaped


def _is_text(value: Any) -> bool:
    return type(value) is str


def prepared(connection: sa.Connection, statement: sa.Insert, shape: Iterable[str]) -> Prepared | None:
    """An INSERT of rows with these columns, or None where it takes SQLAlchemy to run it.

    So it is where a schema is translated, and where columns that are left out have defaults that Python computes.
    """
    names = list(shape)
    if not names or connection.get_execution_options().get("schema_translate_map"):
        return None
    compiled: Any = statement.compile(connection, column_keys=names, for_executemany=True)
    text, order = _by_place(compiled)
    head, _, group = text.rpartition(" VALUES (")
    if sorted(order) != sorted(names) or group.count("%s") != len(names):
        return None
    types = {name: compiled.binds[name].type for name in order}
    return Prepared(f"{head} VALUES ", f"({group}", RowValues(types, connection.dialect))


def _by_place(compiled: Any) -> tuple[str, list[str]]:
    """The statement with its parameters by place, as %s, and their names; nothing where that cannot be had.

    A tuple is cheaper to read than a mapping, for us and for the driver. Drivers of the style `pyformat` take both.
    """
    if compiled.positional:
        return compiled.string, compiled.positiontup
    if compiled.dialect.paramstyle != "pyformat" or "%%" in compiled.string:
        return "", []
    order = _Order()
    return compiled.string % order, order.names


class _Order(dict[str, str]):
    """Notes in which order it is asked for names, while a text is filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, name: str) -> str:
        self.names.append(name)
        return "%s"

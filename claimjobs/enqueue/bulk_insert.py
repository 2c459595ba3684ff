"""Many rows of one shape for the driver: the statement and the types are prepared once, not for each row."""

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

from claimjobs.enqueue.rows import Row

FEW: Final = 100
"""For fewer rows the preparation costs more than it saves."""

_SHORT: Final = {bool, int, float, Decimal, date, datetime, time, timedelta, UUID}
"""Types whose values have at most _LENGTH characters in SQL."""
_LENGTH: Final = 80
_KNOWN: Final = {*_SHORT, NoneType, str, bytes}
_MOST_PARAMETERS: Final = 65_535
"""The limit of a prepared statement."""


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


@dataclass(frozen=True)
class Prepared:
    """An INSERT of rows of one shape, as text for the driver: its head, and the parameters of a row."""

    head: str
    group: str
    values: RowValues

    def run(self, connection: sa.Connection, rows: Sequence[Row], joined: int) -> None:
        """Insert the rows: in one statement if it has at most `joined` bytes, else by the driver's `executemany`."""
        tuples = self.values.rows(rows)
        flat = tuple(chain.from_iterable(tuples)) if joined else ()
        if flat and len(flat) <= _MOST_PARAMETERS and _size(flat) <= joined:
            connection.exec_driver_sql(self.head + ", ".join([self.group] * len(rows)), flat)
        else:
            connection.exec_driver_sql(self.head + self.group, tuples)


def _size(values: tuple[Any, ...]) -> float:
    """An upper bound of the bytes of these values in a statement; infinite if a type is unknown."""
    kinds = set(map(type, values))
    if not kinds <= _KNOWN:
        return float("inf")
    text = "".join(values if kinds == {str} else (value for value in values if type(value) is str))
    data = sum(len(value) for value in values if type(value) is bytes) if bytes in kinds else 0
    return len(values) * _LENGTH + len(text) * (2 if text.isascii() else 8) + data * 2  # any character may be escaped


def prepared(connection: sa.Connection, statement: sa.Insert, shape: Iterable[str]) -> Prepared | None:
    """An INSERT of rows with these columns. None where only SQLAlchemy can run it: it must translate a schema, or
    compute defaults of Python for columns that are left out; or the driver has no parameters by place.

    A tuple is cheaper to read than a mapping, for us and for the driver. Drivers of the style `pyformat` take both.
    """
    names = list(shape)
    if not names or connection.get_execution_options().get("schema_translate_map"):
        return None
    compiled: Any = statement.compile(connection, column_keys=names, for_executemany=True)
    order = _Order()
    if compiled.positional:
        text, order.names = compiled.string, compiled.positiontup
    elif compiled.dialect.paramstyle == "pyformat" and "%%" not in compiled.string:
        text = compiled.string % order
    else:
        return None
    head, _, group = text.rpartition(" VALUES (")
    if sorted(order.names) != sorted(names) or group.count("%s") != len(names):
        return None
    types = {name: compiled.binds[name].type for name in order.names}
    return Prepared(f"{head} VALUES ", f"({group}", RowValues(types, connection.dialect))


class _Order(dict[str, str]):
    """Records the order in which names are looked up while a text is formatted."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, name: str) -> str:
        self.names.append(name)
        return "%s"

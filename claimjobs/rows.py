"""Rows as the driver gave them, which become values when somebody asks for them.

A handler reads some columns of a job, rarely all. What a driver and a type make of each of them, a dozen for every job,
is most of what a client spends on a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.job import Job
from claimjobs.roles import Roles

Convert = Callable[[Any], Any] | None
AS_IT_IS: Mapping[str, Any] = MappingProxyType({})


class Row(Mapping[str, Any]):
    """A row of a table: its columns by name, in the table's order."""

    __slots__ = ("_given", "_known", "_makers")

    def __init__(self, makers: Mapping[str, tuple[int, Convert]], given: Sequence[Any], known: dict[str, Any]) -> None:
        """`makers`: where in `given` each column stands, and what makes its value; `known`: values that are made."""
        self._makers = makers
        self._given = given
        self._known = known

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        place, convert = self._makers[name]
        value = self._given[place]
        if convert is not None and value is not None:
            value = convert(value)
        self._known[name] = value  # also so that a value that can be changed stays the same one
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Reader:
    """Makes jobs of the rows that a statement returns of a table's `columns`; it returns others before and after."""

    def __init__(self, roles: Roles, dialect: Dialect, known: Sequence[str] = ()) -> None:
        """`known`: names of columns that need not be read: whoever makes a job says what they hold."""
        self._roles = roles
        self._dialect = dialect
        self._known = frozenset(known)
        self.read = [column for column in roles.table.columns if column.name not in self._known]
        self.width = len(self.read)
        self._makers: dict[str, tuple[int, Convert]] = {}
        self._keys: list[tuple[int, Convert]] = []

    def all(self, result: sa.CursorResult[Any], before: int = 0) -> Sequence[Any]:
        """All rows of a result, in which so many columns stand before those of the table."""
        if not self._makers:
            self._learn(result, before)
        return result.all()

    def job(self, given: Sequence[Any], marked: Mapping[str, Any] = AS_IT_IS) -> Job:
        """The job of a row, cut to `columns`; with `marked` values of columns that are known or were changed since."""
        parts = [given[place] if make is None else make(given[place]) for place, make in self._keys]
        return Job(parts[0] if len(parts) == 1 else tuple(parts), Row(self._makers, given, dict(marked)))

    def _learn(self, result: sa.CursorResult[Any], before: int) -> None:
        assert result.cursor is not None  # noqa: S101 - it returns rows
        described = result.cursor.description[before:]
        places = {column.name: place for place, column in enumerate(self.read)}
        here = result.dialect
        makers: dict[str, tuple[int, Convert]] = {}
        for column in self._roles.table.columns:
            place = places.get(column.name, -1)
            makers[column.name] = place, None if place < 0 else self._maker(column, here, described[place][1])
        self._keys = [makers[column.name] for column in self._roles.key]
        self._makers = makers

    def _maker(self, column: sa.Column[Any], here: sa.Dialect, code: Any) -> Convert:
        """What makes a value of what the driver gives for it."""
        type_ = column.type.dialect_impl(here).result_processor(here, code)
        lean = self._dialect.from_lean(column)
        if lean is None or type_ is None:
            return lean or type_
        return lambda given: type_(lean(given))

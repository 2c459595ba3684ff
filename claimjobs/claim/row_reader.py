"""Makes jobs of rows. A value is converted when it is read.

A handler rarely reads all columns of a job. To convert a dozen values for every job would be most of a client's work
for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import key_unreadable
from claimjobs.job import Convert, Job, PartlyRead, RowLayout, UnreadableValue
from claimjobs.statements.claim import encoded, parts_of
from claimjobs.table.roles import ColumnRoles

Marked = Mapping[str, Any]
"""Values that a claim writes into its jobs, by column."""
UNMARKED: Final[Marked] = MappingProxyType({})


class RowReader:
    """Makes jobs of the rows of a statement that returns `columns`. Other columns may stand before and after these."""

    def __init__(self, roles: ColumnRoles, dialect: Dialect, known: Sequence[str] = (), before: int = 0) -> None:
        """`known`: names of columns that are not read: `jobs` is given their values. `before`: how many columns stand
        before `columns`.
        """
        self._roles, self._dialect, self._before = roles, dialect, before
        columns = [column for column in roles.table.columns if column.name not in known]
        self.parts = parts_of(columns, dialect, roles)
        self._first_joined = next(iter(self.parts.joined), None)
        self.knows_columns = False
        """Whether `describe` was called."""
        self._layout: RowLayout = {}
        self._key: Callable[[Sequence[Any]], Any] = tuple
        self._marked: Marked = UNMARKED
        self._marked_layout: RowLayout = {}

    @property
    def columns(self) -> list[sa.ColumnElement[Any]]:
        """The columns to SELECT or to return."""
        return encoded(self.parts, self._dialect)

    def fetch(self, cursor: Any) -> Sequence[Any]:
        return self._dialect.fetched(cursor)

    def jobs(self, rows: Sequence[Sequence[Any]], marked: Marked = UNMARKED) -> list[Job]:
        """The jobs of these rows. `marked`: the values of known columns, and of columns that were changed since.

        Raises KeyUnfit. A value of another column that cannot be converted raises Unreadable when it is read.
        """
        if marked is not self._marked:  # all jobs of an owner have the same mapping
            constant = {name: (0, _always(value)) for name, value in marked.items()}
            self._marked, self._marked_layout = marked, {**self._layout, **constant}
        layout = self._marked_layout if marked else self._layout
        every = [layout] * len(rows)
        if PartlyRead in map(type, rows):
            every = [layout if type(row) is not PartlyRead else self._partly(row, layout) for row in rows]
        try:
            keys = list(map(self._key, rows))
        except Exception as error:
            raise key_unreadable(self._roles.name, str(error)) from error
        return list(map(Job, keys, rows, repeat(None), every))

    def _partly(self, row: PartlyRead, layout: RowLayout) -> RowLayout:
        """The layout of a row in which some values cannot be converted. Raises KeyUnfit if the key is one."""
        for part in (row[self._layout[column.name][0]] for column in self._roles.key):
            if isinstance(part, UnreadableValue):
                raise key_unreadable(self._roles.name, part.text)
        unread = {name for name, (index, _) in layout.items() if isinstance(row[index], UnreadableValue) and index >= 0}
        return {name: (index, _refuse if name in unread else make) for name, (index, make) in layout.items()}

    def is_none(self, row: Sequence[Any]) -> bool:
        """Whether the row has no job: an outer join leaves the columns of the job NULL."""
        return row[self._layout[self._roles.key[0].name][0]] is None

    def group_sizes(self, rows: Sequence[Sequence[Any]]) -> list[int]:
        """The size of each job's group of suspects."""
        suspect = self._roles.suspect
        if suspect is None:
            return [0 for _ in rows]
        index, make = self._layout[suspect.name]
        if suspect is self._first_joined and {row[index][:2] for row in rows} <= {"0,", "0"}:
            return [0] * len(rows)  # mostly no row is a suspect, and no text need be split to know that
        return [row[index] or 0 for row in rows] if make is None else [make(row[index]) or 0 for row in rows]

    def describe(self, here: sa.Dialect, described: Sequence[Any]) -> None:
        """Learn how to convert the columns of a result, the first time."""
        if self.knows_columns:
            return
        columns: dict[str, tuple[int, Convert]] = {column.name: (-1, None) for column in self._roles.table.columns}
        for index, column in enumerate(self.parts.plain, self._before):
            convert = column.type.dialect_impl(here).result_processor
            columns[column.name] = index, self._dialect.decoder(column) or convert(here, described[index][1])
        index = self._before + len(self.parts.plain)
        for number, column in enumerate(self.parts.joined):
            make, convert = self._dialect.from_text(column), column.type.dialect_impl(here).result_processor
            if make is not None:
                columns[column.name] = index, _splitter(number, make, convert(here, described[index][1]))
        readers = [_reader(*columns[column.name]) for column in self._roles.key]
        self._layout = columns
        self._key = readers[0] if len(readers) == 1 else lambda row: tuple(read(row) for read in readers)
        self.knows_columns = True  # at last: another thread may have rows for this reader


def _splitter(number: int, make: Callable[[str], Any], convert: Convert) -> Callable[[str], Any]:
    """What reads the value with this number from a joined text. An empty value is NULL."""

    def value(joined: str) -> Any:
        text = joined.split(",", number + 1)[number]
        found = make(text) if text else None
        return found if convert is None else convert(found)

    return value


def _refuse(unread: UnreadableValue) -> Any:
    raise ValueError(unread.text)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _reader(index: int, make: Convert) -> Callable[[Sequence[Any]], Any]:
    return itemgetter(index) if make is None else lambda row: make(row[index])

"""Rows to insert: in chunks of one shape; and why a row does not fit, as far as that is known without the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.errors import BadRow
from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.roles import ColumnRoles
from claimjobs.table.values import is_sql

Row = Mapping[str, Any]

ROWS_PER_CHUNK: Final = 1_000
"""The most rows of one chunk."""
MEANINGS: Final = {
    "owner_id": "who holds a job",
    "owner_date": "since when a job is claimed, done or dead",
    "attempts": "how often a job has failed",
    "suspect": "whether a job is suspect",
    "run_again": "whether a job runs once more",
}
"""What the reserved columns say. A new row must not set them, or its job would never run."""
FRESH: Final = {"attempts": (None, 0, "0"), "suspect": (None, 0, "0"), "run_again": (None, 0, "0", False)}
"""The values that a row may have in them, because a new job has them anyway. In the other columns: NULL."""


@dataclass(frozen=True)
class Chunk:
    """Rows of one shape, and the number of each. A chunk is inserted, or undone, as a whole."""

    numbers: Sequence[int]
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def halves(self) -> tuple[Chunk, Chunk]:
        middle = len(self) // 2
        return Chunk(self.numbers[:middle], self.rows[:middle]), Chunk(self.numbers[middle:], self.rows[middle:])

    def only(self, keep: Sequence[bool]) -> Chunk:
        """The rows for which `keep` has True."""
        return Chunk(list(compress(self.numbers, keep)), list(compress(self.rows, keep)))


def chunks(rows: Iterable[Any], roles: ColumnRoles, most: float, *, end_at_bad: bool) -> Iterator[Chunk | BadRow]:
    """Rows in their order, in chunks of one shape, which one statement inserts, of at most so many; and each row that
    does not fit.

    `end_at_bad`: all rows before the first one that does not fit come before it, because one of them may be bad, too.
    """
    check = RowCheck(roles)
    numbers: list[int] = []
    alike: list[Row] = []
    shape: frozenset[str] = frozenset()
    reserved: Sequence[str] = ()
    for number, row in enumerate(rows, 1):
        same = (type(row) is dict or isinstance(row, Mapping)) and row.keys() == shape
        misfit, names = (None, reserved) if same else check.columns(row)
        misfit = misfit or check.flaw(row, names)
        is_full = end_at_bad if misfit else not same or len(alike) >= most
        if alike and is_full:
            yield Chunk(numbers, alike)
            numbers, alike = [], []
        if misfit:
            yield BadRow(number, misfit, row)
            continue
        if not same:
            shape, reserved = frozenset(row), names
        numbers.append(number)
        alike.append(row)
    if alike:
        yield Chunk(numbers, alike)


class RowCheck:
    """Checks the columns of a row, and its values in the columns that only claimjobs writes."""

    def __init__(self, roles: ColumnRoles) -> None:
        self._roles = roles
        self._status = None if roles.status is None else roles.status.key
        found = {role: getattr(roles, role) for role in MEANINGS}
        if roles.owner_date is not None and not roles.owner_date.nullable:
            del found["owner_date"]  # it is the date of the last change
        self._role_of = {column.key: role for role, column in found.items() if column is not None}
        self._types: set[type[Any]] = set()
        """Types of values that are no SQL."""

    def columns(self, row: Any) -> tuple[str | None, Sequence[str]]:
        """Why rows with these columns do not fit, or None; and the columns whose values must be checked."""
        if not isinstance(row, Mapping):
            return f"{row!r} is no mapping of column names to values", ()
        unknown = [name for name in row if not (isinstance(name, str) and name in self._roles.table.c)]
        if unknown:
            has = ", ".join(self._roles.columns)
            return f"table {self._roles.name!r} has no column {unknown[0]!r}: it has {has}", ()
        return None, [name for name in row if name in self._role_of or name == self._status]

    def flaw(self, row: Row, names: Sequence[str]) -> str | None:
        """Why the values forbid to enqueue the row, those in these reserved columns above all; None: they do not."""
        if not self._types.issuperset(map(type, row.values())):
            for name, value in row.items():
                if is_sql(value, self._roles.table.c[name].type):
                    return f"column {name!r} is given SQL: give it a value"
                if not isinstance(value, sa.Null):  # it is a value for some columns only
                    self._types.add(type(value))
        for name in names:
            value = row[name]
            if name == self._status:
                if state := self._roles.state.meant_by(value):
                    fresh = self._roles.state.values[UNCLAIMED]
                    means = f"{value!r} in column {name!r} means that a job is {state}"
                    return f"{means}: leave it out, or give {fresh!r}"
            elif value not in FRESH.get(role := self._role_of[name], (None,)):
                return f"column {name!r} says {MEANINGS[role]}, and only claimjobs writes it: leave it out"
        return None

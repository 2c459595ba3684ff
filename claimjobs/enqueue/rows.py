"""Rows to insert: in chunks of one shape; and why a row does not fit, as far as that is known without the database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import BadRow
from claimjobs.table.acceptance import integer_range
from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.roles import ColumnRoles

Row = Mapping[str, Any]

AT_ONCE: Final = 1_000
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

SMALL: Final = 100_000
"""Characters and bytes of a row that fits everywhere, however they are encoded and escaped."""
_HEAD: Final = 1_000
"""Bytes for the rest of the statement."""
_ESCAPED: Final = "'\"\\\n\r\0\x1a"


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


def chunks(rows: Iterable[Any], roles: ColumnRoles, *, end_at_bad: bool) -> Iterator[Chunk | BadRow]:
    """Rows in their order, in chunks of one shape, which one statement inserts; and each row that does not fit.

    `end_at_bad`: all rows before the first one that does not fit come before it, because one of them may be bad, too.
    """
    check = RowCheck(roles)
    numbers: list[int] = []
    alike: list[Row] = []
    shape: frozenset[str] = frozenset()
    reserved: Sequence[str] = ()
    for number, row in enumerate(rows, 1):
        same = (type(row) is dict or isinstance(row, Mapping)) and row.keys() == shape
        misfit = None if same else check.misfit(row)
        names = reserved if same or misfit else check.reserved(row)
        misfit = misfit or check.flaw(row, names)
        is_full = end_at_bad if misfit else not same or len(alike) == AT_ONCE
        if alike and is_full:
            yield Chunk(numbers, alike)
            numbers, alike = [], []
        if misfit:
            yield BadRow(number, misfit, row)
            continue
        shape, reserved = (shape, reserved) if same else (frozenset(row), names)
        numbers.append(number)
        alike.append(row)
    if alike:
        yield Chunk(numbers, alike)


class RepeatableRows:
    """Rows that can be iterated over several times, even if their source gives them only once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rest = iter(rows)
        self._seen: list[Row] = []
        self.broken = False
        """Whether the source raised an error. The rows after it are unknown."""

    def __iter__(self) -> Iterator[Row]:
        yield from self._seen
        try:
            for row in self._rest:
                self._seen.append(row)
                yield row
        except Exception:
            self.broken = True
            raise


# --- without the database ------------------------------------------------------------------------------------


class RowCheck:
    """Checks the columns of a row, and its values in the columns that only claimjobs writes."""

    def __init__(self, roles: ColumnRoles) -> None:
        self._roles = roles
        self._status = None if roles.status is None else roles.status.key
        found = {role: getattr(roles, role) for role in MEANINGS}
        if roles.owner_date is not None and not roles.owner_date.nullable:
            del found["owner_date"]  # it is the date of the last change
        self._role_of = {column.key: role for role, column in found.items() if column is not None}

    def misfit(self, row: Any) -> str | None:
        """Why rows with these columns do not fit; None: they do."""
        if not isinstance(row, Mapping):
            return f"{row!r} is no mapping of column names to values"
        unknown = [name for name in row if name not in self._roles.table.c]
        if unknown:
            return f"table {self._roles.name!r} has no column {unknown[0]!r}: it has {', '.join(self._roles.columns)}"
        return None

    def reserved(self, row: Row) -> Sequence[str]:
        """The columns of this row whose values must be checked."""
        return [name for name in row if name in self._role_of or name == self._status]

    def flaw(self, row: Row, names: Sequence[str]) -> str | None:
        """Why the values in these reserved columns forbid to enqueue the row; None: they do not."""
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


# --- values --------------------------------------------------------------------------------------------------


def culprit(row: Row, table: sa.Table) -> str | None:
    """The first column that cannot hold its value, and why: some databases say only that a value is too large. None:
    only the database can tell.
    """
    for name, value in row.items():
        if name in table.c and (flaw := misfit(table.c[name].type, value)):
            return f"column {name!r}: {flaw}"
    return None


def misfit(type_: sa.types.TypeEngine[Any], value: Any) -> str | None:
    """Why a column of this type cannot hold a value, as far as that is known without the database."""
    if isinstance(value, str) and "\0" in value:
        return "it cannot hold a text with a NUL character"
    if isinstance(value, str) and (halves := [one for one in value if "\ud800" <= one <= "\udfff"]):
        return f"{halves[0]!r} is half a character"
    if not isinstance(value, int) or isinstance(value, bool) or not isinstance(type_, sa.Integer):
        return None
    least, most = integer_range(type_)
    return None if least <= value <= most else f"{value} is out of its range, {least} to {most}"


class RowSizes:
    """Refuses a row that is larger than the largest statement that the server takes, before it is sent.

    Some servers answer such a statement by closing the connection. The driver says then that it was lost, which looks
    like an outage, and the caller's transaction is gone.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._sessions = dialect.sessions
        self._largest: int | None = None

    def check(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Raise ValueError if a row is too large for a statement of its own."""
        if self._sessions.statement_limit is None:
            return
        for row in rows:
            if sum(map(_length, row.values())) > SMALL:
                if self._largest is None:
                    self._largest = self._sessions.largest_statement(connection)
                size = _HEAD + sum(map(_bytes, row.values()))
                if size > self._largest:
                    raise ValueError(
                        f"it has {size:,} bytes in a statement, and the server takes {self._largest:,} "
                        f"({self._sessions.statement_limit}): store a reference to the data, or raise that limit"
                    )


def _length(value: Any) -> int:
    """Characters or bytes of a value, as far as it is cheap to know; 0 for numbers and instants."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    return len(str(value)) if isinstance(value, (dict, list, tuple)) else 0


def _bytes(value: Any) -> int:
    """The bytes of a value in a statement, about."""
    if isinstance(value, (bytes, bytearray)):
        return len(value) + sum(value.count(character.encode()) for character in _ESCAPED)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return len(text.encode(errors="replace")) + sum(map(text.count, _ESCAPED))

"""Enqueue: rows into the table in bulk, inside one transaction, whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.database.savepoint import savepoint
from claimjobs.dialects import Dialect
from claimjobs.enqueue.bulk_insert import FEW, Prepared, Row, prepared
from claimjobs.enqueue.reserved import Reserved
from claimjobs.errors import BadRow
from claimjobs.statements.insert import produce
from claimjobs.table.roles import Roles
from claimjobs.table.value_ranges import culprit

OnBad = Callable[[BadRow], None]
Undo = Callable[[sa.Connection], AbstractContextManager[None]]
"""A `with` block that is undone alone if it raises."""

AT_ONCE = 1_000
"""Rows handed to the driver at once, and undone together: many enough that the cost is that of the rows."""

UNSENDABLE = (TypeError, ValueError, OverflowError)
"""What drivers raise for a value that they cannot send at all."""


@dataclass(frozen=True)
class Chunk:
    """Rows of one shape, and the number of each."""

    numbers: Sequence[int]
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        return zip(self.numbers, self.rows, strict=True)

    def part(self, places: slice) -> Chunk:
        """Some of them, next to each other."""
        return Chunk(self.numbers[places], self.rows[places])

    def only(self, wanted: Callable[[Row], bool]) -> Chunk:
        """Those that are wanted."""
        kept = [(number, row) for number, row in self if wanted(row)]
        return Chunk([number for number, _ in kept], [row for _, row in kept])


def enqueue(
    connection: sa.Connection,
    roles: Roles,
    dialect: Dialect,
    rows: Row | Iterable[Row],
    *,
    on_bad: OnBad | None = None,
    inserting: Inserting | None = None,
    undo: Undo = savepoint,
) -> int:
    """Insert rows in the transaction of `connection`, the way of `inserting`; return how many.

    Raises BadRow, with the number of the row, for the first one that does not fit; what was inserted before it
    stays in the transaction, for the caller to commit or not. With `on_bad` that is called instead, for each row
    that does not fit, and all others are inserted. `undo` takes back a chunk that was refused.
    """
    several = [rows] if isinstance(rows, Mapping) else rows
    tell = on_bad or _give_up
    insert = (inserting or Insert)(connection, roles, dialect, tell)
    insert.undo = undo
    return sum(map(insert, _chunks(several, roles, tell)))


def _give_up(bad: BadRow) -> None:
    raise bad


def _chunks(rows: Iterable[Any], roles: Roles, on_bad: OnBad) -> Iterator[Chunk]:
    """Rows in their order, cut where their shape changes: one statement inserts rows of one shape."""
    numbers: list[int] = []
    alike: list[Row] = []
    shape: frozenset[str] = frozenset()
    reserved = Reserved(roles)
    ours: Collection[str] = ()
    try:
        for number, row in enumerate(rows, 1):
            same = (type(row) is dict or isinstance(row, Mapping)) and row.keys() == shape
            misfit = None if same else _misfit(row, roles)
            looked_at = ours if same or misfit else reserved.among(row)
            if misfit := misfit or reserved.misfit(row, looked_at):
                on_bad(BadRow(number, misfit, row))
                continue
            if alike and (not same or len(alike) == AT_ONCE):
                yield Chunk(numbers, alike)
                numbers, alike = [], []
            shape, ours = (shape, ours) if same else (frozenset(row), looked_at)
            numbers.append(number)
            alike.append(row)
    except BadRow:
        if alike:  # rows before a bad one are tried before it is told: one of them may be the first
            yield Chunk(numbers, alike)
        raise
    if alike:
        yield Chunk(numbers, alike)


def _misfit(row: Any, roles: Roles) -> str | None:
    """What can be known without asking the database."""
    if not isinstance(row, Mapping):
        return f"{row!r} is no mapping of column names to values"
    unknown = [name for name in row if name not in roles.table.c]
    if unknown:
        return f"table {roles.name!r} has no column {unknown[0]!r}: it has {', '.join(roles.columns)}"
    return None


class Insert:
    """Inserts chunks; finds the rows that a refused chunk was refused for."""

    def __init__(self, connection: sa.Connection, roles: Roles, dialect: Dialect, on_bad: OnBad) -> None:
        self.undo: Undo = savepoint
        self._connection = connection
        self._statement = produce(roles)
        self._table = roles.table
        self._dialect = dialect
        self._on_bad = on_bad
        self._prepared: dict[frozenset[str], Prepared | None] = {}

    def __call__(self, chunk: Chunk) -> int:
        """Insert a chunk; how many rows came in."""
        came = self._try(chunk)
        return came if isinstance(came, int) else self._refused(chunk, came)

    def _try(self, chunk: Chunk) -> int | Exception:
        """Insert a chunk, or nothing of it: then the reason. Errors that are no row's fault are raised."""
        try:
            with self.undo(self._connection):
                return self._insert(chunk.rows)
        except (sa.exc.StatementError, *UNSENDABLE) as error:
            if isinstance(error, sa.exc.DBAPIError) and not self._is_rows_fault(error):
                raise
            return error

    def _insert(self, rows: Sequence[Row]) -> int:
        if statement := self._prepare(rows):
            statement.run(self._connection, rows, self._dialect.joins_rows)
        else:
            self._connection.execute(self._statement, [dict(row) for row in rows])
        return len(rows)

    def _prepare(self, rows: Sequence[Row]) -> Prepared | None:
        if len(rows) < FEW:
            return None
        shape = frozenset(rows[0])
        if shape not in self._prepared:
            self._prepared[shape] = prepared(self._connection, self._statement, rows[0])
        return self._prepared[shape]

    def _refused(self, chunk: Chunk, refusal: Exception) -> int:
        """Of a chunk that was refused insert the halves; one row that is refused is bad."""
        if len(chunk) > 1:
            half = len(chunk) // 2
            return self(chunk.part(slice(half))) + self(chunk.part(slice(half, None)))
        row = chunk.rows[0]
        bad = BadRow(chunk.numbers[0], culprit(row, self._table) or reason(refusal), row)
        bad.__cause__ = refusal
        self._on_bad(bad)
        return 0

    def _is_rows_fault(self, error: sa.exc.DBAPIError) -> bool:
        code = self._dialect.error_code(error)
        never_sent = code is None and isinstance(error, (sa.exc.DataError, sa.exc.ProgrammingError))
        return self._dialect.refuses_row(error) or never_sent


Inserting = Callable[[sa.Connection, Roles, Dialect, OnBad], Insert]

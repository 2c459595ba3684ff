"""Enqueue: rows into the table in bulk, inside one transaction, whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import BadRow
from claimjobs.roles import Roles
from claimjobs.savepoint import savepoint
from claimjobs.statements.produce import produce
from claimjobs.translate import reason

Row = Mapping[str, Any]
Numbered = tuple[int, Row]
OnBad = Callable[[BadRow], None]

AT_ONCE = 1_000
"""Rows handed to the driver at once, and undone together: many enough that the cost is that of the rows."""

UNSENDABLE = (TypeError, ValueError, OverflowError)
"""What drivers raise for a value that they cannot send at all."""


def enqueue(
    connection: sa.Connection,
    roles: Roles,
    dialect: Dialect,
    rows: Row | Iterable[Row],
    *,
    on_bad: OnBad | None = None,
    inserting: Inserting | None = None,
) -> int:
    """Insert rows in the transaction of `connection`, the way of `inserting`; return how many.

    Raises BadRow, with the number of the row, for the first one that does not fit; what was inserted before it
    stays in the transaction, for the caller to commit or not. With `on_bad` that is called instead, for each row
    that does not fit, and all others are inserted.
    """
    several = [rows] if isinstance(rows, Mapping) else rows
    insert = (inserting or Insert)(connection, roles, dialect, on_bad or _give_up)
    return sum(insert(chunk) for chunk in _chunks(_checked(several, roles, on_bad or _give_up)))


def _give_up(bad: BadRow) -> None:
    raise bad


def _checked(rows: Iterable[Any], roles: Roles, on_bad: OnBad) -> Iterator[Numbered]:
    for number, row in enumerate(rows, 1):
        if misfit := _misfit(row, roles):
            on_bad(BadRow(number, misfit, row))
        else:
            yield number, row


def _misfit(row: Any, roles: Roles) -> str | None:
    """What can be known without asking the database."""
    if not isinstance(row, Mapping):
        return f"{row!r} is no mapping of column names to values"
    unknown = [name for name in row if name not in roles.table.c]
    if unknown:
        return f"table {roles.name!r} has no column {unknown[0]!r}: it has {', '.join(roles.columns)}"
    return None


def _chunks(numbered: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Rows in their order, cut where their shape changes: one statement inserts rows of one shape."""
    chunk: list[Numbered] = []
    try:
        for item in numbered:
            if chunk and (len(chunk) == AT_ONCE or item[1].keys() != chunk[0][1].keys()):
                yield chunk
                chunk = []
            chunk.append(item)
    except BadRow:
        if chunk:  # rows before a bad one are tried before it is told: one of them may be the first
            yield chunk
        raise
    if chunk:
        yield chunk


class Insert:
    """Inserts chunks; finds the rows that a refused chunk was refused for."""

    def __init__(self, connection: sa.Connection, roles: Roles, dialect: Dialect, on_bad: OnBad) -> None:
        self._connection = connection
        self._statement = produce(roles)
        self._dialect = dialect
        self._on_bad = on_bad

    def __call__(self, chunk: list[Numbered]) -> int:
        """Insert a chunk; how many rows came in."""
        came = self._try(chunk)
        return came if isinstance(came, int) else self._refused(chunk, came)

    def _try(self, chunk: list[Numbered]) -> int | Exception:
        """Insert a chunk, or nothing of it: then the reason. Errors that are no row's fault are raised."""
        try:
            with savepoint(self._connection):
                return self._insert([dict(row) for _, row in chunk])
        except (sa.exc.StatementError, *UNSENDABLE) as error:
            if isinstance(error, sa.exc.DBAPIError) and not self._is_rows_fault(error):
                raise
            return error

    def _insert(self, rows: list[dict[str, Any]]) -> int:
        self._connection.execute(self._statement, rows)
        return len(rows)

    def _refused(self, chunk: list[Numbered], refusal: Exception) -> int:
        """Of a chunk that was refused insert the halves; one row that is refused is bad."""
        if len(chunk) > 1:
            half = len(chunk) // 2
            return self(chunk[:half]) + self(chunk[half:])
        bad = BadRow(chunk[0][0], reason(refusal), chunk[0][1])
        bad.__cause__ = refusal
        self._on_bad(bad)
        return 0

    def _is_rows_fault(self, error: sa.exc.DBAPIError) -> bool:
        code = self._dialect.error_code(error)
        never_sent = code is None and isinstance(error, (sa.exc.DataError, sa.exc.ProgrammingError))
        return code in self._dialect.bad_row or never_sent


Inserting = Callable[[sa.Connection, Roles, Dialect, OnBad], Insert]

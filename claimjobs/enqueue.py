"""Enqueue: rows into the table in bulk, inside one transaction, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.errors import BadRow
from claimjobs.roles import Roles
from claimjobs.statements.produce import produce
from claimjobs.translate import reason

Row = Mapping[str, Any]
Numbered = tuple[int, Row]

AT_ONCE = 1_000
"""Rows of one statement: large enough that its cost is that of the rows, small enough for any packet limit."""


def enqueue(connection: sa.Connection, roles: Roles, dialect: Dialect, rows: Row | Iterable[Row]) -> int:
    """Insert rows in the transaction of `connection`; return how many.

    Raises BadRow, with the number of the row, for the first one that does not fit; what was inserted before it
    stays in the transaction, for the caller to commit or not.
    """
    several = [rows] if isinstance(rows, Mapping) else rows
    numbered = ((number, _checked(number, row, roles)) for number, row in enumerate(several, 1))
    insert = _Insert(connection, roles, dialect)
    return sum(insert(chunk) for chunk in _chunks(numbered))


def _checked(number: int, row: Any, roles: Roles) -> Row:
    if not isinstance(row, Mapping):
        raise BadRow(number, f"{row!r} is no mapping of column names to values")
    unknown = [name for name in row if name not in roles.table.c]
    if unknown:
        raise BadRow(number, f"table {roles.name!r} has no column {unknown[0]!r}: it has {', '.join(roles.columns)}")
    return row


def _chunks(numbered: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Rows in their order, cut where their shape changes: one statement inserts rows of one shape."""
    for _, alike in groupby(numbered, key=lambda item: frozenset(item[1])):
        while chunk := list(islice(alike, AT_ONCE)):
            yield chunk


class _Insert:
    """Inserts chunks; finds the row that a refused chunk was refused for."""

    def __init__(self, connection: sa.Connection, roles: Roles, dialect: Dialect) -> None:
        self._connection = connection
        self._statement = produce(roles)
        self._dialect = dialect

    def __call__(self, chunk: list[Numbered]) -> int:
        refusal = self._refusal(chunk)
        if refusal is not None:
            raise self._first_bad(chunk, refusal) from refusal
        return len(chunk)

    def _refusal(self, chunk: list[Numbered]) -> sa.exc.StatementError | None:
        """Insert a chunk, or nothing of it: then the reason. Errors that are no row's fault are raised."""
        try:
            # The savepoint keeps the caller's transaction usable after a row that does not fit.
            with self._connection.begin_nested():
                self._connection.execute(self._statement, [dict(row) for _, row in chunk])
        except sa.exc.StatementError as error:
            if isinstance(error, sa.exc.DBAPIError) and self._dialect.error_code(error) not in self._dialect.bad_row:
                raise
            return error  # refused by the database, or (no DBAPIError) a value that could not even be sent
        return None

    def _first_bad(self, chunk: list[Numbered], refusal: sa.exc.StatementError) -> BadRow:
        """Insert halves until one row is left: that one. The good rows before it stay inserted."""
        while len(chunk) > 1:
            first, second = chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]
            refused = self._refusal(first)
            chunk, refusal = (second, refusal) if refused is None else (first, refused)
        return BadRow(chunk[0][0], reason(refusal))

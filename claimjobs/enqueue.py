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
    return sum(_insert(connection, roles, dialect, chunk) for chunk in _chunks(numbered))


def _checked(number: int, row: Any, roles: Roles) -> Row:
    if not isinstance(row, Mapping):
        raise BadRow(number, f"{row!r} is no mapping of column names to values")
    unknown = [name for name in row if name not in roles.table.c]
    if unknown:
        has = ", ".join(roles.table.c.keys())
        raise BadRow(number, f"table {roles.name!r} has no column {unknown[0]!r}: it has {has}")
    return row


def _chunks(numbered: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Rows in their order, cut where their shape changes: one statement inserts rows of one shape."""
    for _, alike in groupby(numbered, key=lambda item: frozenset(item[1])):
        while chunk := list(islice(alike, AT_ONCE)):
            yield chunk


def _insert(connection: sa.Connection, roles: Roles, dialect: Dialect, chunk: list[Numbered]) -> int:
    try:
        _insert_or_undo(connection, roles, chunk)
    except sa.exc.StatementError as error:
        if not _is_bad_row(dialect, error):
            raise
        raise _first_bad(connection, roles, dialect, chunk, error) from error
    return len(chunk)


def _insert_or_undo(connection: sa.Connection, roles: Roles, chunk: list[Numbered]) -> None:
    # The savepoint keeps the caller's transaction usable after a row that does not fit.
    with connection.begin_nested():
        connection.execute(produce(roles), [dict(row) for _, row in chunk])


def _first_bad(
    connection: sa.Connection, roles: Roles, dialect: Dialect, chunk: list[Numbered], error: Exception
) -> BadRow:
    """Which row of a refused chunk it was: insert halves until one row is left. The good ones before it stay."""
    while len(chunk) > 1:
        half = chunk[: len(chunk) // 2]
        try:
            _insert_or_undo(connection, roles, half)
            chunk = chunk[len(half) :]
        except sa.exc.StatementError as refused:
            if not _is_bad_row(dialect, refused):
                raise
            chunk, error = half, refused
    return BadRow(chunk[0][0], reason(error))


def _is_bad_row(dialect: Dialect, error: sa.exc.StatementError) -> bool:
    """The database refused a value, or (no DBAPIError) a value could not even be sent."""
    return not isinstance(error, sa.exc.DBAPIError) or dialect.error_code(error) in dialect.bad_row

"""A unique key: rows whose values of its columns are in the table already are left out of an enqueue."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.enqueue.rows import Chunk, Row
from claimjobs.errors import ColumnMissing, UnfitTable, unique_index
from claimjobs.instants import in_utc
from claimjobs.statements import insert as statements
from claimjobs.table.definitions import not_unique_by
from claimjobs.table.roles import ColumnRoles, is_whole


class UniqueKey:
    """Columns with a unique index over them."""

    def __init__(self, connection: sa.Connection, roles: ColumnRoles, names: tuple[str, ...], dialect: Dialect) -> None:
        """Raises ColumnMissing, BadArgument for a column that claimjobs writes, or UnfitTable with the statement that
        creates the index.
        """
        for name in names:
            if name not in roles.table.c:
                raise ColumnMissing(roles.name, name, "enqueueing by a unique key", roles.quote)
            if roles.table.c[name] not in (*roles.key, *roles.payload):
                raise not_unique_by(roles.name, name)
        self.columns = columns = tuple(roles.table.c[name] for name in names)
        self._names, self._table, self._errors = tuple(column.name for column in columns), roles.table, dialect.errors
        self._indexes = _unique_indexes(connection, roles.table, set(names), dialect.primary)
        if not self._indexes:
            raise UnfitTable(
                f"table {roles.name!r} has no unique index over {', '.join(names)}, so nothing keeps a second such job "
                f"out: {unique_index(roles.name, names, roles.quote)}"
            )
        self._there = statements.there(roles, dialect, columns)
        self.insert: sa.Insert = statements.insert_rows(roles)
        """The statement that inserts rows: it leaves out those that are there, or it is refused."""
        if dialect.skips_duplicates:
            self.insert = statements.insert_new(roles, dialect, columns)

    def missing_in(self, row: Row) -> str | None:
        """The first column of the key that rows of this shape lack."""
        return next((name for name in self._names if name not in row), None)

    def distinct(self, chunk: Chunk, *, keeps_last: bool) -> Chunk:
        """The first row of each key, or the last. Only the database finds rows that are equal by its collation."""
        seen: set[Hashable] = set()
        new: list[bool] = []
        step = -1 if keeps_last else 1
        for values in map(self._values, chunk.rows[::step]):
            new.append(values is None or values not in seen)
            seen.add(values)
        return chunk.only(new[::step])

    def new_ones(self, connection: sa.Connection, chunk: Chunk, refusal: Exception) -> Chunk:
        """The rows that are not in the table, as far as Python can tell, of a chunk that was refused for a duplicate.

        The rows that are there get a shared lock. Only keys that a plain read found are locked: a locking read of other
        keys locks the gaps into which other producers insert. A single row is there if the key refused it. A look-up
        would not find one that was deleted since, nor a value that the column rounds or trims.
        """
        if len(chunk) == 1:
            return chunk.only([self._errors.refusing_index(refusal, self._table.name) not in self._indexes])
        seen = self._read(connection, self._there, [self.given(row) for row in chunk.rows if self._values(row)])
        found = set(map(self.comparable, self._read(connection, self._there.with_for_update(read=True), seen)))
        return chunk.only([self._values(row) not in found for row in chunk.rows])

    def _read(
        self, connection: sa.Connection, statement: sa.Select[Any], values: list[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        keys = [each if len(each) > 1 else each[0] for each in values]
        return [tuple(row) for row in connection.execute(statement, {"values": keys})] if keys else []

    def given(self, row: Row) -> tuple[Any, ...]:
        """The values of the key in a row."""
        return tuple(row[name] for name in self._names)

    def _values(self, row: Row) -> Hashable:
        """The values that Python compares; None where a value is NULL, because NULL equals nothing, or has no hash."""
        given = self.given(row)
        return None if None in given else self.comparable(given)

    @staticmethod
    def comparable(values: Iterable[Any]) -> Hashable:
        """The values, with instants in UTC, because not every column keeps the zone; None if a value has no hash."""
        plain = tuple(in_utc(value) if isinstance(value, datetime) else value for value in values)
        return plain if all(isinstance(value, Hashable) for value in plain) else None


def _unique_indexes(
    connection: sa.Connection, table: sa.Table, columns: set[str], primary: str | None
) -> frozenset[str | None]:
    """The names of the unique indexes over these columns; `primary` is the name of a primary key without one."""
    found, name, schema = sa.inspect(connection), table.name, table.schema
    key = found.get_pk_constraint(name, schema)
    indexes = [index for index in found.get_indexes(name, schema) if index["unique"] and is_whole(index)]
    unique: list[tuple[str | None, Any]] = [
        (key["name"] or primary, key["constrained_columns"]),
        *((one["name"], one["column_names"]) for one in found.get_unique_constraints(name, schema)),
        *((one["name"], one["column_names"]) for one in indexes),
    ]
    return frozenset(index for index, over in unique if set(over) == columns)

"""Inserts rows, without those whose unique key is in the table already."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.enqueue.bulk_insert import Row
from claimjobs.enqueue.insert import Chunk, InsertTarget, PlainInsert
from claimjobs.errors import BadRow, ColumnMissing, NotUnique, not_unique_by, unique_index
from claimjobs.instants import in_utc
from claimjobs.statements import insert as statements
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles, is_whole

KeyValues = tuple[Hashable, ...]


# --- which columns -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UniqueKey:
    """Columns, and the names of the unique indexes over them."""

    columns: tuple[Column, ...]
    indexes: frozenset[str | None]


def unique_key(connection: sa.Connection, roles: ColumnRoles, names: tuple[str, ...], dialect: Dialect) -> UniqueKey:
    """The columns of these names, after a check that the database has a unique index over them.

    Raises ColumnMissing, BadArgument for a column that claimjobs writes, or NotUnique with the statement that creates
    the index.
    """
    columns = tuple(_column(roles, name) for name in names)
    found = _unique_indexes(connection, roles.table, dialect.primary)
    indexes = frozenset(index for index, over in found if set(over) == set(names))
    if not indexes:
        raise NotUnique(
            f"table {roles.name!r} has no unique index over {', '.join(names)}, so nothing keeps a second such job "
            f"out: {unique_index(roles.name, names, roles.quote)}"
        )
    return UniqueKey(columns, indexes)


def _column(roles: ColumnRoles, name: str) -> Column:
    column = roles.table.c.get(name)
    if column is None:
        raise ColumnMissing(roles.name, name, "enqueueing by a unique key", roles.quote)
    if column not in (*roles.key, *roles.payload):
        raise not_unique_by(roles.name, name)
    return column


def _unique_indexes(connection: sa.Connection, table: sa.Table, primary: str | None) -> list[tuple[str | None, Any]]:
    """The name and the columns of each unique index; `primary` is the name of a primary key without one."""
    found, name, schema = sa.inspect(connection), table.name, table.schema
    key = found.get_pk_constraint(name, schema)
    indexes = [index for index in found.get_indexes(name, schema) if index["unique"] and is_whole(index)]
    return [
        (key["name"] or primary, key["constrained_columns"]),
        *((one["name"], one["column_names"]) for one in found.get_unique_constraints(name, schema)),
        *((one["name"], one["column_names"]) for one in indexes),
    ]


# --- inserting -----------------------------------------------------------------------------------------------


class UniqueInsert(PlainInsert):
    """INSERT without the rows whose unique key is in the table."""

    def __init__(self, target: InsertTarget, key: UniqueKey) -> None:
        super().__init__(target)
        roles, dialect = target.roles, target.dialect
        self._names = tuple(column.name for column in key.columns)
        self._indexes = key.indexes
        self._there = statements.there(roles, dialect, key.columns)
        self._still_there = self._there.with_for_update(read=True)
        if dialect.skips_duplicates:
            self._statement = statements.insert_new(roles, dialect, key.columns)

    def insert(self, chunk: Chunk) -> int:
        """Insert a chunk; return how many of its rows were inserted."""
        distinct = self._distinct(self._complete(chunk))
        return super().insert(distinct) if distinct else 0

    def _insert(self, rows: Sequence[Row]) -> int:
        if not self._dialect.skips_duplicates:
            return super()._insert(rows)
        return len(self._connection.execute(self._statement, [dict(row) for row in rows]).all())

    def _complete(self, chunk: Chunk) -> Chunk:
        """The chunk; an empty one if its rows lack a column of the unique key."""
        missing = [name for name in self._names if chunk and name not in chunk.rows[0]]
        for number, row in chunk if missing else ():
            self._on_bad(BadRow(number, f"column {missing[0]!r} of the unique key is missing", row))
        return Chunk([], []) if missing else chunk

    def _distinct(self, chunk: Chunk) -> Chunk:
        """The first row of each unique key. Only the database finds rows that are equal by its collation."""
        seen: set[KeyValues] = set()

        def is_first(row: Row) -> bool:
            values = self._values(row)
            known = values in seen
            if values is not None:
                seen.add(values)
            return not known

        return chunk.only(is_first)

    # --- for databases whose INSERT cannot skip duplicates ---------------------------------------------

    def _refused(self, chunk: Chunk, refusal: Exception) -> int:
        """Insert again, without the rows that are in the table, a chunk that was refused for a duplicate."""
        if self._dialect.errors.code(refusal) not in self._dialect.errors.duplicate:
            return super()._refused(chunk, refusal)
        rest = self._new(chunk) if len(chunk) > 1 else self._single(chunk, refusal)
        return self.insert(rest) if len(rest) < len(chunk) else super()._refused(chunk, refusal)

    def _new(self, chunk: Chunk) -> Chunk:
        """The rows that are not in the table, as far as Python can tell. The rows that are there get a shared lock.

        Only keys that a plain read found are locked: a locking read of other keys locks the gaps into which other
        producers insert.
        """
        seen = self._read(self._there, [self._given(row) for row in chunk.rows if self._values(row) is not None])
        found = {_comparable(values) for values in self._read(self._still_there, seen)}
        return chunk.only(lambda row: self._values(row) not in found)

    def _single(self, chunk: Chunk, refusal: Exception) -> Chunk:
        """A chunk of one row; an empty one if the unique key refused it.

        A look-up would not find a row that was deleted since, nor a value that the column rounds or trims.
        """
        known = self._dialect.errors.refusing_index(refusal, self._roles.table.name) in self._indexes
        return chunk.only(lambda _: not known)

    def _read(self, statement: sa.Select[Any], values: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        keys = [each if len(each) > 1 else each[0] for each in values]
        with self._in_utc():
            return [tuple(row) for row in self._connection.execute(statement, {"values": keys})] if keys else []

    def _given(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._names)

    def _values(self, row: Row) -> KeyValues | None:
        """The values that Python compares; None where a value is NULL, because NULL equals nothing."""
        given = self._given(row)
        return None if None in given else _comparable(given)


def _comparable(values: Iterable[Any]) -> KeyValues | None:
    """The values, with instants in UTC, because not every column keeps the zone; None if a value has no hash."""
    plain = tuple(in_utc(value) if isinstance(value, datetime) else value for value in values)
    return plain if all(isinstance(value, Hashable) for value in plain) else None

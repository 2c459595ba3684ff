"""Unique enqueue: rows whose unique key is in the table already are left out, whoever put it there, and whenever."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.backoff import Backoff
from claimjobs.database.connection import FIRST_PAUSE, LONGEST_PAUSE
from claimjobs.dialects import Dialect
from claimjobs.enqueue.bulk_insert import Row
from claimjobs.enqueue.insert import Chunk, Insert, OnBad
from claimjobs.errors import BadRow, BadUnique, ColumnMissing, NotUnique
from claimjobs.instants import in_utc
from claimjobs.report import Report
from claimjobs.statements import insert as statements
from claimjobs.table.job_state import Column
from claimjobs.table.roles import Roles, is_whole

Values = tuple[Hashable, ...]

CONFLICTS: Final = ("deadlock", "lock timeout", "serialization")
"""What producers that insert the same keys in another order do to each other."""


# --- which columns -------------------------------------------------------------------------------------------


FindColumns = Callable[[sa.Connection, Roles], tuple[Column, ...]]


class UniqueKeys:
    """The unique keys of a table by which rows are enqueued; the database is asked once for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[Column, ...]] = {}

    def of(self, names: str | Sequence[str]) -> FindColumns:
        """How to find the columns of these names."""
        return partial(self._columns, (names,) if isinstance(names, str) else tuple(names))

    def _columns(self, names: tuple[str, ...], connection: sa.Connection, roles: Roles) -> tuple[Column, ...]:
        if names not in self._known:
            self._known[names] = unique_columns(connection, roles, names)
        return self._known[names]


def unique_columns(connection: sa.Connection, roles: Roles, names: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of these names, once the database has a unique index over them.

    Raises ColumnMissing, BadUnique for a column that claimjobs writes, or NotUnique with the statement that helps.
    """
    columns = tuple(_column(roles, name) for name in names)
    if set(names) not in _unique_keys(connection, roles.table):
        raise NotUnique(roles.name, names, roles.quote)
    return columns


def _column(roles: Roles, name: str) -> Column:
    column = roles.table.c.get(name)
    if column is None:
        raise ColumnMissing(roles.name, name, "enqueueing by a unique key", roles.quote)
    if column not in (*roles.key, *roles.payload):
        raise BadUnique(roles.name, name)
    return column


def _unique_keys(connection: sa.Connection, table: sa.Table) -> list[set[Any]]:
    found, name, schema = sa.inspect(connection), table.name, table.schema
    keys: list[Any] = [found.get_pk_constraint(name, schema)["constrained_columns"]]
    keys += [constraint["column_names"] for constraint in found.get_unique_constraints(name, schema)]
    keys += [index["column_names"] for index in found.get_indexes(name, schema) if index["unique"] and is_whole(index)]
    return [set(columns) for columns in keys]


# --- inserting -----------------------------------------------------------------------------------------------


class UniqueInsert(Insert):
    """Inserts chunks, but for the rows whose unique key is there."""

    def __init__(
        self, connection: sa.Connection, roles: Roles, dialect: Dialect, on_bad: OnBad, *, unique: FindColumns
    ) -> None:
        super().__init__(connection, roles, dialect, on_bad)
        columns = unique(connection, roles)
        self._names = tuple(column.name for column in columns)
        self._there = statements.there(roles, dialect, columns)
        self._still_there = self._there.with_for_update(read=True)
        if dialect.skips_duplicates:
            self._statement = statements.produce_new(roles, dialect, columns)

    def __call__(self, chunk: Chunk) -> int:
        distinct = self._distinct(self._complete(chunk))
        return super().__call__(distinct) if distinct else 0

    def _insert(self, rows: Sequence[Row]) -> int:
        if not self._dialect.skips_duplicates:
            return super()._insert(rows)
        return len(self._connection.execute(self._statement, [dict(row) for row in rows]).all())

    def _complete(self, chunk: Chunk) -> Chunk:
        """Nothing, where the rows lack a column of the unique key."""
        missing = [name for name in self._names if chunk and name not in chunk.rows[0]]
        for number, row in chunk if missing else ():
            self._on_bad(BadRow(number, f"column {missing[0]!r} is missing, by which jobs are unique", row))
        return Chunk([], []) if missing else chunk

    def _distinct(self, chunk: Chunk) -> Chunk:
        """The first row of each unique key. What only the database takes for equal is left to it."""
        seen: set[Values] = set()

        def is_first(row: Row) -> bool:
            values = self._values(row)
            known = values in seen
            if values is not None:
                seen.add(values)
            return not known

        return chunk.only(is_first)

    # --- where INSERT cannot leave out duplicates ------------------------------------------------------

    def _refused(self, chunk: Chunk, refusal: Exception) -> int:
        """A chunk that was refused for a duplicate, without the rows that are there."""
        if self._dialect.error_code(refusal) not in self._dialect.duplicate:
            return super()._refused(chunk, refusal)
        rest = self._new(chunk) if len(chunk) > 1 else self._single(chunk)
        return self(rest) if len(rest) < len(chunk) else super()._refused(chunk, refusal)

    def _new(self, chunk: Chunk) -> Chunk:
        """The rows that are not there, as far as Python can tell. Rows that are there are locked, so that they stay.

        Only those: to look for others with a lock would lock the gaps where somebody else is about to insert them.
        """
        seen = self._read(self._there, [self._given(row) for row in chunk.rows if self._values(row) is not None])
        sure = {_comparable(values) for values in self._read(self._still_there, seen)}
        return chunk.only(lambda row: self._values(row) not in sure)

    def _single(self, chunk: Chunk) -> Chunk:
        """One row, if the unique key is not the one that it was refused for: the database compares."""
        [row] = chunk.rows
        there = self._values(row) and self._read(self._still_there, [self._given(row)])
        return chunk.only(lambda _: not there)

    def _read(self, statement: sa.Select[Any], values: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        keys = [each if len(each) > 1 else each[0] for each in values]
        return [tuple(row) for row in self._connection.execute(statement, {"values": keys})] if keys else []

    def _given(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._names)

    def _values(self, row: Row) -> Values | None:
        """What Python compares; None where a NULL keeps a row from being anyone's duplicate."""
        given = self._given(row)
        return None if None in given else _comparable(given)


def _comparable(values: Iterable[Any]) -> Values | None:
    """Instants without their zone, for not every column gives it back; None for what has no hash, as no key has."""
    plain = tuple(in_utc(value) if isinstance(value, datetime) else value for value in values)
    return plain if all(isinstance(value, Hashable) for value in plain) else None


# --- in a transaction of our own -----------------------------------------------------------------------------


class RetryConflicts:
    """Runs a transaction again, for `patience` seconds at most, that was undone because of another producer's.

    The rows are kept until it is committed, also where their source cannot give them a second time; each bad one is
    told of once.
    """

    def __init__(self, dialect: Dialect, patience: float, report: Report) -> None:
        self._dialect = dialect
        self._patience = patience
        self._report = report

    def __call__(
        self, transaction: Callable[[Iterable[Row], OnBad | None], int], rows: Row | Iterable[Row], on_bad: OnBad | None
    ) -> int:
        """The result of `transaction`."""
        replay = _Replay([rows] if isinstance(rows, Mapping) else rows)
        told_once, backoff = _told_once(on_bad), Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.0)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return transaction(replay, told_once)
            except sa.exc.DBAPIError as error:
                if replay.broken or not self._is_conflict(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(backoff.pause())

    def _is_conflict(self, error: sa.exc.DBAPIError) -> bool:
        kind = self._dialect.transient_kind(error)
        if kind not in CONFLICTS:
            return False
        self._report.transients[kind] += 1
        return True


class _Replay:
    """Rows that can be gone through more than once, from the first one."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rest = iter(rows)
        self._seen: list[Row] = []
        self.broken = False
        """Whether their source raised: nobody knows what would have come after that."""

    def __iter__(self) -> Iterator[Row]:
        yield from self._seen
        try:
            for row in self._rest:
                self._seen.append(row)
                yield row
        except Exception:
            self.broken = True
            raise


def _told_once(on_bad: OnBad | None) -> OnBad | None:
    told: set[int] = set()

    def tell(bad: BadRow) -> None:
        if on_bad is not None and bad.line not in told:
            told.add(bad.line)
            on_bad(bad)

    return None if on_bad is None else tell

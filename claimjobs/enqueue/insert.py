"""Inserts rows in chunks, in one transaction, and finds the rows that do not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from claimjobs.database.clock import in_utc
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect
from claimjobs.enqueue.bad_rows import RowCheck, RowSizes, culprit
from claimjobs.enqueue.bulk_insert import FEW, Prepared, Row, prepared
from claimjobs.errors import BadRow, CounterBehind
from claimjobs.statements.insert import insert_rows
from claimjobs.table.roles import ColumnRoles

OnBad = Callable[[BadRow], None]
Undo = Callable[[sa.Connection], AbstractContextManager[None]]
"""A `with` block that is undone alone if it raises."""

AT_ONCE = 1_000
"""The most rows of one chunk."""

EVERY = 5
"""If so many rows are refused alone, and no other was inserted, an error that does not name a row is about none."""

UNSENDABLE = (TypeError, ValueError, OverflowError)
"""Errors of drivers for a value that they cannot send."""


@dataclass(frozen=True)
class InsertTarget:
    """Where rows are inserted, and what happens to rows that do not fit."""

    connection: sa.Connection
    roles: ColumnRoles
    dialect: Dialect
    on_bad: OnBad | None
    """Called for each row that does not fit; None: the first one raises its BadRow."""
    undo: Undo
    """Undoes a chunk that the database refuses."""


@dataclass(frozen=True)
class Chunk:
    """Rows of one shape, and the number of each. A chunk is inserted, or undone, as a whole."""

    numbers: Sequence[int]
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        return zip(self.numbers, self.rows, strict=True)

    def part(self, places: slice) -> Chunk:
        """Adjacent rows of the chunk."""
        return Chunk(self.numbers[places], self.rows[places])

    def only(self, keep: Callable[[Row], bool]) -> Chunk:
        """The rows for which `keep` is true."""
        kept = [(number, row) for number, row in self if keep(row)]
        return Chunk([number for number, _ in kept], [row for _, row in kept])


def raise_bad(bad: BadRow) -> None:
    """The `on_bad` that accepts no bad row."""
    raise bad


def _chunks(rows: Iterable[Any], roles: ColumnRoles, on_bad: OnBad) -> Iterator[Chunk]:
    """Rows in their order, in chunks of one shape: one statement inserts rows of one shape."""
    numbers: list[int] = []
    alike: list[Row] = []
    shape: frozenset[str] = frozenset()
    check = RowCheck(roles)
    ours: Collection[str] = ()
    try:
        for number, row in enumerate(rows, 1):
            same = (type(row) is dict or isinstance(row, Mapping)) and row.keys() == shape
            misfit = None if same else check.misfit(row)
            checked = ours if same or misfit else check.reserved(row)
            if misfit := misfit or check.flaw(row, checked):
                on_bad(BadRow(number, misfit, row))
                continue
            if alike and (not same or len(alike) == AT_ONCE):
                yield Chunk(numbers, alike)
                numbers, alike = [], []
            shape, ours = (shape, ours) if same else (frozenset(row), checked)
            numbers.append(number)
            alike.append(row)
    except BadRow:
        if alike:  # the rows before it are inserted first: one of them may be bad, too
            yield Chunk(numbers, alike)
        raise
    if alike:
        yield Chunk(numbers, alike)


class Insert(ABC):
    """A way to insert rows. If the database refuses a chunk, its halves are inserted until the bad rows are found."""

    def __init__(self, target: InsertTarget) -> None:
        self._connection, self._undo = target.connection, target.undo
        self._roles, self._dialect = target.roles, target.dialect
        self._on_bad = target.on_bad or raise_bad
        self._sizes = RowSizes(target.dialect)
        self._doubtful: list[BadRow] | None = []
        """Rows that were refused by an error that may be about every row; None: a row was inserted, so it is not."""

    @abstractmethod
    def _insert(self, rows: Sequence[Row]) -> int:
        """Insert rows of one shape; return how many were inserted."""

    def insert_all(self, rows: Row | Iterable[Row]) -> int:
        """Insert rows; return how many were inserted.

        Rows before one that raises BadRow stay in the transaction: the caller decides whether to commit.
        """
        several = [rows] if isinstance(rows, Mapping) else rows
        inserted = sum(self.insert(chunk) for chunk in _chunks(several, self._roles, self._on_bad))
        self._raise_doubtful()
        return inserted

    def insert(self, chunk: Chunk) -> int:
        """Insert a chunk; return how many of its rows were inserted."""
        inserted = self._try(chunk)
        if not isinstance(inserted, int):
            return self._refused(chunk, inserted)
        doubtful, self._doubtful = self._doubtful, None
        for bad in doubtful or ():
            self._on_bad(bad)
        return inserted

    def _try(self, chunk: Chunk) -> int | Exception:
        """Insert a chunk, or return the error by which its rows were refused. Other errors are raised."""
        try:
            self._sizes.check(self._connection, chunk.rows)
            with self._undo(self._connection), self._in_utc():
                return self._insert(chunk.rows)
        except (sa.exc.StatementError, *UNSENDABLE) as error:
            if isinstance(error, sa.exc.DBAPIError):
                self._raise_if_counter_is_behind(error, chunk.rows[0])
                if not self._may_be_of_a_row(error):
                    raise
            return error

    def _in_utc(self) -> AbstractContextManager[None]:
        """A block of statements in which values without a zone are in UTC. Only our statements are in it: while rows
        are read, or reported, the caller's code may use the connection.
        """
        return in_utc(self._connection, self._dialect, depends=self._roles.depend_on_zone)

    def _refused(self, chunk: Chunk, refusal: Exception) -> int:
        """Insert the halves of a chunk that was refused. A single row that is refused is bad."""
        if len(chunk) > 1:
            half = len(chunk) // 2
            return self.insert(chunk.part(slice(half))) + self.insert(chunk.part(slice(half, None)))
        row = chunk.rows[0]
        bad = BadRow(chunk.numbers[0], culprit(row, self._roles.table) or reason(refusal), row)
        bad.__cause__ = refusal
        if self._doubtful is None or not isinstance(refusal, sa.exc.DBAPIError) or self._is_of_a_row(refusal):
            self._on_bad(bad)
            return 0
        self._doubtful.append(bad)
        if len(self._doubtful) == EVERY:
            self._raise_doubtful()
        return 0

    def _raise_doubtful(self) -> None:
        """Raise the error by which each row was refused, if none was inserted: a missing column, for example."""
        if self._doubtful:
            raise self._doubtful[0].__cause__ or self._doubtful[0]

    def _raise_if_counter_is_behind(self, error: sa.exc.DBAPIError, row: Row) -> None:
        """Raises CounterBehind if a key that the database has given to a row is in use: no line is to be corrected."""
        table, errors = self._roles.table, self._dialect.errors
        [column, *others] = [*table.primary_key] or [None]
        if column is None or others or not isinstance(column.type, sa.Integer):
            return
        if column.name in row or errors.code(error) not in errors.duplicate:
            return
        statement = self._dialect.table_rules.catch_up(table, column.name)
        if statement is None:
            return
        key = sa.inspect(self._connection).get_pk_constraint(table.name, table.schema)["name"]
        if errors.refusing_index(error, table.name) == key:
            raise CounterBehind(self._roles.name, column.name, statement) from error

    def _is_of_a_row(self, error: sa.exc.DBAPIError) -> bool:
        """Whether the error says that it is about the values of a row."""
        never_sent = isinstance(error, (sa.exc.DataError, sa.exc.ProgrammingError))
        return self._dialect.errors.refuses_row(error) or (self._dialect.errors.code(error) is None and never_sent)

    def _may_be_of_a_row(self, error: sa.exc.DBAPIError) -> bool:
        """Whether other rows may be inserted after this error. A trigger may raise any error for one row.

        It may not after an outage, a conflict, an interruption, or a time limit: a slow server refuses every row, and a
        row may have waited for the key of another producer. Nor if the table is missing or must not be written.
        """
        errors = self._dialect.errors
        code = errors.code(error)
        if errors.broken_kind(error) or errors.transient_kind(error):
            return False
        missing = errors.missing_name(error) if code in errors.missing_table else None
        if self._roles.table.name in (missing, errors.denied_table(error)):
            return False
        return code is not None or self._is_of_a_row(error)


class PlainInsert(Insert):
    """INSERT, for any database."""

    def __init__(self, target: InsertTarget) -> None:
        super().__init__(target)
        self._statement = insert_rows(target.roles)
        self._prepared: dict[frozenset[str], Prepared | None] = {}

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

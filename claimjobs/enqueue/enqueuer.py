"""Enqueueing: rows are inserted in chunks, by COPY or INSERT, in a caller's transaction or in one of our own.

If the database refuses a chunk, its halves are inserted until the bad rows are found. Idle owners are woken then.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

import sqlalchemy as sa

from claimjobs import tracing
from claimjobs.database.connect import connected
from claimjobs.database.connection import FIRST_PAUSE, LONGEST_PAUSE
from claimjobs.database.error_translation import UNSENDABLE, raised_as_sqlalchemy_does, reason
from claimjobs.database.statement_size import check_size, size_of
from claimjobs.database.transactions import commits_by_itself, in_utc, isolation_of, savepoint
from claimjobs.dialects import Dialect, Key
from claimjobs.enqueue.bulk_insert import FEWEST_ROWS, BulkInsert
from claimjobs.enqueue.notifier import Notifier
from claimjobs.enqueue.rows import ROWS_PER_CHUNK, Chunk, Row, chunks
from claimjobs.enqueue.unique_key import CHOICES, OnDuplicate, UniqueKey
from claimjobs.errors import BadArgument, BadRow
from claimjobs.job import key_of
from claimjobs.options import Backoff
from claimjobs.report import Report
from claimjobs.statements.enqueue import insert_rows
from claimjobs.table.backend import Backend
from claimjobs.table.roles import ColumnRoles
from claimjobs.table.values import misfit

Rows = Row | Iterable[Row]
OnBad = Callable[[BadRow], None]

AUTOCOMMIT: Final = "AUTOCOMMIT"
CONFLICTS: Final = ("deadlock", "lock timeout", "serialization")
"""Conflicts between producers that insert the same unique keys in a different order."""
NO_ROW: Final = 0
"""The number of a row that only the commit refuses: which one it is is not known."""
COMMON_CAUSE_ROWS: Final = 5
"""If so many rows are refused alone, and no other was inserted, an error that does not name a row is about none."""
TRIES: Final = 5
"""How often a row is tried whose job is there and gone by turns."""


class Enqueuer:
    """Inserts rows into one table and wakes idle owners."""

    def __init__(
        self, engine: sa.Engine, backend: Backend, notifier: Notifier, patience: float, *, report: Report
    ) -> None:
        """`patience`: for how many seconds a transaction of our own is tried again after a conflict."""
        self._engine = engine
        self._backend, self.roles, self._dialect = backend, backend.source, backend.dialect
        self.notifier = notifier
        self._patience = patience
        self._report = report
        self._keys: dict[tuple[tuple[str, ...], OnDuplicate, str], UniqueKey] = {}
        """The unique keys for which the database was asked, for each driver of a connection."""

    def enqueue(
        self,
        rows: Rows,
        caller: sa.Connection | None,
        *,
        on_bad: OnBad | None,
        unique: tuple[str, ...],
        on_duplicate: OnDuplicate = "skip",
    ) -> int:
        """Insert rows in the transaction of a caller, who commits; or else in one of our own, all or none. Returns how
        many were inserted, or changed because of `on_duplicate`.

        With `unique`, our own transaction is tried again after a conflict with another producer.
        """
        if on_duplicate not in CHOICES or (on_duplicate != "skip" and not unique):
            what = "goes with `unique`" if on_duplicate in CHOICES else "is unknown"
            step = f"choose one of {', '.join(CHOICES)}, and give `unique`"
            raise BadArgument(f"on_duplicate={on_duplicate!r} {what}: {step}")
        several: Iterable[Row] = [rows] if isinstance(rows, Mapping) else rows
        if self.roles.traceparent is not None and (context := tracing.traceparent()) is not None:
            default = {self.roles.traceparent.key: context}  # a value that is given stays
            traced = ({**default, **row} if isinstance(row, Mapping) else row for row in several)
            several = list(traced) if _is_single(several) else traced
        insert = Insert(self.roles, self._dialect, on_bad)
        if caller is not None:
            with self._key(caller, unique, on_duplicate) as key:
                count = insert.run(caller, several, key)
            self.notifier.wake_after_commit(caller, count, inserted=on_duplicate == "skip")
            return count
        if unique:
            several = list(several)  # an iterator has them only once
        backoff, deadline = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.0), time.monotonic() + self._patience
        while True:
            try:
                return self._insert_and_commit(insert, several, unique, on_duplicate)
            except sa.exc.DBAPIError as error:
                kind = self._dialect.errors.transient_kind(error)
                if not unique or kind not in CONFLICTS:
                    raise
                self._report.transients[kind] += 1
                if time.monotonic() >= deadline:
                    raise
            time.sleep(backoff.pause())

    def _insert_and_commit(
        self, insert: Insert, rows: Iterable[Row], unique: tuple[str, ...], on_duplicate: OnDuplicate
    ) -> int:
        with connected(self._engine) as own:
            if level := self._level(own, is_single=_is_single(rows), rereads=bool(unique)):
                own.execution_options(isolation_level=level)
            with self._key(own, unique, on_duplicate) as key:
                count = insert.run(own, rows, key)
            try:
                own.commit()
            except sa.exc.DBAPIError as error:
                if not insert.is_of_a_row(error):
                    raise
                raise BadRow(NO_ROW, reason(error)) from error  # a deferred constraint refuses it, and undoes all
            if level != AUTOCOMMIT and self._dialect.switches_autocommit_freely:
                with suppress(sa.exc.DBAPIError), raised_as_sqlalchemy_does(own):  # the rows are committed
                    own.execution_options(isolation_level=AUTOCOMMIT)
            self.notifier.wake(own, count, inserted=on_duplicate == "skip")
            return count

    def _level(self, own: sa.Connection, *, is_single: bool, rereads: bool) -> str | None:
        """The isolation level to set; None: leave it, and send nothing. `rereads`: later commits must be visible."""
        isolation, found = self._dialect.isolation, isolation_of(own)
        if rereads:
            return isolation
        if self._dialect.switches_autocommit_freely:
            return AUTOCOMMIT if found == isolation and is_single else isolation
        unfit = found is None or found in self._dialect.reads_that_lock
        # In AUTOCOMMIT, which may be the engine's default, nothing could be rolled back.
        return isolation if unfit or commits_by_itself(own, unknown=True) else None

    @contextmanager
    def _key(
        self, connection: sa.Connection, unique: tuple[str, ...], on_duplicate: OnDuplicate
    ) -> Iterator[UniqueKey | None]:
        """The key for a block that inserts rows. Raises UnfitTable, also if its index was dropped since the first check
        and the database refuses the block because of that.
        """
        wanted = unique, on_duplicate, connection.dialect.driver
        if unique and wanted not in self._keys:
            self._keys[wanted] = UniqueKey(connection, self._backend, unique, on_duplicate)
        try:
            yield self._keys.get(wanted)
        except sa.exc.DBAPIError as error:
            if unique and not self._dialect.errors.passing_kind(error):
                with suppress(sa.exc.SQLAlchemyError):
                    self._keys[wanted] = UniqueKey(connection, self._backend, unique, on_duplicate)
            raise


def _is_single(rows: Iterable[Row]) -> bool:
    """Whether one statement inserts them: it needs no transaction around it."""
    return isinstance(rows, Sized) and len(rows) == 1


class Insert:
    """The rows of one enqueue: inserts them, perhaps in several attempts, and finds those that do not fit."""

    def __init__(self, roles: ColumnRoles, dialect: Dialect, on_bad: OnBad | None) -> None:
        """`on_bad` is called once for each row that does not fit; None: the first one raises its BadRow."""
        self._roles, self._table, self._dialect, self._on_bad = roles, roles.table, dialect, on_bad
        self._reported: set[int] = set()
        self._tries: Counter[int] = Counter()
        """How often each row was not inserted, and its job was gone afterwards."""

    def run(self, connection: sa.Connection, rows: Iterable[Row], key: UniqueKey | None) -> int:
        """Insert rows, but those whose unique key is in the table; return how many were inserted, or changed.

        Rows before one that raises BadRow stay in the transaction: the caller decides whether to commit.
        """
        self._connection, self._key = connection, key
        self._doubtful: list[BadRow] | None = []
        """Rows that were refused by an error that may be about every row; None: a row was inserted, so it is not."""
        self._bulk = BulkInsert(connection, self._table, self._dialect)
        inserted = 0
        most = ROWS_PER_CHUNK if key is None else min(ROWS_PER_CHUNK, key.most)
        for found in chunks(rows, self._roles, most, end_at_bad=self._on_bad is None):
            if isinstance(found, BadRow):
                self._tell(found)
            else:
                inserted += self._insert(found)
        self._raise_doubtful()
        return inserted

    def _insert(self, chunk: Chunk) -> int:
        if self._key is not None and chunk:
            if why := self._key.misfit(chunk.rows[0]):
                for number, row in zip(chunk.numbers, chunk.rows, strict=True):
                    self._tell(BadRow(number, why, row))
                return 0
            chunk = self._key.distinct(chunk)
        if not chunk:
            return 0
        written = self._try(chunk)
        if not isinstance(written, int):
            return self._refused(chunk, written)
        doubtful, self._doubtful = self._doubtful, None
        for bad in doubtful or ():
            self._tell(bad)
        return written

    def _try(self, chunk: Chunk) -> int | Exception:
        """Insert a chunk, or return the error by which its rows were refused. Other errors are raised."""
        try:
            if self._dialect.sessions.statement_limit is not None:
                check_size(self._connection, self._dialect, max(map(size_of, chunk.rows)))
            with savepoint(self._connection, or_transaction=True), self._in_utc():
                if self._key is not None and self._key.insert is not None:
                    rows = self._connection.execute(self._key.insert, [dict(row) for row in chunk.rows])
                    inserted = set(map(key_of, rows))
                    changed = self._change(chunk, but=inserted) if len(inserted) < len(chunk) else 0
                    return len(inserted) + changed
                # By COPY, or in an INSERT that is prepared once for all rows; else as SQLAlchemy does.
                if len(chunk) < FEWEST_ROWS or not self._bulk.write(chunk.rows):
                    self._connection.execute(insert_rows(self._table), [dict(row) for row in chunk.rows])
                return len(chunk)
        except (sa.exc.StatementError, *UNSENDABLE) as error:
            self._raise_unless_of_a_row(error)
            return error

    def _in_utc(self) -> AbstractContextManager[None]:
        """A block of statements in which values without a zone are in UTC. Only our statements are in it: while rows
        are read, or reported, the caller's code may use the connection.
        """
        return in_utc(self._connection, self._dialect, depends=self._roles.depend_on_zone)

    # --- rows that are refused ---------------------------------------------------------------------------

    def _refused(self, chunk: Chunk, refusal: Exception) -> int:
        """Insert again, without the rows that are in the table, a chunk that was refused for a duplicate; else its
        halves. A single row that is refused is bad.
        """
        if self._key is not None and self._dialect.errors.code(refusal) in self._dialect.errors.duplicate:
            with self._in_utc():
                new = self._key.new_ones(self._connection, chunk, refusal)
            if len(new) < len(chunk):
                there = chunk.only([number not in set(new.numbers) for number in chunk.numbers])
                return self._change(there, but=()) + self._insert(new)
        if len(chunk) > 1:
            return sum(map(self._insert, chunk.halves))
        bad = self._bad_row(chunk, refusal)
        if self._doubtful is None or not isinstance(refusal, sa.exc.DBAPIError) or self.is_of_a_row(refusal):
            self._tell(bad)
            return 0
        self._doubtful.append(bad)
        if len(self._doubtful) == COMMON_CAUSE_ROWS:
            self._raise_doubtful()
        return 0

    def _change(self, chunk: Chunk, *, but: Container[Key]) -> int:
        """Change the jobs that are there; return how many. Rows whose job is gone meanwhile are inserted."""
        if self._key is None or not (self._key.changes and chunk):
            return 0
        try:
            with savepoint(self._connection, or_transaction=True), self._in_utc():
                changed, gone = self._key.change(self._connection, chunk, but=but)
        except (sa.exc.StatementError, *UNSENDABLE) as error:
            self._raise_unless_of_a_row(error)
            if len(chunk) > 1:
                return sum(self._change(half, but=but) for half in chunk.halves)
            self._tell(self._bad_row(chunk, error))
            return 0
        if gone and len(chunk) > 1:  # the job of a single row is found as the database compares, which Python cannot
            return changed + sum(self._change(half, but=but) for half in gone.halves)
        self._tries.update(gone.numbers)
        for number, row in zip(gone.numbers, gone.rows, strict=True):
            if self._tries[number] > TRIES:
                self._tell(BadRow(number, "its unique key is in the table, but no row is found by these values", row))
        return changed + self._insert(gone.only([self._tries[number] <= TRIES for number in gone.numbers]))

    def _bad_row(self, chunk: Chunk, refusal: Exception) -> BadRow:
        """The only row of a chunk, which was refused. Some databases say only that a value is too large."""
        if isinstance(refusal, BadRow):
            return refusal
        row, columns = chunk.rows[0], self._table.c
        flaws = [
            f"column {name!r}: {flaw}"
            for name, value in row.items()
            if name in columns and (flaw := misfit(columns[name].type, value))
        ]
        bad = BadRow(chunk.numbers[0], flaws[0] if flaws else reason(refusal), row)
        bad.__cause__ = refusal
        return bad

    def _tell(self, bad: BadRow) -> None:
        if self._on_bad is None:
            raise bad
        if bad.line not in self._reported:
            self._reported.add(bad.line)
            self._on_bad(bad)

    def _raise_doubtful(self) -> None:
        """Raise the error by which each row was refused, if none was inserted: a missing column, for example."""
        if self._doubtful:
            raise self._doubtful[0].__cause__ or self._doubtful[0]

    def is_of_a_row(self, error: sa.exc.DBAPIError) -> bool:
        """Whether the error says that it is about the values of a row."""
        never_sent = isinstance(error, (sa.exc.DataError, sa.exc.ProgrammingError))
        return self._dialect.errors.refuses_row(error) or (self._dialect.errors.code(error) is None and never_sent)

    def _raise_unless_of_a_row(self, error: Exception) -> None:
        """Raise an error after which other rows may not be inserted. A trigger may raise any error for one row.

        It is raised after an outage, a conflict, an interruption, or a time limit: a slow server refuses every row, and
        a row may have waited for the key of another producer. Also if the table is missing or must not be written.
        """
        if not isinstance(error, sa.exc.DBAPIError):
            return
        errors = self._dialect.errors
        code = errors.code(error)
        missing = errors.missing_name(error) if code in errors.missing_table else None
        is_of_the_table = self._table.name in (missing, errors.denied_table(error))
        if errors.passing_kind(error) or is_of_the_table or (code is None and not self.is_of_a_row(error)):
            raise error

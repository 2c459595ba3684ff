"""Enqueueing: insert rows, in a caller's transaction or in one of our own, then wake idle owners."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress

import sqlalchemy as sa

from claimjobs.backoff import Backoff
from claimjobs.database.attempts import FIRST_PAUSE, LONGEST_PAUSE
from claimjobs.database.connect import connected
from claimjobs.database.error_translation import raised_as_sqlalchemy_does
from claimjobs.database.transactions import (
    CallersTransaction,
    commits_by_itself,
    connection_in,
    isolation_of,
    savepoint,
    undoing,
)
from claimjobs.enqueue.bulk_insert import Row
from claimjobs.enqueue.copy_insert import CopyInsert
from claimjobs.enqueue.insert import Insert, InsertTarget, OnBad, PlainInsert, Undo
from claimjobs.enqueue.notifier import Notifier
from claimjobs.enqueue.repeatable_rows import RepeatableRows, ReportOnce
from claimjobs.enqueue.unique_insert import UniqueInsert, UniqueKey, unique_key
from claimjobs.report import Report
from claimjobs.table.backend import Backend

Rows = Row | Iterable[Row]
AUTOCOMMIT = "AUTOCOMMIT"

CONFLICTS = ("deadlock", "lock timeout", "serialization")
"""Conflicts between producers that insert the same unique keys in a different order."""


class Enqueuer:
    """Inserts rows into one table and wakes idle owners."""

    def __init__(
        self, engine: sa.Engine, backend: Backend, notifier: Notifier, patience: float, *, report: Report
    ) -> None:
        """`patience`: for how many seconds `insert_and_commit` tries again after a conflict."""
        self._engine = engine
        self._roles = backend.source
        self._dialect = backend.dialect
        self.notifier = notifier
        self._patience = patience
        self._report = report
        self._unique_keys: dict[tuple[str, ...], UniqueKey] = {}
        """The unique keys for which the database was asked."""

    def insert_into(
        self, transaction: CallersTransaction, rows: Rows, on_bad: OnBad | None, unique: tuple[str, ...]
    ) -> int:
        """Insert in the transaction of a caller, who commits; return how many rows were inserted."""
        connection = connection_in(transaction)
        count = self._insert_on(connection, on_bad, savepoint, unique).insert_all(rows)
        self.notifier.wake_after_commit(connection, count)
        return count

    def insert_and_commit(self, rows: Rows, on_bad: OnBad | None, unique: tuple[str, ...]) -> int:
        """Insert and commit, all or none; return how many rows were inserted.

        With `unique`, a transaction that is rolled back by a conflict with another producer is tried again.
        """
        if not unique:
            return self._insert_once(rows, on_bad, unique)
        repeatable = RepeatableRows([rows] if isinstance(rows, Mapping) else rows)
        once = None if on_bad is None else ReportOnce(on_bad).report
        backoff, deadline = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.0), time.monotonic() + self._patience
        while True:
            try:
                return self._insert_once(repeatable, once, unique)
            except sa.exc.DBAPIError as error:
                if repeatable.broken or not self._is_conflict(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(backoff.pause())

    def _insert_once(self, rows: Rows, on_bad: OnBad | None, unique: tuple[str, ...]) -> int:
        with connected(self._engine) as own:
            if level := self._level(own, rows, rereads=bool(unique)):
                own.execution_options(isolation_level=level)
            count = self._insert_on(own, on_bad, undoing, unique).insert_all(rows)
            own.commit()
            if level != AUTOCOMMIT and self._dialect.switches_autocommit_freely:
                with suppress(sa.exc.DBAPIError), raised_as_sqlalchemy_does(own):  # the rows are committed
                    own.execution_options(isolation_level=AUTOCOMMIT)
            self.notifier.wake(own, count)
            return count

    def _insert_on(
        self, connection: sa.Connection, on_bad: OnBad | None, undo: Undo, unique: tuple[str, ...]
    ) -> Insert:
        target = InsertTarget(connection, self._roles, self._dialect, on_bad, undo)
        if unique:
            if unique not in self._unique_keys:
                self._unique_keys[unique] = unique_key(connection, self._roles, unique, self._dialect)
            return UniqueInsert(target, self._unique_keys[unique])
        return CopyInsert(target) if self._dialect.copies else PlainInsert(target)

    def _is_conflict(self, error: sa.exc.DBAPIError) -> bool:
        kind = self._dialect.errors.transient_kind(error)
        if kind not in CONFLICTS:
            return False
        self._report.transients[kind] += 1
        return True

    def _level(self, own: sa.Connection, rows: Rows, *, rereads: bool) -> str | None:
        """The isolation level to set; None: leave it, and send nothing. `rereads`: later commits must be visible."""
        isolation, found = self._dialect.isolation, isolation_of(own)
        if rereads:
            return isolation
        if self._dialect.switches_autocommit_freely:
            return AUTOCOMMIT if found == isolation and _is_single(rows) else isolation
        unfit = found is None or found in self._dialect.reads_that_lock
        # In AUTOCOMMIT, which may be the engine's default, nothing could be rolled back.
        return isolation if unfit or commits_by_itself(own, unknown=True) else None


def _is_single(rows: Rows) -> bool:
    """Whether one statement inserts them: it needs no transaction around it."""
    return isinstance(rows, Mapping) or (isinstance(rows, Sized) and len(rows) == 1)

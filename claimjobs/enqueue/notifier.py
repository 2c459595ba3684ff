"""The notifier: an enqueue wakes idle owners."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.database.transactions import isolation_of, savepoint
from claimjobs.errors import ClaimjobsError
from claimjobs.log_events import WAKE_FAILED
from claimjobs.statements.owners import wake
from claimjobs.table.backend import Backend
from claimjobs.table.ddl import table_name

ROWS_PER_OWNER: Final = 100
"""Rows for which one owner is woken."""
SPARE_OWNERS: Final = 1
"""Owners woken in addition: one of those chosen may be awake or dead by now."""
COMMIT_WAIT_SECONDS: Final = 5.0
"""Seconds to wait for the end of a commit that has begun."""

log = logging.getLogger("claimjobs.notifier")


class Notifier:
    """Wakes as many idle owners as the rows make batches, after the commit."""

    def __init__(self, engine: sa.Engine, backend: Backend, *, session_locks: bool) -> None:
        """`session_locks`: whether owners may hold a session lock, by which the session to interrupt is found."""
        self._engine = engine
        self._dialect = backend.dialect
        jobs = table_name(engine, backend.source.table)
        self._wake = wake(backend.owners, backend.dialect)
        self._wake_unless_trigger = wake(backend.owners, backend.dialect, jobs)
        self._claims = backend.roles.recorded_as
        can = session_locks or not backend.dialect.interrupts
        self._may: bool | None = None if can and backend.refusal is None else False
        """Whether this user may read and wake owners; None: not tried yet."""
        self._waiting: weakref.WeakKeyDictionary[sa.Transaction, int] = weakref.WeakKeyDictionary()
        """How many rows each open transaction of a caller has."""
        self._followed: weakref.WeakSet[sa.Connection] = weakref.WeakSet()
        """Connections of callers with a listener for their commits: SQLAlchemy keeps it as long as the connection."""

    def wake(self, connection: sa.Connection, rows: int, *, inserted: bool = True) -> None:
        """Wake owners for so many committed rows: one statement, and where the dialect `interrupts` one more for each.

        `inserted`: all of them are new, so a trigger of the table has done that.
        An error has no other effect: the owners find the jobs when they poll.
        """
        if not rows or self._may is False:
            return
        try:
            chosen = self._chosen(connection, rows, inserted=inserted)
            self._may = True
            for session in chosen:
                # It may be awake, ended or another user's by now. Its owner finds the jobs when it polls.
                with contextlib.suppress(sa.exc.DBAPIError):
                    connection.execute(self._dialect.sessions.interrupt(session))
        except sa.exc.SQLAlchemyError as error:
            self._fails(error)

    def _fails(self, error: sa.exc.SQLAlchemyError) -> None:
        lost = not isinstance(error, sa.exc.DBAPIError) or error.connection_invalidated
        if lost or self._dialect.errors.transient_kind(error):
            return
        fields = {"event": WAKE_FAILED, "error": reason(error)}
        log.info("consumers cannot be woken, and find jobs when they poll: %s", fields["error"], extra=fields)
        self._may = False

    def _chosen(self, connection: sa.Connection, rows: int, *, inserted: bool) -> list[int]:
        """The sessions to interrupt. Where the dialect does not `interrupt`, the statement itself wakes the owners."""
        given = {"claimjobs_claims": self._claims, "claimjobs_number": -(-rows // ROWS_PER_OWNER) + SPARE_OWNERS}
        chosen = connection.scalars(self._wake_unless_trigger if inserted else self._wake, given).all()
        return [session for session in chosen if session is not None] if self._dialect.interrupts else []

    # --- for rows that a caller commits ----------------------------------------------------------------

    def wake_after_commit(self, connection: sa.Connection, rows: int, *, inserted: bool) -> None:
        """Wake owners when the caller commits its transaction: one statement within it.

        Not in a two-phase transaction, because NOTIFY cannot be prepared; and not where the read would block heartbeats
        until the commit.
        """
        transaction = connection.get_transaction()
        if not rows or self._may is False or transaction is None or isinstance(transaction, sa.TwoPhaseTransaction):
            return
        if isolation_of(connection) in self._dialect.reads_that_lock:
            return
        # The first time in a savepoint: a user who may only insert must not lose the transaction.
        known, self._may = self._may, None  # if a right was revoked meanwhile, the next call uses a savepoint again
        try:
            with contextlib.nullcontext() if known else savepoint(connection):
                chosen = self._chosen(connection, rows, inserted=inserted)
        except sa.exc.DBAPIError as error:
            if not known:
                self._fails(error)
            if self._may is not False:
                raise
            return
        self._may = True
        if chosen:
            if connection not in self._followed:
                self._followed.add(connection)
                sa.event.listen(connection, "commit", self._commits)
            self._waiting[transaction] = self._waiting.get(transaction, 0) + rows

    def _commits(self, connection: sa.Connection) -> None:
        """Called before a commit. SQLAlchemy has no event for its end, so a thread waits for it."""
        transaction = connection.get_transaction()
        rows = 0 if transaction is None else self._waiting.pop(transaction, 0)
        if rows:
            threading.Thread(target=self._after, args=(transaction, rows), name="claimjobs notifier").start()

    def _after(self, transaction: sa.Transaction, rows: int) -> None:
        """Choose the owners again after the commit: others may be idle now."""
        deadline = time.monotonic() + COMMIT_WAIT_SECONDS
        while transaction.is_active:
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError), connected(self._engine) as own:
            self.wake(own, rows)

"""Ring: whoever brings work calls owners that sleep."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, isolation_of
from claimjobs.database.error_translation import reason
from claimjobs.database.savepoint import savepoint
from claimjobs.errors import ClaimjobsError
from claimjobs.statements.idle import call
from claimjobs.table.backend import Backend

A_BATCH: Final = 100
"""Rows that are work for one owner."""
SPARE: Final = 1
"""Owners called beyond that: one of those chosen may have got up, or died, a moment ago."""
PATIENCE: Final = 5.0
"""Seconds in which a commit that has begun comes to an end."""

log = logging.getLogger("claimjobs.ring")


class Notifier:
    """Calls as many owners as there are batches, if any sleep; the rest go on sleeping. Nobody before the commit."""

    def __init__(self, engine: sa.Engine, backend: Backend, *, session_locks: bool) -> None:
        """`session_locks`: whether there can be any, by which an owner that is to be interrupted is found."""
        self._engine = engine
        self._dialect = backend.dialect
        self._call = call(backend.owners, backend.dialect)
        self._claims = backend.roles.name
        can = backend.dialect.wakes and (session_locks or not backend.dialect.interrupts)
        self._may: bool | None = None if backend.by_lease and can else False
        """Whether this user may look for sleepers; None: not tried yet."""
        self._waiting: weakref.WeakKeyDictionary[sa.Transaction, int] = weakref.WeakKeyDictionary()
        self._followed: weakref.WeakSet[sa.Connection] = weakref.WeakSet()
        """Connections of callers whose commits are listened to."""

    # --- for rows that are committed -------------------------------------------------------------------

    def call(self, connection: sa.Connection, rows: int) -> None:
        """Call for so many rows: one statement, and where a call `interrupts` one for each that is called.

        A call that fails costs time, and no more.
        """
        if not rows or self._may is False:
            return
        try:
            chosen = self._chosen(connection, rows)
            self._may = True
            self._interrupt(connection, chosen)
        except sa.exc.SQLAlchemyError as error:
            self._fails(error)

    def _interrupt(self, connection: sa.Connection, sessions: list[int]) -> None:
        """Interrupt the sleep of these sessions."""
        for session in sessions:
            # Up meanwhile, or gone, or another user's: it looks for itself.
            with contextlib.suppress(sa.exc.DBAPIError):
                connection.execute(self._dialect.interrupt(session))

    def _fails(self, error: sa.exc.SQLAlchemyError) -> None:
        lost = not isinstance(error, sa.exc.DBAPIError) or error.connection_invalidated
        if lost or self._dialect.transient_kind(error):
            return
        log.info("consumers are not called, and find jobs when they look: %s", reason(error))
        self._may = False

    # --- for rows that somebody else commits -----------------------------------------------------------

    def call_later(self, connection: sa.Connection, rows: int) -> None:
        """Call for rows in a transaction of the caller's, once it is committed: one statement within it."""
        transaction = connection.get_transaction()
        if not rows or self._may is False or transaction is None or not self._can(connection, transaction):
            return
        if self._try(connection, rows) and self._dialect.interrupts:
            self._wait_for(connection, transaction, rows)

    def _can(self, connection: sa.Connection, transaction: sa.Transaction) -> bool:
        """Not in two phases: what notifies cannot be prepared. Nor where owners could not beat until the commit."""
        in_two_phases = isinstance(transaction, sa.TwoPhaseTransaction)
        return not in_two_phases and isolation_of(connection) not in self._dialect.reads_that_lock

    def _try(self, connection: sa.Connection, rows: int) -> list[int]:
        """The first time: who may only insert jobs must not lose the transaction for it."""
        if self._may:
            self._may = None  # should it fail, for a right that was taken away, the next one does not
            chosen = self._chosen(connection, rows)
            self._may = True
            return chosen
        try:
            with savepoint(connection):
                chosen = self._chosen(connection, rows)
        except sa.exc.DBAPIError as error:
            self._fails(error)
            if self._may is not False:
                raise
            return []
        self._may = True
        return chosen

    def _chosen(self, connection: sa.Connection, rows: int) -> list[int]:
        """Those that are called. Where a call `interrupts` they are not yet."""
        given = {"claimjobs_claims": self._claims, "claimjobs_number": -(-rows // A_BATCH) + SPARE}
        called = connection.scalars(self._call, given).all()
        return [session for session in called if session is not None] if self._dialect.interrupts else []

    def _wait_for(self, connection: sa.Connection, transaction: sa.Transaction, rows: int) -> None:
        if connection not in self._followed:  # a listener stays as long as the connection, also one for a single event
            self._followed.add(connection)
            sa.event.listen(connection, "commit", self._commits)
        self._waiting[transaction] = self._waiting.get(transaction, 0) + rows

    def _commits(self, connection: sa.Connection) -> None:
        """A commit is about to be sent. Of its end nothing tells; so somebody waits for it, on another connection."""
        transaction = connection.get_transaction()
        rows = 0 if transaction is None else self._waiting.pop(transaction, 0)
        if rows:
            threading.Thread(target=self._after, args=(transaction, rows), name="claimjobs calls").start()

    def _after(self, transaction: sa.Transaction, rows: int) -> None:
        """Who slept when the rows came may be up by now, and others asleep: they are chosen once more."""
        deadline = time.monotonic() + PATIENCE
        while transaction.is_active:
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError), connected(self._engine) as own:
            self.call(own, rows)

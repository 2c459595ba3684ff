"""Ring: whoever brings work calls owners that sleep."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Final

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.connect import connected
from claimjobs.errors import ClaimjobsError
from claimjobs.savepoint import savepoint
from claimjobs.statements.sleepers import call
from claimjobs.translate import reason

A_BATCH: Final = 100
"""Rows that are work for one owner."""
SPARE: Final = 1
"""Owners called beyond that: one of those chosen may have got up, or died, a moment ago."""
PATIENCE: Final = 5.0
"""Seconds in which a commit that has begun comes to an end."""
DIRECT: Final = "claimjobs_direct"
"""Where the `info` of a connection says whether its session knows the others by their numbers."""

log = logging.getLogger("claimjobs.ring")


class Ringer:
    """Calls as many owners as there are batches, if any sleep; the rest go on sleeping.

    Where the call is no part of a transaction it is made when that is committed, never before.
    """

    def __init__(self, engine: sa.Engine, backend: Backend, *, declared: bool | None) -> None:
        """`declared`: as `Liveness.session_lock`."""
        self._engine = engine
        self._dialect = backend.dialect
        self._call = call(backend.owners, backend.dialect)
        self._claims = backend.roles.name
        self._declared = declared
        can = backend.dialect.wakes and not (backend.dialect.interrupts and declared is False)
        self._may: bool | None = None if backend.by_lease and can else False
        """Whether this user may look for sleepers; None: not tried yet."""
        self._called: weakref.WeakKeyDictionary[sa.Transaction, set[int]] = weakref.WeakKeyDictionary()

    def call(self, connection: sa.Connection, rows: int) -> list[int]:
        """Call for so many rows, in the transaction that brings them: one statement.

        Returns the sessions that are to be interrupted when it is committed.
        """
        if not rows or self._may is False or not self._can(connection):
            return []
        number = -(-rows // A_BATCH) + SPARE
        if self._may is None:
            return self._try(connection, number)
        return self._chosen(connection, number)

    def _can(self, connection: sa.Connection) -> bool:
        """Not in two phases: what notifies cannot be prepared. Nor where owners could not beat until the commit."""
        level = connection.get_execution_options().get("isolation_level") or connection.default_isolation_level
        in_two_phases = isinstance(connection.get_transaction(), sa.TwoPhaseTransaction)
        return not in_two_phases and level not in self._dialect.reads_that_lock

    def _try(self, connection: sa.Connection, number: int) -> list[int]:
        """The first time: who may only insert jobs must not lose the transaction for it."""
        try:
            with savepoint(connection):
                chosen = self._chosen(connection, number)
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated or self._dialect.transient_kind(error):
                raise
            log.info("consumers are not called, and find jobs when they look: %s", reason(error))
            self._may = False
            return []
        self._may = True
        return chosen

    def _chosen(self, connection: sa.Connection, number: int) -> list[int]:
        given = {"claimjobs_claims": self._claims, "claimjobs_number": number}
        called = connection.scalars(self._call, given).all()
        return [session for session in called if session is not None] if self._dialect.interrupts else []

    # --- after the commit ------------------------------------------------------------------------------

    def interrupt(self, connection: sa.Connection, sessions: Iterable[int]) -> None:
        """Interrupt the sleep of these sessions. Those of other users are left to look for themselves."""
        with contextlib.suppress(
            sa.exc.SQLAlchemyError
        ):  # what was enqueued is committed, whatever becomes of the call
            for session in sessions if sessions and self._knows_sessions(connection) else ():
                # Gone meanwhile, or another user's: it looks for itself.
                with contextlib.suppress(sa.exc.DBAPIError):
                    connection.execute(self._dialect.interrupt(session))

    def _knows_sessions(self, connection: sa.Connection) -> bool:
        """Not through a pooler, whose own sessions have such numbers."""
        if self._declared is not None:
            return self._declared
        if DIRECT not in connection.info:
            connection.info[DIRECT] = self._dialect.sessions_are_ours(connection)
        return bool(connection.info[DIRECT])

    def call_later(self, connection: sa.Connection, rows: int) -> None:
        """Call for rows in a transaction that somebody else commits."""
        sessions = self.call(connection, rows)
        transaction = connection.get_transaction()
        if not sessions or transaction is None:
            return
        if transaction not in self._called:
            self._called[transaction] = set()
            sa.event.listen(connection, "commit", partial(self._commits, weakref.ref(transaction)), once=True)
        self._called[transaction].update(sessions)

    def _commits(self, promised: weakref.ref[sa.Transaction], connection: sa.Connection) -> None:
        """A commit is about to be sent. Of its end nothing tells; so somebody waits for it, on another connection."""
        transaction = connection.get_transaction()
        if transaction is not None and promised() is transaction:
            waiting = partial(self._after, transaction, self._called.pop(transaction, set()))
            threading.Thread(target=waiting, name="claimjobs calls").start()

    def _after(self, transaction: sa.Transaction, sessions: set[int]) -> None:
        deadline = time.monotonic() + PATIENCE
        while transaction.is_active:
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError), connected(self._engine) as own:
            self.interrupt(own, sessions)

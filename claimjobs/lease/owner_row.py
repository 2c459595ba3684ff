"""OwnerRow: an owner in the database: its row in the table of owners, its id and its session lock."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.record import record_of
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.transactions import savepoint
from claimjobs.errors import ClaimjobsError, ClaimsDiffer, UnfitTable
from claimjobs.lease.registry import check_claims
from claimjobs.log_events import OWNER_RENEWED
from claimjobs.options import Liveness
from claimjobs.statements import owners
from claimjobs.table.backend import Backend
from claimjobs.table.definitions import FIRST_OWNER, id_above
from claimjobs.table.record_description import RecordDescription

END_OF_SESSION_SECONDS: Final = 2.0
"""Seconds to wait for the end of a session."""

_IDS_HERE: Final[weakref.WeakValueDictionary[tuple[str, str, int], OwnerRow]] = weakref.WeakValueDictionary()
"""The owners of this process, by database, table and each id that they have had."""

log = logging.getLogger("claimjobs.owner")


class OwnerConnector(Connector):
    """The connection of an owner. The owner registers on each new one, because its session lock ends with a session."""

    is_never_idle = True  # of its heartbeats
    row: OwnerRow

    def _on_open(self, connection: sa.Connection) -> None:
        self._require_writable(connection)
        self.row.register(connection)


class OwnerRow:
    """A row of the owners table. Its id is the fencing token in `owner_id` of every job that it holds; never reused.

    It has two signs of life: a session lock, which the server releases when the connection ends, and a heartbeat with
    the time of the database. An owner that was declared dead registers again: its `id` changes.
    """

    def __init__(self, connector: OwnerConnector, backend: Backend, liveness: Liveness) -> None:
        self.connector, self.backend, self._dialect = connector, backend, backend.dialect
        self._table = table = backend.owners
        self._process = here = owners.this_process()
        self._row: dict[str, Any] = {
            "host": here["claimjobs_host"],
            "pid": here["claimjobs_pid"],
            "claims": backend.roles.recorded_as,
            "lease": liveness.lease,
            **RecordDescription.of(backend).row,
        }
        self._record = record_of(backend)
        self._beat = owners.beat(table)
        self._is_used = owners.is_used(table, self._dialect, self._record.is_recorded)
        self._mark_asleep = owners.mark_asleep(table)
        self.id = 0
        self._refused = 0
        """The largest id that the database gave, and that was in use."""
        self.asleep = False
        """Whether its row says that it sleeps, so that producers wake it."""
        self.locked = False
        """Whether the owner has its session lock."""
        self._sessions: set[int] = set()
        """The sessions in which it tried to take its lock."""
        self.is_closed = False
        """Whether the owner does not register on a new connection any more."""
        self._try_to_lead = sa.select(self._dialect.sessions.try_leader_lock(table, backend.roles.table))
        self._leads_through = -1
        """The connection on which it has the lock of the one owner that checks all others most often."""
        connector.row = self
        try:
            connector.transaction(lambda connection: None)
            # After the commit: of two owners that register at once, one sees the other.
            connector.transaction(lambda connection: check_claims(connection, backend))
        except BaseException as error:
            if isinstance(error, ClaimsDiffer):
                with contextlib.suppress(sa.exc.DBAPIError, ClaimjobsError):
                    self.leave()
            connector.close()
            raise

    def beat(self, patience: float | None = 0) -> None:
        """Write a heartbeat. Registers again if this owner was declared dead. Raises as `Connector.attempts`."""
        for attempt in self.connector.attempts(patience):
            with attempt as connection:
                if not self._is_alive(connection):
                    fields = {"event": OWNER_RENEWED, "owner": self.id}
                    log.warning("owner %d was declared dead; going on under a new id", self.id, extra=fields)
                    self._insert(connection)
                    self._lock_session(connection)

    @property
    def leads(self) -> bool:
        """Whether this owner leads. It does not any more after its connection was lost."""
        return self._leads_through == self.connector.disconnects

    def try_to_lead(self) -> None:
        if not self.leads and self.connector.locks_are_seen and self.connector.scalar(self._try_to_lead, patience=0):
            self._leads_through = self.connector.disconnects

    def stop_leading(self) -> None:
        """Take the lock again with the next heartbeat, after an error."""
        self._leads_through = -1

    def mark_asleep(self, connection: sa.Connection) -> bool:
        """Write a heartbeat, and that this owner sleeps until the next one. Returns False if it was declared dead."""
        self.asleep = connection.execute(self._mark_asleep, {"claimjobs_me": self.id}).rowcount == 1
        return self.asleep

    def note_unclaimable(self, rows: int) -> None:
        """Write how many rows this owner leaves, for `status`. An owner that registers again writes it, too."""
        self._row = {**self._row, "unclaimable": rows}  # the heartbeat's thread may be reading the row
        write = owners.note_unclaimable(self._table, rows)
        self.connector.transaction(lambda connection: connection.execute(write, {"claimjobs_me": self.id}), patience=0)

    def leave(self) -> None:
        """Delete the row of this owner. It must hold no job any more."""
        for attempt in self.connector.attempts(patience=1):
            with attempt as connection:
                self._record.forget(connection, self.id)
                connection.execute(owners.leave(self._table), {"claimjobs_me": self.id})

    def register(self, connection: sa.Connection) -> None:
        """On a new connection: keep the id, unless it was declared dead, and take the session lock.

        Raises ServerUnfit if claims of this owner are not safe on the server of the connection.
        """
        self._record.check_primaries(connection)
        if self.is_closed:
            return
        if not self.id or not self._is_alive(connection):
            self._insert(connection)
        self._lock_session(connection)

    def _is_alive(self, connection: sa.Connection) -> bool:
        alive = connection.execute(self._beat, {"claimjobs_me": self.id, **self._process}).rowcount == 1
        self.asleep = False
        return alive

    def _insert(self, connection: sa.Connection) -> None:
        """Register under an id that nobody has. The next ones are in use after a TRUNCATE, or a restore of the rows
        without the counter: then above all of them. If another consumer has just done that, the next one is good.
        """
        while not (self._inserts(connection, {}) or self._inserts(connection, self._id_above_all(connection))):
            pass

    def _inserts(self, connection: sa.Connection, given: dict[str, int]) -> bool:
        """Insert the row of this owner, unless its id is in use."""
        try:
            with savepoint(connection):
                inserted = connection.execute(owners.register(self._table), {**self._row, **given})
        except sa.exc.DBAPIError as error:
            if self._dialect.errors.code(error) in self._dialect.errors.duplicate:
                return False
            raise
        new = int(inserted.inserted_primary_key[0])  # type: ignore[index]  # one row was inserted
        # A living owner without row and session lock is known to its own process only, and would take the row for its
        # own.
        here = str(connection.engine.url), self._table.fullname, new
        other = _IDS_HERE.get(here)
        is_here = other is not None and not other.is_closed
        if new < FIRST_OWNER or is_here or connection.scalar(self._is_used, {"claimjobs_me": new}):
            self._refused = max(self._refused, new)
            connection.execute(owners.leave(self._table), {"claimjobs_me": new})
            return False
        self.id, _IDS_HERE[here] = new, self
        return True

    def _id_above_all(self, connection: sa.Connection) -> dict[str, int]:
        """An id above all that are in use. The counter of the database is moved above it, where it does not follow."""
        new = id_above(connection, [owners.largest_id(self._table), *self._record.largest_owner])
        new = max(new, self._refused + 1)  # the counter may have given all below it, also to owners that have left
        move = self._dialect.sessions.give_ids_above(self._table, new)
        if move is None:
            return {"id": new}
        try:
            connection.execute(move)
        except sa.exc.DBAPIError as error:
            if not self._dialect.errors.refuses_account(error):
                raise
            statement = str(move.compile(connection, compile_kwargs={"literal_binds": True}))
            raise UnfitTable(
                f"the next ids of table {self._table.fullname!r} are in use, as after a restore without its sequence, "
                f"and this user may not move that ({reason(error)}): run `{' '.join(statement.split())}` as the "
                "owner of the table"
            ) from error
        return {"id": new}

    def _lock_session(self, connection: sa.Connection) -> None:
        """Take the session lock; note its session and the start of the server. NULL where only the lease counts."""
        session = since = None
        self.locked = False
        if self.connector.locks_are_seen:
            session = connection.execute(sa.select(self._dialect.sessions.number)).scalar_one()
            self._sessions.add(session)
            got = self._try_lock(connection) or self._end_old_session(connection)
            # Some servers grant session locks and keep none: there a free lock would be taken for a dead owner, so
            # only the lease counts.
            self.locked = got and self._holder(connection) is not None
        if self.locked:
            since = self._dialect.sessions.server_since(connection)
        lock = {"claimjobs_me": self.id, "session": session, "since": since}
        connection.execute(owners.locked(self._table), lock)

    def _try_lock(self, connection: sa.Connection) -> bool:
        lock = self._dialect.sessions.try_session_lock(self._table, sa.literal(self.id, sa.Integer))
        return bool(connection.scalar(sa.select(lock)))

    def _holder(self, connection: sa.Connection) -> int | None:
        holder = self._dialect.sessions.lock_holder(self._table, sa.literal(self.id, sa.Integer))
        session: int | None = connection.scalar(sa.select(holder))
        return session

    def _end_old_session(self, connection: sa.Connection) -> bool:
        """End an earlier session of this owner that still has the lock, and take that: then its transaction is over."""
        session = self._holder(connection)
        # A session that has just ended, or that is another user's, cannot be ended.
        with contextlib.suppress(sa.exc.DBAPIError), connection.begin_nested():
            if session in self._sessions:
                connection.execute(self._dialect.sessions.end_session(session))
        deadline = time.monotonic() + END_OF_SESSION_SECONDS
        while not (taken := self._try_lock(connection)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return taken

"""Advisory locks on the keys of jobs in place of row locks: `Queue(..., hold="transaction", locking=AdvisoryLocks())`.

A claim finds candidates, tries to lock as many keys as it wants, and reads the rows again under these locks. No row is
locked, so others may write the rows while a handler works. An advisory lock belongs to the session. So it can be
released at once if the recheck fails; and it is kept until the transaction has ended, so that its next holder sees what
the transaction wrote.

All consumers of a table need this locking: row locks and advisory locks do not exclude each other. Beside owners by
lease it is refused (ClaimsDiffer).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateFinder, check_keys, examined_of, first_group
from claimjobs.claim.locking import JobLocks, Locking
from claimjobs.claim.row_reader import AS_IT_IS, RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import SESSION_LOCKS
from claimjobs.dialects import Dialect, Key, Lock
from claimjobs.errors import SessionsShared
from claimjobs.job import Job
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles


class AdvisoryLocks(Locking):
    """Advisory locks on keys, for claims that an open transaction holds."""

    holds = ("transaction",)

    def __init__(self, *, behind_pooler: bool = False) -> None:
        """`behind_pooler`: there is a pooler in between, and it shares no session. Otherwise each new session is asked,
        and a claim raises SessionsShared if it may be shared.
        """
        self._behind_pooler = behind_pooler

    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        return AdvisoryJobLocks(backend, selection, behind_pooler=self._behind_pooler)


class AdvisoryJobLocks(JobLocks):
    """Finds candidates, tries to lock as many as are wanted, checks them again, and goes on until it has enough."""

    is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, *, behind_pooler: bool) -> None:
        self._roles, self._dialect = backend.roles, backend.dialect
        self._finder = CandidateFinder(backend, selection)
        self.keyset_order = self._finder.keyset_order
        self._rows = RowReader(backend.roles, backend.dialect)
        self._recheck = CompiledStatement(recheck(backend.roles, backend.dialect, selection, self._rows.columns))
        self._behind_pooler = behind_pooler

    def lock(
        self, connection: sa.Connection, request: ClaimRequest, marked: Mapping[str, Any] = AS_IT_IS
    ) -> ClaimResult:
        locks = self._locks_of(connection)
        rows = self._finder.rows(connection, request)
        if not rows:
            return NOTHING
        candidates, size = first_group(rows, request.size)
        places = {key: place for place, key in enumerate(candidates)}
        jobs: list[Job] = []
        rest = deque(candidates)
        while rest and len(jobs) < size:
            if locked := _lock_some(connection, locks, rest, size - len(jobs)):
                jobs += self._rechecked(connection, locks, locked, group_size=rows[0][-1])
        jobs.sort(key=lambda job: places[job.key])
        return ClaimResult(jobs, len(rows), examined_of(candidates, jobs, size), suspects=bool(rows[0][-1]))

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        find = Phase("find", self._finder.of(request), request.find_parameters)
        return [find, Phase("check again", self._recheck.statement, {"claimjobs_keys": keys})]

    def _rechecked(
        self, connection: sa.Connection, locks: SessionKeyLocks, keys: list[Key], *, group_size: int
    ) -> list[Job]:
        """The locked jobs that are still ready, in a group of this size; the locks of the others are released."""
        rows = self._recheck.rows(connection, {"claimjobs_keys": keys}, self._rows)
        sizes = self._rows.group_sizes(rows)
        jobs = self._rows.jobs([row for row, size in zip(rows, sizes, strict=True) if size == group_size])
        check_keys(self._roles, jobs)
        locks.unlock(connection, set(keys) - {job.key for job in jobs})
        return jobs

    def _locks_of(self, connection: sa.Connection) -> SessionKeyLocks:
        found: SessionKeyLocks | None = connection.info.get(SESSION_LOCKS)
        if found is None:
            found = self._new_locks(connection)
            _guard(connection.engine.pool)
            connection.info[SESSION_LOCKS] = found
        return found

    def _new_locks(self, connection: sa.Connection) -> SessionKeyLocks:
        sessions = self._dialect.sessions
        ours = self._behind_pooler or sessions.is_as_greeted(connection)
        if not (ours and sessions.locks_are_seen(connection)):
            raise SessionsShared(
                "an advisory lock belongs to a session, and a pooler shares sessions, or the primaries of a group do "
                "not see each other's locks",
                "or leave out `locking`; if the pooler shares no session, give AdvisoryLocks(behind_pooler=True)",
            )
        table = f"{self._dialect.table_rules.place(connection, self._roles.table).schema}.{self._roles.table.name}"
        return SessionKeyLocks(self._dialect, table, KeyText(self._roles, connection.dialect))


class SessionKeyLocks:
    """The advisory locks of one session on the keys of one table.

    The database counts how often a session locked a key, and needs as many unlocks. So no key is locked twice.
    """

    def __init__(self, dialect: Dialect, table: str, texts: KeyText) -> None:
        """`table`: its name with the database that it is in, as a part of each lock's name."""
        self._dialect, self._table, self._texts = dialect, table, texts
        self.held: set[Lock] = set()
        """Also locks of a statement that failed: it may have got some."""

    def try_keys(self, connection: sa.Connection, keys: Sequence[Key]) -> list[Key]:
        """Try to lock each key; the keys whose lock was got."""
        wanted = self._new(keys)
        self.held.update(wanted)
        for tried, is_locked in self._send(connection, self._dialect.key_locks.try_each, wanted):
            if not is_locked:
                self.held.discard(tried)
        return [key for lock, key in wanted.items() if lock in self.held]

    def _new(self, keys: Sequence[Key]) -> dict[Lock, Key]:
        """The locks on these keys that this session does not have; two keys may share one."""
        locks = {self._lock_of(key): key for key in reversed(keys)}
        return {lock: locks[lock] for lock in reversed(locks) if lock not in self.held}

    def _lock_of(self, key: Key) -> Lock:
        return self._dialect.key_locks.lock_of(self._table, self._texts.text(key))

    def unlock(self, connection: sa.Connection, keys: Iterable[Key]) -> None:
        """Release the locks on these keys."""
        self._unlock_all(connection, {self._lock_of(key) for key in keys})

    def clear(self, connection: sa.Connection) -> None:
        """Release all locks, in a transaction of its own."""
        if self.held:
            with connection.begin():
                self._unlock_all(connection, set(self.held))

    def _unlock_all(self, connection: sa.Connection, locks: set[Lock]) -> None:
        self._send(connection, self._dialect.key_locks.unlock_each, locks)
        self.held -= locks

    def _send(self, connection: sa.Connection, statement: sa.Select[Any], locks: Iterable[Lock]) -> Sequence[Any]:
        some = list(locks)
        return connection.execute(statement, {"locks": some}).all() if some else ()


def _lock_some(connection: sa.Connection, locks: SessionKeyLocks, rest: deque[Key], wanted: int) -> list[Key]:
    """Lock as many of the remaining keys as are wanted, and remove from `rest` those that were tried."""
    locked: list[Key] = []
    while rest and len(locked) < wanted:
        some = [rest.popleft() for _ in range(min(wanted - len(locked), len(rest)))]
        locked += locks.try_keys(connection, some)
    return locked


class KeyText:
    """Writes a key as text, equally for every driver and every description of the table."""

    def __init__(self, roles: ColumnRoles, dialect: sa.Dialect) -> None:
        self._as_stored = [_as_stored(column, dialect) for column in roles.key]

    def text(self, key: Key) -> str:
        """The text of this key."""
        parts = key if len(self._as_stored) > 1 else (key,)
        texts = [_text(stored(part)) for stored, part in zip(self._as_stored, parts, strict=True)]
        return texts[0] if len(texts) == 1 else json.dumps(texts)


def _as_stored(column: Column, dialect: sa.Dialect) -> Callable[[Any], Any]:
    """What converts a value to the one that the database stores: a user's own type may change it."""
    if isinstance(column.type, sa.Uuid):  # a UUID, or a text with dashes or without
        return lambda part: UUID(str(part)).hex
    return column.type.dialect_impl(dialect).bind_processor(dialect) or (lambda part: part)


def _text(part: Any) -> str:
    if isinstance(part, datetime) and part.tzinfo is not None:
        part = part.astimezone(UTC).replace(tzinfo=None)
    if isinstance(part, bytes | bytearray | memoryview):
        return part.hex()
    if isinstance(part, UUID):
        return part.hex
    return str(int(part) if isinstance(part, bool) else part)


def recheck(roles: ColumnRoles, dialect: Dialect, selection: Selection, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of those of the jobs `keys` that are still ready. It runs after they were locked, and so reads what
    was committed between the search and the locks."""
    jobs = sa.select(*columns).where(dialect.among(roles.key, "claimjobs_keys"), selection.ready)
    return dialect.by_key(jobs, roles.key_index)


def _guard(pool: sa.Pool) -> None:
    """If a handler closes `batch.connection`, the next user of that session must not inherit its locks."""
    if not sa.event.contains(pool, "checkin", _end_if_locked):
        sa.event.listen(pool, "checkin", _end_if_locked)


def _end_if_locked(_driver_connection: Any, session: sa.pool.ConnectionPoolEntry) -> None:
    locks: SessionKeyLocks | None = session.info.get(SESSION_LOCKS)
    if locks is not None and locks.held:
        session.invalidate()

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateFinder, check_keys, examined_of, first_group
from claimjobs.claim.locking import JobLocks, Locking
from claimjobs.claim.row_reader import UNMARKED, Marked, RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.kept_connection import SESSION_LOCKS
from claimjobs.dialects import Dialect, Key, Lock
from claimjobs.errors import SessionsShared
from claimjobs.job import Job, values_of
from claimjobs.key_text import same_text
from claimjobs.statements.find import Selection
from claimjobs.table.backend import Backend
from claimjobs.table.roles import ColumnRoles


@dataclass(frozen=True, kw_only=True)
class AdvisoryLocks(Locking):
    """Advisory locks on keys, for claims that an open transaction holds."""

    holds = ("transaction",)
    behind_pooler: bool = False
    """There is a pooler in between, and it shares no session. Otherwise each new session is asked, and a claim raises
    SessionsShared if it may be shared.
    """

    def locks(self, backend: Backend, selection: Selection, known: Sequence[str] = ()) -> JobLocks:
        return AdvisoryJobLocks(backend, selection, behind_pooler=self.behind_pooler)


class AdvisoryJobLocks(JobLocks):
    """Finds candidates, tries to lock as many as are wanted, checks them again, and goes on until it has enough."""

    is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, *, behind_pooler: bool) -> None:
        self._roles, self._dialect = backend.roles, backend.dialect
        self._finder = CandidateFinder(backend, selection)
        self.keyset_order = self._finder.keyset_order
        self._rows = RowReader(backend.roles, backend.dialect)
        # It runs after the jobs were locked, and so reads what was committed between the search and the locks.
        among = backend.dialect.among(backend.roles.key, "claimjobs_keys")
        jobs = sa.select(*self._rows.columns).where(among, selection.due)
        self._recheck = CompiledStatement(backend.dialect.by_key(jobs, backend.roles.key_index))
        self._behind_pooler = behind_pooler

    def lock(self, connection: sa.Connection, request: ClaimRequest, marked: Marked = UNMARKED) -> ClaimResult:
        locks = self._locks_of(connection)
        rows = self._finder.rows(connection, request)
        if not rows:
            return NOTHING
        candidates, size = first_group(rows, request.size)
        numbers = {key: number for number, key in enumerate(candidates)}
        jobs: list[Job] = []
        rest = deque(candidates)
        while rest and len(jobs) < size:
            locked: list[Key] = []
            while rest and len(locked) < size - len(jobs):
                wanted = min(size - len(jobs) - len(locked), len(rest))
                locked += locks.try_keys(connection, [rest.popleft() for _ in range(wanted)])
            if not locked:
                break
            found = self._recheck.rows(connection, {"claimjobs_keys": locked}, self._rows)
            sizes = zip(found, self._rows.group_sizes(found), strict=True)
            ready = self._rows.jobs([row for row, group in sizes if group == rows[0][-1]])
            check_keys(self._roles, ready)
            locks.unlock(connection, set(locked) - {job.key for job in ready})  # the others may have them at once
            jobs += ready
        jobs.sort(key=lambda job: numbers[job.key])
        return ClaimResult(jobs, len(rows), examined_of(candidates, jobs, size), suspects=bool(rows[0][-1]))

    def phases(self, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        find = Phase("find", self._finder.form_for(request), request.find_parameters)
        return [find, Phase("check again", self._recheck.statement, {"claimjobs_keys": keys})]

    def _locks_of(self, connection: sa.Connection) -> SessionKeyLocks:
        """The locks of this session. Raises SessionsShared for a new session that may be shared."""
        found: SessionKeyLocks | None = connection.info.get(SESSION_LOCKS)
        if found is not None:
            return found
        sessions = self._dialect.sessions
        ours = self._behind_pooler or sessions.is_as_greeted(connection)
        if not (ours and sessions.locks_are_seen(connection)):
            raise SessionsShared(
                "an advisory lock belongs to a session, and a pooler shares sessions, or the primaries of a group do "
                "not see each other's locks",
                "or leave out `locking`; if the pooler shares no session, give AdvisoryLocks(behind_pooler=True)",
            )
        pool, table = connection.engine.pool, self._roles.table
        if not sa.event.contains(pool, "checkin", _end_if_locked):
            sa.event.listen(pool, "checkin", _end_if_locked)
        name = f"{self._dialect.table_rules.locate(connection, table).schema}.{table.name}"
        text = key_text_of(self._roles, type(connection.dialect)())
        locks = connection.info[SESSION_LOCKS] = SessionKeyLocks(self._dialect, name, text)
        return locks


def _end_if_locked(_driver_connection: Any, session: sa.pool.ConnectionPoolEntry) -> None:
    """If a handler closes `batch.connection`, the next user of that session must not inherit its locks."""
    locks: SessionKeyLocks | None = session.info.get(SESSION_LOCKS)
    if locks is not None and locks.held:
        session.invalidate()


class SessionKeyLocks:
    """The advisory locks of one session on the keys of one table.

    The database counts how often a session locked a key, and needs as many unlocks. So no key is locked twice.
    """

    def __init__(self, dialect: Dialect, table: str, text: Callable[[Key], str]) -> None:
        """`table`: its name with the database that it is in, as a part of each lock's name. `text`: writes a key."""
        self._sessions, self._table, self._text = dialect.sessions, table, text
        self.held: set[Lock] = set()
        """Also locks of a statement that failed: it may have got some."""

    def try_keys(self, connection: sa.Connection, keys: Sequence[Key]) -> list[Key]:
        """Try to lock each key; the keys whose lock was got. Of keys that share a lock the first one gets it."""
        wanted: dict[Lock, Key] = {}
        for key in keys:
            lock = self._lock_of(key)
            if lock not in self.held:
                wanted.setdefault(lock, key)
        self.held.update(wanted)
        for tried, is_locked in self._send(connection, self._sessions.try_key_locks, wanted):
            if not is_locked:
                self.held.discard(tried)
        return [key for lock, key in wanted.items() if lock in self.held]

    def unlock(self, connection: sa.Connection, keys: Iterable[Key]) -> None:
        locks = {self._lock_of(key) for key in keys}
        self._send(connection, self._sessions.unlock_key_locks, locks)
        self.held -= locks

    def clear(self, connection: sa.Connection) -> None:
        """Release all locks, in a transaction of its own."""
        if self.held:
            with connection.begin():
                self._send(connection, self._sessions.unlock_key_locks, self.held)
                self.held.clear()

    def _lock_of(self, key: Key) -> Lock:
        return self._sessions.key_lock(self._table, self._text(key))

    def _send(self, connection: sa.Connection, statement: sa.Select[Any], locks: Iterable[Lock]) -> Sequence[Any]:
        some = list(locks)
        return connection.execute(statement, {"locks": some}).all() if some else ()


def key_text_of(roles: ColumnRoles, dialect: sa.Dialect) -> Callable[[Key], str]:
    """What writes a key as text, equally for every driver and every description of the table. `dialect`: one without a
    driver, so that no value is wrapped for a driver.
    """
    writes = [_as_stored(column.type, dialect) for column in roles.key]

    def text(key: Key) -> str:
        texts = [same_text(write(part)) for part, write in zip(values_of(key), writes, strict=True)]
        return texts[0] if len(texts) == 1 else json.dumps(texts)

    return text


def _as_stored(type_: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> Callable[[Any], Any]:
    """What converts a value to what the database stores: a user's own type may change it."""
    if isinstance(type_, sa.Uuid):  # its values are UUIDs, or texts with dashes or without
        return lambda part: UUID(str(part))
    return type_.dialect_impl(dialect).bind_processor(dialect) or (lambda part: part)

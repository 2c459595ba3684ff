"""Claims by advisory locks: find candidates, try to lock their keys, check the rows again under the lock.

Rows are not locked. An advisory lock belongs to the session. So it can be released at once if the recheck fails; and it
is kept until the transaction has ended, so that its next holder sees what the transaction wrote.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from claimjobs.claim.candidates import CandidateFinder, check_keys, examined_of, first_group
from claimjobs.claim.claimed_values import ClaimedValues
from claimjobs.claim.mark import Mark
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategy import NOTHING, ClaimRequest, ClaimResult, ClaimStrategy, OwnerDead, Phase
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import SESSION_LOCKS
from claimjobs.dialects import Dialect, Key, Lock
from claimjobs.errors import SessionsNotOurs
from claimjobs.job import Job
from claimjobs.options import HoldKind
from claimjobs.statements import advisory as statements
from claimjobs.statements.find import Selection
from claimjobs.statements.lock import lock
from claimjobs.table.backend import Backend
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles


class AdvisoryLocks:
    """The advisory locks of one session on the keys of one table.

    The database counts how often a session locked a key, and needs as many unlocks. So no key is locked twice.
    """

    def __init__(self, dialect: Dialect, table: str, texts: KeyText) -> None:
        """`table`: its name with the database that it is in, as a part of each lock's name."""
        self._dialect, self._table, self._texts = dialect, table, texts
        self._try_locks, self._unlock = statements.try_locks(dialect), statements.unlock(dialect)
        self.held: set[Lock] = set()
        """Also locks of a statement that failed: it may have got some."""

    def try_keys(self, connection: sa.Connection, keys: Sequence[Key]) -> list[Key]:
        """Try to lock each key; the keys whose lock was got."""
        wanted = self._new(keys)
        self.held.update(wanted)
        for tried, is_locked in self._send(connection, self._try_locks, wanted):
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
        self._send(connection, self._unlock, locks)
        self.held -= locks

    def _send(self, connection: sa.Connection, statement: sa.Select[Any], locks: Iterable[Lock]) -> Sequence[Any]:
        some = list(locks)
        return connection.execute(statement, {"locks": self._dialect.key_locks.parameter(some)}).all() if some else ()


class Recheck(ABC):
    """Checks which of the locked jobs are claimed now: another owner may have claimed or settled some in between."""

    @abstractmethod
    def jobs(self, connection: sa.Connection, owner: int, keys: list[Key]) -> list[Job]:
        """The jobs that are claimed by this owner. Raises OwnerDead."""

    @abstractmethod
    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        """The statements of the check."""


class RecheckOnly(Recheck):
    """A plain read: the locks are the claim."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._rows = RowReader(backend.roles, backend.dialect)
        self._recheck = CompiledStatement(
            statements.recheck(backend.roles, backend.dialect, selection, self._rows.columns)
        )

    def jobs(self, connection: sa.Connection, owner: int, keys: list[Key]) -> list[Job]:
        return self._rows.jobs(self._recheck.rows(connection, {"claimjobs_keys": keys}, self._rows))

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return [Phase("check again", self._recheck.statement, {"claimjobs_keys": keys})]


class RecheckAndMark(Recheck):
    """A guarded UPDATE: the jobs that it writes belong to the owner, also when the locks are released."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        roles, dialect, owners = backend.roles, backend.dialect, backend.owners
        self._reader = RowReader(roles, dialect)
        self._returns = dialect.returns_what_it_writes
        mark = statements.mark_ready(roles, dialect, selection, now=now, owners=owners)
        self._mark = CompiledStatement(mark.returning(*self._reader.columns) if self._returns else mark)
        self._marked = CompiledStatement(statements.marked(roles, dialect, self._reader.columns))
        self._is_alive = statements.is_alive(owners)

    def jobs(self, connection: sa.Connection, owner: int, keys: list[Key]) -> list[Job]:
        rows = self._rows(connection, {"claimjobs_keys": keys, "claimjobs_me": owner})
        if not rows and not connection.scalar(self._is_alive, {"claimjobs_me": owner}):
            raise OwnerDead
        return self._reader.jobs(rows)

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        return [Phase("mark", self._mark.statement, {"claimjobs_keys": keys, "claimjobs_me": owner})]

    def _rows(self, connection: sa.Connection, parameters: dict[str, Any]) -> Sequence[Any]:
        if self._returns:
            return self._mark.rows(connection, parameters, self._reader)
        marked = self._mark.count(connection, parameters)
        return self._marked.rows(connection, parameters, self._reader) if marked else ()


class LockRowsAndMark(Recheck):
    """Locks the rows too. So a mark that falls short shows that the database swallows the write, and no other owner."""

    def __init__(self, backend: Backend, selection: Selection, now: sa.ColumnElement[Any]) -> None:
        self._values = ClaimedValues(backend.roles)
        self._reader = RowReader(backend.roles, backend.dialect, self._values.names)
        self._lock = CompiledStatement(lock(backend.roles, backend.dialect, selection, self._reader.parts))
        self._mark = Mark(backend, now)

    def jobs(self, connection: sa.Connection, owner: int, keys: list[Key]) -> list[Job]:
        parameters = {"claimjobs_candidates": keys, "claimjobs_size": len(keys)}
        jobs = self._reader.jobs(self._lock.rows(connection, parameters, self._reader), self._values.of(owner))
        self._mark.write(connection, owner, jobs)
        return jobs

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        locked = Phase("lock", self._lock.statement, {"claimjobs_candidates": keys, "claimjobs_size": len(keys)})
        return [locked, self._mark.phase(owner, keys)]


class AdvisoryStrategy(ClaimStrategy):
    """Finds candidates, tries to lock as many as are wanted, checks them again, and goes on until it has enough."""

    needs_no_transaction = is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, recheck: Recheck, *, declared: bool | None) -> None:
        self._roles, self._dialect = backend.roles, backend.dialect
        self._finder = CandidateFinder(backend, selection)
        self.keyset_order = self._finder.keyset_order
        self._recheck = recheck
        self._declared = declared

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        locks = self._locks(connection)
        rows = self._finder.rows(connection, request)
        if not rows:
            return NOTHING
        candidates, size = first_group(rows, request.size)
        places = {key: place for place, key in enumerate(candidates)}
        jobs: list[Job] = []
        rest = deque(candidates)
        while rest and len(jobs) < size:
            locked = _lock_some(connection, locks, rest, size - len(jobs))
            jobs += self._rechecked(connection, locks, owner, locked)
        jobs.sort(key=lambda job: places[job.key])
        return ClaimResult(jobs, len(rows), examined_of(candidates, jobs, size), owner, suspects=bool(rows[0][-1]))

    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        return [self._finder.phase(request), *self._recheck.phases(owner, keys)]

    def _rechecked(self, connection: sa.Connection, locks: AdvisoryLocks, owner: int, keys: list[Key]) -> list[Job]:
        """The locked jobs that are claimed; the locks of the others are released."""
        jobs = self._recheck.jobs(connection, owner, keys) if keys else []
        check_keys(self._roles, jobs)
        locks.unlock(connection, set(keys) - {job.key for job in jobs})
        return jobs

    def _locks(self, connection: sa.Connection) -> AdvisoryLocks:
        found: AdvisoryLocks | None = connection.info.get(SESSION_LOCKS)
        if found is None:
            found = self._new_locks(connection)
            _guard(connection.engine.pool)
            connection.info[SESSION_LOCKS] = found
        return found

    def _new_locks(self, connection: sa.Connection) -> AdvisoryLocks:
        sessions, declared = self._dialect.sessions, self._declared
        ours = sessions.is_as_greeted(connection) if declared is None else declared
        if not (ours and sessions.locks_are_seen(connection)):
            raise SessionsNotOurs
        home = connection.execute(self._dialect.key_locks.schema_of(self._roles.table)).scalar_one()
        table = f"{home}.{self._roles.table.name}"
        return AdvisoryLocks(self._dialect, table, KeyText(self._roles, connection.dialect))


def _lock_some(connection: sa.Connection, locks: AdvisoryLocks, rest: deque[Key], wanted: int) -> list[Key]:
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


def advisory_strategy(
    backend: Backend,
    selection: Selection,
    now: sa.ColumnElement[Any],
    hold: HoldKind,
    *,
    session_lock: bool | None = None,
    lock_before_mark: bool = False,
) -> ClaimStrategy:
    """The claim by advisory locks. `lock_before_mark`: see `strategy_for`.

    `session_lock`: whether a session of the database belongs to this connection alone (see `Liveness`). None: each new
    session is asked. A claim raises SessionsNotOurs if it does not, as behind a pooler.
    """
    recheck: Recheck
    if hold == "transaction":
        recheck = RecheckOnly(backend, selection)
    else:
        recheck = (LockRowsAndMark if lock_before_mark else RecheckAndMark)(backend, selection, now)
    return AdvisoryStrategy(backend, selection, recheck, declared=session_lock)


def _guard(pool: sa.Pool) -> None:
    """If a handler closes `batch.connection`, the next user of that session must not inherit its locks."""
    if not sa.event.contains(pool, "checkin", _end_if_locked):
        sa.event.listen(pool, "checkin", _end_if_locked)


def _end_if_locked(_driver_connection: Any, session: sa.pool.ConnectionPoolEntry) -> None:
    locks: AdvisoryLocks | None = session.info.get(SESSION_LOCKS)
    if locks is not None and locks.held:
        session.invalidate()

"""Claims by advisory locks: candidates first, then try locks on their keys, and another look under the lock.

Row locks are not used. A lock belongs to the session, so that one whose recheck fails is let go of at once, and it is
kept until after the end of the transaction, so that whoever gets it next sees what the transaction wrote.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.claim.find_and_lock import (
    NOTHING,
    ClaimRequest,
    ClaimResult,
    CursorStatement,
    alike,
    check_keys,
    reach_of,
)
from claimjobs.claim.row_reader import RowReader
from claimjobs.claim.strategies import ClaimStrategy, Hold, OwnerDead
from claimjobs.database.compiled_statement import CompiledStatement
from claimjobs.database.connection import AFTERWARDS
from claimjobs.dialects import Dialect, Key, Lock
from claimjobs.errors import SessionsNotOurs
from claimjobs.job import Job
from claimjobs.statements import advisory as statements
from claimjobs.statements.find import Selection, find
from claimjobs.table.backend import Backend
from claimjobs.table.job_state import Column
from claimjobs.table.roles import Roles

LOCKS: Final = "claimjobs_locks"
"""Where the `info` of a connection holds the locks of its session; gone with the session."""


class AdvisoryLocks:
    """What one session holds of the locks on a table's keys.

    Session locks are counted, and one taken twice would have to be let go of twice: so none is.
    """

    def __init__(self, dialect: Dialect, lock_of: Callable[[Key], Lock]) -> None:
        self._dialect = dialect
        self._lock_of = lock_of
        self._take, self._let_go = statements.take(dialect), statements.let_go(dialect)
        self.held: set[Lock] = set()
        """Also those of which nobody knows yet whether they were had: a statement that fails may have taken some."""

    def take(self, connection: sa.Connection, keys: Sequence[Key]) -> list[Key]:
        """Those of the keys whose lock could be had."""
        wanted = self._new(keys)
        self.held.update(wanted)
        for lock, taken in self._send(connection, self._take, wanted):
            if not taken:
                self.held.discard(lock)
        return [key for lock, key in wanted.items() if lock in self.held]

    def _new(self, keys: Sequence[Key]) -> dict[Lock, Key]:
        """The locks on these keys that this session does not have; two keys may share one."""
        locks = {self._lock_of(key): key for key in reversed(keys)}
        return {lock: locks[lock] for lock in reversed(locks) if lock not in self.held}

    def let_go(self, connection: sa.Connection, keys: Iterable[Key]) -> None:
        """Let go of the locks on these keys."""
        self._free(connection, {self._lock_of(key) for key in keys})

    def clear(self, connection: sa.Connection) -> None:
        """Let go of all that are held, in a transaction of its own."""
        if self.held:
            with connection.begin():
                self._free(connection, set(self.held))

    def _free(self, connection: sa.Connection, locks: set[Lock]) -> None:
        self._send(connection, self._let_go, locks)
        self.held -= locks

    def _send(self, connection: sa.Connection, statement: sa.Select[Any], locks: Iterable[Lock]) -> Sequence[Any]:
        some = list(locks)
        return connection.execute(statement, {"locks": self._dialect.locks(some)}).all() if some else ()


class Recheck(ABC):
    """Which of the jobs whose locks are had are ours: they are still ready, and were not taken meanwhile."""

    @abstractmethod
    def jobs(self, connection: sa.Connection, owner: int, keys: list[Key]) -> list[Job]:
        """The jobs that are claimed. Raises OwnerDead."""


class RecheckOnly(Recheck):
    """A plain read: the locks are the claim."""

    def __init__(self, backend: Backend, selection: Selection) -> None:
        self._rows = RowReader(backend.roles, backend.dialect)
        self._recheck = CompiledStatement(
            statements.recheck(backend.roles, backend.dialect, selection, self._rows.columns)
        )

    def jobs(self, connection: sa.Connection, owner: int, keys: list[Key]) -> list[Job]:
        return self._rows.jobs(self._rows.all(connection, self._recheck, {"claimjobs_keys": keys}))


class RecheckAndMark(Recheck):
    """A guarded UPDATE: what it reaches is claimed by the owner, and stays so when the locks are gone."""

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

    def _rows(self, connection: sa.Connection, given: dict[str, Any]) -> Sequence[Any]:
        if self._returns:
            return self._reader.all(connection, self._mark, given)
        return self._reader.all(connection, self._marked, given) if self._mark.count(connection, given) else ()


class AdvisoryStrategy(ClaimStrategy):
    """Find candidates, try their locks in rounds of as many as are wanted, keep those whose recheck succeeds."""

    is_one_statement = is_lazy = False

    def __init__(self, backend: Backend, selection: Selection, recheck: Recheck, *, declared: bool | None) -> None:
        self._roles, self._dialect = backend.roles, backend.dialect
        self._find = CursorStatement(partial(find, self._roles), selection, backend.dialect)
        self.keyset_order = self._find.keyset_order
        self._recheck = recheck
        self._declared = declared

    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        locks = self._locks(connection)
        rows = connection.execute(self._find.of(request), request.candidates).all()
        if not rows:
            return NOTHING
        candidates, size = alike(rows, request.size)
        places = {key: place for place, key in enumerate(candidates)}
        jobs: list[Job] = []
        rest = deque(candidates)
        while rest and len(jobs) < size:
            jobs += self._some(connection, locks, owner, _had(connection, locks, rest, size - len(jobs)))
        jobs.sort(key=lambda job: places[job.key])
        return ClaimResult(jobs, len(rows), reach_of(candidates, jobs, size), owner, suspects=bool(rows[0][-1]))

    def _some(self, connection: sa.Connection, locks: AdvisoryLocks, owner: int, keys: list[Key]) -> list[Job]:
        """The jobs that are ours of those whose locks are had; the other locks are let go of at once."""
        jobs = self._recheck.jobs(connection, owner, keys) if keys else []
        check_keys(self._roles, jobs)
        locks.let_go(connection, set(keys) - {job.key for job in jobs})
        return jobs

    def _locks(self, connection: sa.Connection) -> AdvisoryLocks:
        found: AdvisoryLocks | None = connection.info.get(LOCKS)
        if found is None:
            found = self._new_locks(connection)
            _guard(connection.engine.pool)
            connection.info.update({LOCKS: found, AFTERWARDS: found.clear})
        return found

    def _new_locks(self, connection: sa.Connection) -> AdvisoryLocks:
        ours = self._dialect.sessions_are_ours(connection) if self._declared is None else self._declared
        if not ours:
            raise SessionsNotOurs
        home = connection.execute(self._dialect.home(self._roles.table)).scalar_one()
        texts, table = KeyText(self._roles, connection.dialect), f"{home}.{self._roles.table.name}"
        return AdvisoryLocks(self._dialect, lambda key: self._dialect.lock_of(table, texts.text(key)))


def _had(connection: sa.Connection, locks: AdvisoryLocks, rest: deque[Key], wanted: int) -> list[Key]:
    """The first keys of the rest whose locks can be had, as many as are wanted."""
    had: list[Key] = []
    while rest and len(had) < wanted:
        some = [rest.popleft() for _ in range(min(wanted - len(had), len(rest)))]
        had += locks.take(connection, some)
    return had


class KeyText:
    """A key as text: the same for every driver, and every description of the table."""

    def __init__(self, roles: Roles, dialect: sa.Dialect) -> None:
        self._as_stored = [_as_stored(column, dialect) for column in roles.key]

    def text(self, key: Key) -> str:
        """The text of this key."""
        parts = key if len(self._as_stored) > 1 else (key,)
        texts = [_text(stored(part)) for stored, part in zip(self._as_stored, parts, strict=True)]
        return texts[0] if len(texts) == 1 else json.dumps(texts)


def _as_stored(column: Column, dialect: sa.Dialect) -> Callable[[Any], Any]:
    """What the database has for a value: a type of the user's may make anything of it."""
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


def algorithm(
    backend: Backend, selection: Selection, now: sa.ColumnElement[Any], hold: Hold, *, session_lock: bool | None = None
) -> ClaimStrategy:
    """The claim by advisory locks, for what is to hold it.

    `session_lock` declares whether sessions are ours (see `Liveness`); None: each new one is asked. A claim raises
    SessionsNotOurs where they are not.
    """
    recheck = RecheckOnly(backend, selection) if hold == "transaction" else RecheckAndMark(backend, selection, now)
    return AdvisoryStrategy(backend, selection, recheck, declared=session_lock)


def _guard(pool: sa.Pool) -> None:
    """A handler that closes `batch.connection` must not leave the locks to whoever has that session next."""
    if not sa.event.contains(pool, "checkin", _end_if_locked):
        sa.event.listen(pool, "checkin", _end_if_locked)


def _end_if_locked(_driver_connection: Any, session: sa.pool.ConnectionPoolEntry) -> None:
    locks: AdvisoryLocks | None = session.info.get(LOCKS)
    if locks is not None and locks.held:
        session.invalidate()

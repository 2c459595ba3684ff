"""Registry: reads the owners of a table, and decides which of them are dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from claimjobs.statements import owners as statements
from claimjobs.table.backend import Backend
from claimjobs.table.record_description import RecordDescription

SAME_RUN: Final = 2.0
"""Seconds by which two readings of a server's start may differ, where the server counts in whole seconds."""


@dataclass(frozen=True)
class ServerRun:
    """The run of the server that is asked, known by its start."""

    since: datetime
    is_exact: bool
    """Whether each reading of the start is the same."""
    shows_locks: bool = True
    """Whether it shows the locks of all sessions. One of several primaries shows only its own."""

    @classmethod
    def of(cls, connection: sa.Connection, backend: Backend) -> ServerRun:
        """The run of the server of this connection."""
        sessions = backend.dialect.sessions
        since, shows_locks = sessions.server_since(connection), sessions.locks_are_seen(connection)
        return cls(since, sessions.knows_start_exactly, shows_locks)

    def is_same(self, since: datetime) -> bool:
        """Whether a run with this start is this one."""
        return abs((self.since - since).total_seconds()) <= (0.0 if self.is_exact else SAME_RUN)


@dataclass(frozen=True)
class OwnerState:
    """An owner, as the database had it at one moment."""

    id: int
    host: str
    pid: int
    started: datetime
    beat: datetime
    lease: float
    server_since: datetime | None
    died: datetime | None
    asleep: datetime | None
    """Since when it sleeps; None: it is awake."""
    holder: int | None
    """The session that holds its lock, if any."""
    session: int | None
    """The session in which it took its lock, as it wrote itself. No other session is ended."""
    kind: str | None
    sees: str | None
    unclaimable: int | None
    """How many rows it leaves, because no claim can take them; None: it has met no such row."""
    now: datetime

    @property
    def records(self) -> RecordDescription:
        """How its claims are recorded, and which claims it sees."""
        return RecordDescription.in_row(self.kind, self.sees)

    @property
    def silence(self) -> float:
        """Seconds since its last heartbeat; negative if the database's clock was set back since then."""
        return (self.now - self.beat).total_seconds()

    def is_dead(self, run: ServerRun, silence: float, *, locks_tell: bool = True) -> bool:
        """Whether it is dead after so many seconds of silence.

        The time without a server does not count as silence. A free session lock is a sign of death only if the server
        was not restarted since the lock was taken: after a restart or a failover every lock is free, and owners have
        the time of a lease to connect again.
        """
        if self.died is not None or self.is_from_before_failover(run):
            return self.died is not None
        running = (self.now - run.since).total_seconds()
        silent = min(silence, running) if running >= 0 else silence  # negative: the server's clock was set back
        if silent > self.lease:
            return True
        if self.server_since is None or self.holder is not None or not locks_tell:
            return False
        return run.shows_locks and run.is_same(self.server_since)

    def is_from_before_failover(self, run: ServerRun) -> bool:
        """Whether it has not come back since another server took over.

        That server was running when the owner wrote its last heartbeat elsewhere, which was replicated. Since when it
        takes writes is not known.
        """
        if self.server_since is None or self.holder is not None:
            return False
        return not run.is_same(self.server_since) and self.beat > run.since


@dataclass
class _Heartbeat:
    """The newest heartbeat of an owner that a watch has read."""

    beat: datetime
    silence: float
    """Its age in seconds when it was read first, by the database's clock."""
    since: float
    """When it was read first, by this machine's clock."""
    seen: float
    """When it was read last, by this machine's clock."""


class Watch:
    """Remembers heartbeats, so that owners are judged rightly when the database's clock is set.

    If it is set back, the last heartbeat of a dead owner lies in the future. But a heartbeat that does not change is
    silence, by this machine's clock. If it is set forward, every owner seems silent. But an owner whose heartbeat
    changed since the last call is alive. The database's clock counts only for an owner that is read for the first time.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Heartbeat] = {}

    def forget(self) -> None:
        """Forget all heartbeats: while the server was away, no owner could write one."""
        self._known.clear()

    def silences(self, owners: Sequence[OwnerState], at: float) -> dict[int, float]:
        """For how many seconds each owner has been silent; `at`: this machine's clock, in seconds."""
        before, self._known = self._known, {}
        for seen in owners:
            known = before.get(seen.id)
            if known is not None and known.beat == seen.beat:
                self._known[seen.id] = replace(known, seen=at)
                continue
            silence = max(0.0, seen.silence)
            if known is not None and seen.beat > known.beat:
                silence = min(silence, at - known.seen)
            self._known[seen.id] = _Heartbeat(seen.beat, silence, since=at, seen=at)
        return {id_: newest.silence + at - newest.since for id_, newest in self._known.items()}


def dead_among(
    owners: Sequence[OwnerState],
    connection: sa.Connection,
    backend: Backend,
    *,
    locks_tell: bool = True,
    silences: Mapping[int, float] | None = None,
) -> list[OwnerState]:
    """The dead ones of these owners. `locks_tell`: a free session lock counts.

    `silences`: for how many seconds each has been silent, from a `Watch`. None: the database's clock counts.
    """
    silent = silences or {seen.id: seen.silence for seen in owners}
    if not any(seen.holder is None or silent[seen.id] > seen.lease or seen.died for seen in owners):
        return []  # saves a statement in most cases
    run = ServerRun.of(connection, backend)
    return [seen for seen in owners if seen.is_dead(run, silent[seen.id], locks_tell=locks_tell)]


def left_by_failover(
    owners: Sequence[OwnerState], connection: sa.Connection, backend: Backend, silences: Mapping[int, float]
) -> list[OwnerState]:
    """Those of these owners that were silent for longer than a lease while no server took their heartbeats."""
    silent = [seen for seen in owners if seen.died is None and silences[seen.id] > seen.lease]
    if not silent:
        return []
    run = ServerRun.of(connection, backend)
    return [seen for seen in silent if seen.is_from_before_failover(run)]


def read_owners(connection: sa.Connection, backend: Backend) -> list[OwnerState]:
    """All owners of a queue's table."""
    everyone = statements.everyone(backend.owners, backend.dialect)
    rows = connection.execute(everyone, {"claims": backend.roles.claims}).mappings()
    return [OwnerState(**{field.name: row[field.name] for field in fields(OwnerState)}) for row in rows]

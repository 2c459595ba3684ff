"""Registry: the owners of a table, as the database shows them at one moment, and which of them are dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from claimjobs.statements import owners as statements
from claimjobs.table.backend import Backend

SAME_RUN: Final = 2.0
"""Seconds by which two readings of a server's start may differ: one of them counts in whole seconds."""


@dataclass(frozen=True)
class OwnerState:
    """An owner, as the database shows it at one moment."""

    id: int
    host: str
    pid: int
    started: datetime
    beat: datetime
    lease: float
    server_since: datetime | None
    died: datetime | None
    asleep: datetime | None
    """Since when it waits to be called."""
    session: int | None
    """The session that holds its lock, if any."""
    now: datetime

    @property
    def silence(self) -> float:
        """Seconds since its last sign of life; less than 0 where the database's clock was set back since then."""
        return (self.now - self.beat).total_seconds()

    def is_dead(self, server_since: datetime, silence: float, *, locks_tell: bool = True) -> bool:
        """Whether its jobs are to be handed back, after so many seconds of silence.

        While there was no server it could give no sign of life. A free session lock tells at once, but only if this
        server has run since it was taken: after a restart or a failover every lock is free, and owners have a lease's
        time to come back.
        """
        running = (self.now - server_since).total_seconds()
        silent = min(silence, running) if running >= 0 else silence  # less than 0: its clock was set back
        if self.died is not None or silent > self.lease:
            return True
        if self.server_since is None or self.session is not None or not locks_tell:
            return False
        return abs((self.server_since - server_since).total_seconds()) <= SAME_RUN


@dataclass
class _Heartbeat:
    """The newest heartbeat of an owner that a watcher has seen."""

    beat: datetime
    silence: float
    """Seconds since it was written, when it was seen first: by the database's clock."""
    since: float
    """When that was, by the watcher's own clock."""
    seen: float
    """When it was seen last, by the watcher's own clock."""


class Watch:
    """Remembers heartbeats between two looks, so that a step of the database's clock changes nobody's fate.

    Set back, it leaves the last heartbeat of a dead owner in the future: but a heartbeat that does not change is
    silence, by the clock of whoever watches. Set forward, it makes every owner seem silent: but one whose heartbeat was
    seen to change a moment ago is alive. Only of an owner that is seen for the first time the database's clock tells.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Heartbeat] = {}

    def forget(self) -> None:
        """Begin anew: the server was away, and nobody could give a sign of life."""
        self._known.clear()

    def look(self, owners: Sequence[OwnerState], at: float) -> dict[int, float]:
        """For how many seconds each owner has been silent; `at`: the watcher's own clock, in seconds."""
        self._known = {seen.id: self._heard(seen, at) for seen in owners}
        return {id_: heard.silence + at - heard.since for id_, heard in self._known.items()}

    def _heard(self, seen: OwnerState, at: float) -> _Heartbeat:
        known = self._known.get(seen.id)
        if known is not None and known.beat == seen.beat:
            return replace(known, seen=at)
        silence = max(0.0, seen.silence)
        if known is not None and seen.beat > known.beat:
            silence = min(silence, at - known.seen)
        return _Heartbeat(seen.beat, silence, since=at, seen=at)


def dead_among(
    owners: Sequence[OwnerState],
    connection: sa.Connection,
    backend: Backend,
    *,
    locks_tell: bool = True,
    silences: Mapping[int, float] | None = None,
) -> list[OwnerState]:
    """Those of the owners that are dead. `locks_tell`: a free session lock counts.

    `silences`: for how long each has been silent, in seconds, where a `Watch` knows it.
    """
    silent = silences or {seen.id: seen.silence for seen in owners}
    if not any(seen.session is None or silent[seen.id] > seen.lease or seen.died for seen in owners):
        return []  # spares the server a question that is rarely needed
    since = backend.dialect.server_since(connection)
    return [seen for seen in owners if seen.is_dead(since, silent[seen.id], locks_tell=locks_tell)]


def look(connection: sa.Connection, backend: Backend) -> list[OwnerState]:
    """All owners of a queue's table, as they are now."""
    names = ("id", "host", "pid", "started", "beat", "lease", "server_since", "died", "asleep", "session", "now")
    everyone = statements.everyone(backend.owners, backend.dialect)
    rows = connection.execute(everyone, {"claims": backend.roles.name}).mappings()
    return [OwnerState(**{name: row[name] for name in names}) for row in rows]

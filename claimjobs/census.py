"""Census: the owners of a queue, as the database shows them at one moment, and which of them are dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.statements import owners as statements

SAME_RUN: Final = 2.0
"""Seconds by which two readings of a server's start may differ: one of them counts in whole seconds."""


@dataclass(frozen=True)
class Seen:
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
        """Seconds since its last sign of life."""
        return (self.now - self.beat).total_seconds()

    def silent_for(self, server_since: datetime) -> float:
        """Seconds in which it could have given a sign of life, but did not: while there was no server it could not."""
        return (self.now - max(self.beat, server_since)).total_seconds()

    def is_dead(self, server_since: datetime, *, locks_tell: bool = True) -> bool:
        """Whether its jobs are to be handed back.

        A free session lock tells at once, but only if this server has run since it was taken: after a restart or
        a failover every lock is free, and owners have a lease's time to come back.
        """
        if self.died is not None or self.silent_for(server_since) > self.lease:
            return True
        if self.server_since is None or self.session is not None or not locks_tell:
            return False
        return abs((self.server_since - server_since).total_seconds()) <= SAME_RUN


def dead_among(
    owners: Sequence[Seen], connection: sa.Connection, backend: Backend, *, locks_tell: bool = True
) -> list[Seen]:
    """Those of the owners that are dead. `locks_tell`: a free session lock counts."""
    if not any(seen.session is None or seen.silence > seen.lease or seen.died for seen in owners):
        return []  # spares the server a question that is rarely needed
    since = backend.dialect.server_since(connection)
    return [seen for seen in owners if seen.is_dead(since, locks_tell=locks_tell)]


def look(connection: sa.Connection, backend: Backend) -> list[Seen]:
    """All owners of a queue's table, as they are now."""
    names = ("id", "host", "pid", "started", "beat", "lease", "server_since", "died", "asleep", "session", "now")
    everyone = statements.everyone(backend.owners, backend.dialect)
    rows = connection.execute(everyone, {"claims": backend.roles.name}).mappings()
    return [Seen(**{name: row[name] for name in names}) for row in rows]

"""Registry: reads the owners of a table, decides which of them are dead, and whether all see each other's claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.database.transactions import savepoint, unless_hidden
from claimjobs.dialects.error_codes import READ_ONLY
from claimjobs.errors import ClaimsDiffer, ReadOnly, session_read_only
from claimjobs.statements.owners import beat, everyone
from claimjobs.table.backend import Backend
from claimjobs.table.definitions import OWNER_TABLE
from claimjobs.table.record_description import RecordDescription

SAME_START_SECONDS: Final = 2.0
"""Seconds by which two readings of a server's start may differ, where the server counts in whole seconds."""
SHOWN: Final = 9
"""The most dead owners that an error names."""
NOBODY: Final = {"claimjobs_me": 0, "claimjobs_host": "", "claimjobs_pid": 0}
"""An owner that is in no table."""


@dataclass(frozen=True)
class ServerRun:
    """The run of the server that is asked, known by its start."""

    since: datetime
    accuracy: float
    """Seconds by which two readings of the start may differ."""
    shows_locks: bool
    """Whether the server shows the locks of all sessions. One of several primaries shows only its own."""

    def is_same(self, since: datetime) -> bool:
        """Whether a run with this start is this one."""
        return abs((self.since - since).total_seconds()) <= self.accuracy


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
    kind: str
    sees: str
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
    """The age in seconds when this heartbeat was read first, by the database's clock."""
    since: float
    """When this heartbeat was read first, by this machine's clock."""
    seen: float
    """When this heartbeat was read last, by this machine's clock."""


class Watch:
    """Remembers heartbeats, so that owners are judged rightly when the database's clock is set.

    If it is set back, the last heartbeat of a dead owner lies in the future. But a heartbeat that does not change is
    silence, by this machine's clock. If it is set forward, every owner seems silent. But an owner whose heartbeat
    changed since the last call is alive. The database's clock counts only for an owner that is read for the first time.
    """

    def __init__(self) -> None:
        self.heartbeats: dict[int, _Heartbeat] = {}
        """The newest heartbeat of each owner, by the owner's id."""

    def silences(self, owners: Sequence[OwnerState], at: float) -> dict[int, float]:
        """For how many seconds each owner has been silent; `at`: this machine's clock, in seconds."""
        before, self.heartbeats = self.heartbeats, {}
        for seen in owners:
            known = before.get(seen.id)
            if known is not None and known.beat == seen.beat:
                self.heartbeats[seen.id] = replace(known, seen=at)
                continue
            silence = max(0.0, seen.silence)
            if known is not None and seen.beat > known.beat:
                silence = min(silence, at - known.seen)
            self.heartbeats[seen.id] = _Heartbeat(seen.beat, silence, since=at, seen=at)
        return {id_: newest.silence + at - newest.since for id_, newest in self.heartbeats.items()}


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
    run = _run_of(connection, backend)
    return [seen for seen in owners if seen.is_dead(run, silent[seen.id], locks_tell=locks_tell)]


def left_by_failover(
    owners: Sequence[OwnerState], connection: sa.Connection, backend: Backend, silences: Mapping[int, float]
) -> list[OwnerState]:
    """Those of these owners that were silent for longer than a lease while no server took their heartbeats."""
    silent = [seen for seen in owners if seen.died is None and silences[seen.id] > seen.lease]
    run = _run_of(connection, backend) if silent else None
    return [seen for seen in silent if run is not None and seen.is_from_before_failover(run)]


def _run_of(connection: sa.Connection, backend: Backend) -> ServerRun:
    sessions = backend.dialect.sessions
    accuracy = 0.0 if sessions.knows_start_exactly else SAME_START_SECONDS
    return ServerRun(sessions.server_since(connection), accuracy, sessions.locks_are_seen(connection))


def read_owners(connection: sa.Connection, backend: Backend) -> list[OwnerState]:
    """All owners of a queue's table."""
    select = everyone(backend.owners, backend.dialect)
    rows = connection.execute(select, {"claimjobs_claims": backend.roles.recorded_as}).mappings()
    return [OwnerState(**{field.name: row[field.name] for field in fields(OwnerState)}) for row in rows]


def check_claims(connection: sa.Connection, backend: Backend, *, only_reads: bool = False) -> bool:
    """Look for owners of the queue whose claims this program would not see, or that would not see its own.

    Returns whether an owner, dead or alive, records claims. Raises ClaimsDiffer. `only_reads`: this program claims
    nothing, so limits per key are not its concern.
    """
    ours, owners = RecordDescription.of(backend), list[OwnerState]()
    # A transaction as a hold needs no table of owners, and no right to see it.
    with unless_hidden(connection, backend.dialect, needed=backend.by_lease):
        if sa.inspect(connection).has_table(OWNER_TABLE, schema=backend.schema):
            owners = read_owners(connection, backend)
    others = list[tuple[OwnerState, RecordDescription]]()
    for one in owners:
        theirs = one.records
        # An owner that records no claims matters while it has its session lock.
        matters = theirs.are_claims or one.holder is not None
        if only_reads:
            ours, theirs = ours.without_limits, theirs.without_limits
        if matters and not (ours.sees_claims_of(theirs) and theirs.sees_claims_of(ours)):
            others.append((one, theirs))
    if others:
        theirs = others[0][1]
        dead = [str(one.id) for one in dead_among([one for one, _ in others], connection, backend)][:SHOWN]
        force = "`claimjobs reclaim --owner ID --force`, if a column or a side-car that it used was renamed or dropped"
        raise ClaimsDiffer(
            f"table {backend.source.name!r} has {len(others)} {'owner' if len(others) == 1 else 'owners'} with "
            f"{theirs.in_words(ours)}, and the claims of one side are not seen with {ours.in_words(theirs)}: give all "
            "consumers of a table the same hold, claims, locking, side_car, per_key and Columns; or end those consumers"
            f" first, and run `claimjobs reclaim{theirs.option}`, with their other options, if one of them died"
            + (f"; or, for each dead one ({', '.join(dead)}), {force}" if dead else "")
        )
    return any(one.records.are_claims for one in owners)


def require_writes(connection: sa.Connection, backend: Backend) -> None:
    """Try a write that reaches no row. Raises ReadOnly, or SettingUnfit if the engine is the reason.

    Whether an account may write on a read-only server, only a write tells. Any other error is for other checks to find,
    so it is undone.
    """
    setting = backend.dialect.sessions.read_only_setting(connection)
    try:
        with savepoint(connection):
            connection.execute(beat(backend.owners), NOBODY)
    except sa.exc.DBAPIError as error:
        if backend.dialect.errors.broken_kind(error) == READ_ONLY:
            name = backend.source.name
            raise (session_read_only(name, *setting) if setting else ReadOnly(name, reason(error))) from error

"""Those who hold jobs: whether their leases fit their batches, and whether idle ones can be woken."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import NotShown
from claimjobs.explain.subject import Subject
from claimjobs.findings import Finding
from claimjobs.lease.registry import read_owners
from claimjobs.statements import samples
from claimjobs.table.definitions import OWNER_TABLE
from claimjobs.table.wake_trigger import is_trigger_there

LATE: Final = 0.8
"""The part of its lease after which a heartbeat is late. An idle owner is silent for three quarters of it."""


def lease(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether heartbeats come in time, and whether a batch lasts longer than it may."""
    backend, longest = subject.backend, subject.liveness.max_batch_time
    if not backend.by_lease:
        yield Finding("lease", "ok", "an open transaction holds claims: there is no lease")
        return
    silent = [owner for owner in read_owners(connection, backend) if owner.silence > LATE * owner.lease]
    if silent:
        says = (
            f"owner {silent[0].id} has been silent for {silent[0].silence:.1f} s of its lease of {silent[0].lease:g} s"
        )
        hint = "it has ended, or its handler leaves no time for heartbeats: then give a longer Liveness(lease=...)"
        yield Finding("lease", "warning", f"{says}: {hint}")
    age = _longest_batch(connection, subject)
    if age is not None and age > longest:
        says = f"a job has been claimed for {age:,.0f} s, longer than max_batch_time ({longest:g} s)"
        yield Finding("lease", "warning", f"{says}: its handler hangs, or needs a longer Liveness(max_batch_time=...)")
    elif not silent:
        text = "no job is claimed now" if age is None else f"the longest claim has lasted {age:,.1f} s"
        yield Finding("lease", "ok", f"heartbeats keep a lease of {subject.liveness.lease:g} s; {text}")


def _longest_batch(connection: sa.Connection, subject: Subject) -> float | None:
    """How long ago the first of the claimed jobs was claimed."""
    roles = subject.backend.roles
    if roles.batches is not None:
        oldest = samples.oldest_batch(roles.batches, subject.now)
    elif roles.owner_date is not None:
        oldest = samples.oldest_claim(roles, roles.owner_date, subject.now)
    else:
        raise NotShown("no column says when a job was claimed")
    since, now = connection.execute(oldest).one()
    return None if since is None else max(0.0, (_aware(now) - _aware(since)).total_seconds())


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def wake(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether an idle consumer is woken when jobs are enqueued, or why not."""
    dialect, declared = subject.backend.dialect, subject.liveness.session_lock
    if not (subject.backend.by_lease or sa.inspect(connection).has_table(OWNER_TABLE, schema=subject.backend.schema)):
        yield Finding("wake", "ok", f"no consumer is woken: there is no table {OWNER_TABLE}; it polls")
    elif subject.plan.changes:
        yield Finding("wake", "ok", "no consumer is woken: a callable gives the predicate; it polls")
    elif declared is False:
        yield _not_woken("session_lock=False says that a pooler shares the sessions")
    elif declared is None and not dialect.sessions.is_as_greeted(connection):
        yield _not_woken("a pooler is in between; if it shares no session, `--session-lock on` lets both work")
    elif not dialect.sessions.locks_are_seen(connection):
        yield _not_woken("primaries do not see each other's locks")
    else:
        who = " by a producer of the same account, or with the right CONNECTION_ADMIN" if dialect.interrupts else ""
        may = "" if subject.backend.by_lease else f", if they have all rights on {OWNER_TABLE}"
        others = "rows that are inserted otherwise are found within some 5 s"
        if is_trigger_there(connection, subject.backend.source.table):
            others = "a trigger does so at each INSERT"
        yield Finding("wake", "ok", f"`enqueue` wakes idle consumers{who}{may}; {others}")


def _not_woken(why: str) -> Finding:
    return Finding("wake", "warning", f"an idle consumer polls, and a killed one is found only by its lease: {why}")


def time_limits(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether the server ends an open transaction that holds jobs before its handler may be called a hang."""
    if subject.backend.by_lease:
        return
    longest = subject.liveness.max_batch_time
    limits = subject.backend.dialect.sessions.idle_limits(connection)
    short = [f"{name} = {seconds:g} s" for name, seconds in limits.items() if seconds < longest]
    if not short:
        yield Finding("time limits", "ok", "the server ends no transaction before max_batch_time")
        return
    says = (
        f"the server ends a transaction that holds a batch for longer ({', '.join(short)}), and its jobs are claimed "
        f"again: a batch may take {longest:g} s (Liveness.max_batch_time); raise the limit for this account, or lower "
        "--max-batch-time below it if no handler takes so long"
    )
    yield Finding("time limits", "warning", says)

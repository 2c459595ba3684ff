"""What ends or delays claims beside their plans: settings, other primaries, snapshots, poolers; and what only a trial
shows: whether the server runs every statement of a queue, and how many rows a claim locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import sqlalchemy as sa

from claimjobs.claim.strategy import ClaimRequest
from claimjobs.database.connect import connected, dotted
from claimjobs.database.error_translation import reason
from claimjobs.dialects.inspection import Finding, NotShown
from claimjobs.errors import ClaimjobsError, ServerUnfit, StateMissing
from claimjobs.explain.plans import CLAIM_SIZE, NOBODY, Subject, as_sent
from claimjobs.statements import stored_jobs
from claimjobs.statements.owners import register
from claimjobs.table.roles import IS_CLAIMED_AGAIN

LONG_SECONDS: Final = 60.0
"""Seconds: a session that holds a snapshot for longer is a warning."""
PINS_SHOWN: Final = 3
"""So many of those who hold a snapshot are named."""
MORE: Final = 10
"""A claim may lock so many rows more than it takes."""


def failures(_connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """What the table lacks to store a failure. None if it has it all."""
    for lack in subject.backend.roles.lacking("attempts", "run_at"):
        fails = "fails for the last time" if isinstance(lack, StateMissing) else "fails"
        yield Finding("failures", "warning", f"a job that {fails} {IS_CLAIMED_AGAIN}, because {lack}")


def settings(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Which isolation a claim has, and other programs beside it; settings of the server that matter to claims. Raises
    ServerUnfit for one of several primaries on which claims are not safe.
    """
    level, dialect = connection.default_isolation_level or "not known", subject.backend.dialect
    says = f"a claim is {dialect.isolation}; sessions of this database are {level} if they choose nothing"
    if level in dialect.reads_that_lock:
        yield Finding("isolation", "warning", f"{says}: their plain reads lock the rows that they read, for claims too")
    else:
        yield Finding("isolation", "ok", says)
    yield from subject.inspection.settings(connection)
    subject.settler.record.check_primaries(connection)


def open_transactions(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether the server ends an open transaction that holds jobs before its handler may be called a hang. For a queue
    by lease nothing.
    """
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


def snapshots(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Who keeps rows that are deleted since then from being removed, and for how long already."""
    inspection = subject.inspection
    pins = connection.execute(inspection.snapshots).all()
    if not pins and inspection.hidden is not None and (why := connection.scalar(inspection.hidden)):
        raise NotShown(why)
    old = [pin for pin in pins if pin.seconds is None or pin.seconds > LONG_SECONDS]
    if not old:
        yield Finding("snapshots", "ok", f"nobody has held a snapshot for longer than {LONG_SECONDS:g} s")
        return
    by = ", ".join(pin.who + ("" if pin.seconds is None else f" for {pin.seconds:,.0f} s") for pin in old[:PINS_SHOWN])
    more = f" and {len(old) - PINS_SHOWN} more" if len(old) > PINS_SHOWN else ""
    says = f"a snapshot is held by {by}{more}: rows deleted since then stay, and claims at the head read them"
    yield Finding("snapshots", "warning", f"{says}; end it")


def wake(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Whether a pooler keeps an idle consumer from being woken when jobs are enqueued."""
    dialect, declared = subject.backend.dialect, subject.liveness.session_lock
    if declared is False:
        why = "session_lock=False says that a pooler shares the sessions"
    elif declared is None and not dialect.sessions.is_as_greeted(connection):
        why = "a pooler is in between; if it shares no session, `--session-lock on` lets both work"
    elif not dialect.sessions.locks_are_seen(connection):
        why = "primaries do not see each other's locks"
    else:
        needs = "; that needs their account, or the right CONNECTION_ADMIN" if dialect.interrupts else ""
        yield Finding("wake", "ok", f"no pooler keeps `enqueue` from waking idle consumers{needs}")
        return
    yield Finding("wake", "warning", f"an idle consumer polls, and a killed one is found only by its lease: {why}")


def require_capabilities(engine: sa.Engine, subject: Subject) -> None:
    """Have the server plan each statement of a claim and a settle, and lock a row. Raises ServerUnfit.

    A version says little about a server of another product that speaks the protocol: it may have no JSON_TABLE, lock no
    rows in a statement over several shards, or read SKIP LOCKED and lock nothing. Any other error is left to the claim,
    which says what it means.
    """
    dialect, lacking = subject.backend.dialect, ""
    with connected(engine) as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
        for phase in subject.phases(connection):
            try:
                sql, parameters = as_sent(connection, phase.statement, phase.parameters)
                # Options of EXPLAIN differ even between servers of one protocol.
                connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).close()
            except sa.exc.DBAPIError as error:
                if dialect.errors.code(error) in dialect.errors.lacking:
                    lacking = f"{phase.name!r} does not work ({reason(error)})"
                    break
            except sa.exc.StatementError:  # a type that writes no NULL as a key: asked when the table has a row
                pass
    if not lacking and _locks_nothing(engine, subject):
        lacking = "'SKIP LOCKED' does not work (two sessions locked one row at once)"
    if lacking:
        raise ServerUnfit(
            f"no claim of table {subject.backend.source.name!r} can work on this server: {lacking}: choose "
            f"{dialect.title} {dotted(dialect.oldest)} or later, or a service that has what docs/scaling.md names"
        )


def _locks_nothing(engine: sa.Engine, subject: Subject) -> bool:
    """Whether two sessions lock one row of the table at once, so that two consumers would claim one job. A plan does
    not show that.

    False also if that cannot be tried: others have locked all its rows, this account may lock none, or a pooler may
    let the second session wait for the end of the first. The locks last some milliseconds.
    """
    dialect = subject.backend.dialect
    lock = stored_jobs.lock_free(subject.backend.source, dialect)
    alone = sa.Engine(engine.pool.recreate(), engine.dialect, engine.url)  # the engine's pool may have no second one
    try:
        with suppress(sa.exc.DBAPIError, ClaimjobsError), connected(engine) as first, connected(alone) as second:
            keys = {"claimjobs_keys": subject.some_keys(first)[:1]}
            is_direct = dialect.sessions.is_as_greeted(first)
            first.rollback()
            both = [session.execution_options(isolation_level=dialect.isolation) for session in (first, second)]
            can_try = keys["claimjobs_keys"] and is_direct
            return bool(can_try) and all(session.execute(lock, keys).first() is not None for session in both)
        return False
    finally:
        alone.dispose()


def claim_once(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Claim in a transaction that the caller rolls back. Meanwhile other consumers skip the rows that it locks."""
    backend, owner = subject.backend, NOBODY
    if backend.by_lease:  # nobody else sees this one
        row = {"host": "", "pid": 0, "claims": backend.roles.recorded_as, "lease": subject.liveness.lease}
        [owner] = connection.execute(register(backend.owners), row).inserted_primary_key or [NOBODY]
    jobs = len(subject.plan.strategy.claim(connection, owner, ClaimRequest(CLAIM_SIZE, CLAIM_SIZE)).jobs)
    if not jobs:
        raise NotShown("no job is due, or other consumers have locked all of them: there was none to claim")
    locks = subject.inspection.row_locks(connection, backend.source.table)
    says = f"a claim of {jobs} jobs locks {locks:,} rows"
    if locks <= jobs + MORE:
        yield Finding("row locks", "ok", says)
    else:
        hint = "other consumers skip all of them until it is committed; see the plan of what locks"
        yield Finding("row locks", "warning", f"{says}: {hint}")

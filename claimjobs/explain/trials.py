"""What only a trial shows: whether the server runs every statement of a queue, and how many rows a claim locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import sqlalchemy as sa

from claimjobs.claim.strategy import ClaimRequest
from claimjobs.database.connect import connected, dotted
from claimjobs.database.error_translation import reason
from claimjobs.dialects.inspection import Finding, NotShown
from claimjobs.errors import ClaimjobsError, ServerUnfit
from claimjobs.explain.plans import NOBODY, SIZE, Subject, as_sent
from claimjobs.statements import owners, samples

CONSTANT: Final = 10
"""A claim may lock so many rows more than it takes, and read so many times as many rows."""


def require_capabilities(engine: sa.Engine, subject: Subject) -> None:
    """Have the server plan each statement of a claim and a settle, and lock a row. Raises ServerUnfit.

    A version says little about a server of another product that speaks the protocol: it may have no JSON_TABLE, lock no
    rows in a statement over several shards, or read SKIP LOCKED and lock nothing. Any other error is left to the claim,
    which says what it means.
    """
    errors = subject.backend.dialect.errors
    with connected(engine) as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
        for phase in subject.phases(connection):
            try:
                sql, parameters = as_sent(connection, phase.statement, phase.parameters)
                # Options of EXPLAIN differ even between servers of one protocol.
                connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).close()
            except sa.exc.DBAPIError as error:
                if errors.code(error) in errors.lacking:
                    raise _lacks(subject, phase.name, reason(error)) from error
            except sa.exc.StatementError:  # a type that writes no NULL as a key: asked when the table has a row
                pass
    if _locks_nothing(engine, subject):
        raise _lacks(subject, "SKIP LOCKED", "two sessions locked one row at once")


def _lacks(subject: Subject, statement: str, why: str) -> ServerUnfit:
    dialect = subject.backend.dialect
    return ServerUnfit(
        f"no claim of table {subject.backend.source.name!r} can work on this server: {statement!r} does not work "
        f"({why}): choose {dialect.title} {dotted(dialect.oldest)} or later, or a service that has what "
        "docs/scaling.md names"
    )


def _locks_nothing(engine: sa.Engine, subject: Subject) -> bool:
    """Whether two sessions lock one row of the table at once, so that two consumers would claim one job. A plan does
    not show that.

    False also if that cannot be tried: the table has no row that is free, this account may lock none, or a pooler may
    let the second session wait for the end of the first. The locks last some milliseconds.
    """
    dialect, table = subject.backend.dialect, subject.backend.source
    lock = samples.locked(table, dialect)
    alone = sa.Engine(engine.pool.recreate(), engine.dialect, engine.url)  # the engine's pool may have no second one
    try:
        with suppress(sa.exc.DBAPIError, ClaimjobsError), connected(engine) as first, connected(alone) as second:
            keys = {"claimjobs_keys": subject.some_keys(first)[:1]}
            is_direct = dialect.sessions.is_as_greeted(first)
            first.rollback()
            both = [session.execution_options(isolation_level=dialect.isolation) for session in (first, second)]
            free = keys["claimjobs_keys"] and is_direct
            return bool(free) and all(session.execute(lock, keys).first() is not None for session in both)
        return False
    finally:
        alone.dispose()


def claim_once(connection: sa.Connection, subject: Subject) -> Iterator[Finding]:
    """Claim in a transaction that the caller rolls back. Meanwhile other consumers skip the rows that it locks."""
    inspection, backend, owner = subject.inspection, subject.backend, NOBODY
    if backend.by_lease:  # nobody else sees this one
        row = {"host": "", "pid": 0, "claims": backend.roles.claims, "lease": subject.liveness.lease}
        [owner] = connection.execute(owners.register(backend.owners), row).inserted_primary_key or [NOBODY]
    table = backend.source.table
    before = inspection.rows_read(connection, table)
    jobs = len(subject.plan.strategy.claim(connection, owner, ClaimRequest(SIZE, SIZE)).jobs)
    read = inspection.rows_read(connection, table) - before
    if not jobs:
        raise NotShown("no job is due, or other consumers have locked all of them: there was none to claim")
    says = f"a claim of {jobs} jobs reads {read:,} rows"
    if read <= CONSTANT * (jobs + SIZE):
        yield Finding("rows read", "ok", says)
    else:
        hint = "see the findings on the index, on old rows and on snapshots"
        yield Finding("rows read", "warning", f"{says}: {hint}")
    locks = inspection.row_locks(connection, table)
    says = f"a claim of {jobs} jobs locks {locks:,} rows"
    if locks <= jobs + CONSTANT:
        yield Finding("row locks", "ok", says)
    else:
        hint = "other consumers skip all of them until it is committed; see the plan of what locks"
        yield Finding("row locks", "warning", f"{says}: {hint}")

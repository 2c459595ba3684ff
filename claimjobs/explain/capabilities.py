"""Capabilities: whether the server can run every statement of a queue. It is asked before anything is claimed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.claim.strategy import Phase
from claimjobs.database.connect import connected, dotted
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import ClaimjobsError, ServerUnfit
from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import NOBODY, Subject
from claimjobs.statements import samples

EXPLAIN: Final = "EXPLAIN"
"""Without options, which differ even between servers of one protocol."""


def require_capabilities(engine: sa.Engine, subject: Subject) -> None:
    """Have the server plan each statement of a claim and a settle, and lock a row. Raises ServerUnfit.

    A version says little about a server of another product that speaks the protocol: it may have no JSON_TABLE, lock no
    rows in a statement over several shards, or read SKIP LOCKED and lock nothing. Any other error is left to the claim,
    which says what it means.
    """
    with connected(engine) as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
        for phase in subject.phases(NOBODY, subject.some_keys(connection) or [_no_key(subject)]):
            _require(connection, subject, phase)
    if _locks_nothing(engine, subject):
        raise _lacks(subject, "SKIP LOCKED", "two sessions locked one row at once")


def _no_key(subject: Subject) -> Key:
    """A key that no row has."""
    width = len(subject.backend.source.key)
    return None if width == 1 else (None,) * width


def _require(connection: sa.Connection, subject: Subject, phase: Phase) -> None:
    dialect = subject.backend.dialect
    try:
        sql, parameters = as_sent(connection, phase.statement, phase.parameters)
        connection.exec_driver_sql(f"{EXPLAIN} {sql}", parameters).close()
    except sa.exc.DBAPIError as error:
        if dialect.errors.code(error) in dialect.errors.lacking:
            raise _lacks(subject, phase.name, reason(error)) from error
    except sa.exc.StatementError:  # a type that writes no NULL as a key: this is asked when the table has a row
        pass


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
    let the second session wait for the end of the first. The lock lasts some milliseconds.
    """
    dialect, table = subject.backend.dialect, subject.backend.source
    lock = samples.locked(table, dialect)
    with suppress(sa.exc.DBAPIError, ClaimjobsError), connected(engine) as first:
        keys = {"claimjobs_keys": subject.some_keys(first)[:1]}
        is_direct = dialect.sessions.is_as_greeted(first)
        first.rollback()
        if is_direct and keys["claimjobs_keys"] and _gets(first, lock, keys, dialect.isolation):
            with _elsewhere(engine) as second:
                return _gets(second, lock, keys, dialect.isolation)
    return False


def _gets(connection: sa.Connection, lock: sa.Select[Any], keys: Mapping[str, Any], isolation: str) -> bool:
    """Whether this session gets the lock. It keeps it until its transaction ends."""
    connection.execution_options(isolation_level=isolation)
    return connection.execute(lock, keys).first() is not None


@contextmanager
def _elsewhere(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection made as the engine makes its own, in no pool that others use: that one may have no more."""
    alone = sa.Engine(engine.pool.recreate(), engine.dialect, engine.url)
    try:
        with connected(alone) as connection:
            yield connection
    finally:
        alone.dispose()

"""Capabilities: whether the server can run every statement of a queue. It is asked before anything is claimed."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from claimjobs.claim.strategy import Phase
from claimjobs.database.connect import connected, dotted
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Key
from claimjobs.errors import ServerLacks
from claimjobs.explain.row_locks import lock_nothing
from claimjobs.explain.sent import as_sent
from claimjobs.explain.subject import NOBODY, Subject

EXPLAIN: Final = "EXPLAIN"
"""Without options, which differ even between servers of one protocol."""


def require_capabilities(engine: sa.Engine, subject: Subject) -> None:
    """Have the server plan each statement of a claim and a settle, and lock a row. Raises ServerLacks.

    A version says little about a server of another product that speaks the protocol: it may have no JSON_TABLE, lock no
    rows in a statement over several shards, or read SKIP LOCKED and lock nothing. Any other error is left to the claim,
    which says what it means.
    """
    with connected(engine) as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT")
        for phase in subject.phases(NOBODY, subject.some_keys(connection) or [_no_key(subject)]):
            _require(connection, subject, phase)
    if lock_nothing(engine, subject):
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


def _lacks(subject: Subject, statement: str, why: str) -> ServerLacks:
    dialect = subject.backend.dialect
    return ServerLacks(subject.backend.source.name, statement, why, f"{dialect.title} {dotted(dialect.oldest)}")

"""The transaction of a caller, into which rows are written that the caller commits."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from claimjobs.database.connect import commits_by_itself
from claimjobs.errors import NoTransaction

CallersTransaction = sa.Connection | Session | scoped_session[Any]

TAKEN = "give a Connection or a Session of SQLAlchemy (`enqueue` without one commits by itself)"
ASYNC = "call this in `await {0}.run_sync(lambda sync: ...)`, with `sync` in place of `{0}`"


def connection_in(given: Any) -> sa.Connection:
    """The connection whose transaction a caller means, who commits it. Sends nothing. Raises NoTransaction.

    An object is asked what it is, not whether a call of its methods raises: those of an AsyncSession return coroutines.
    """
    if isinstance(given, scoped_session):
        given = given()
    connection = given.connection() if isinstance(given, Session) else given
    if not isinstance(connection, sa.Connection):
        raise NoTransaction(_kind(given), _next_step(given))
    if commits_by_itself(connection, unknown=False):
        raise NoTransaction("a connection in AUTOCOMMIT", f"set another isolation level, or {TAKEN}")
    return connection


def _kind(given: Any) -> str:
    kind = given if isinstance(given, type) else type(given)
    return f"{'the class' if kind is given else 'an object of'} {kind.__module__}.{kind.__qualname__}"


def _next_step(given: Any) -> str:
    if hasattr(given, "run_sync"):
        return ASYNC.format("connection" if hasattr(given, "exec_driver_sql") else "session")
    return TAKEN

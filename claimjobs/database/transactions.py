"""Transactions: the caller's own, a block that is undone, and whether a session commits by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from claimjobs.errors import BadArgument

CallersTransaction = sa.Connection | Session | scoped_session[Any]

TAKEN = "give a Connection or a Session of SQLAlchemy (`enqueue` without one commits by itself)"
ASYNC = "await `Queue.aenqueue`, or call this in `await {0}.run_sync(lambda sync: ...)`, with `sync` in place of `{0}`"


def connection_in(given: Any) -> sa.Connection:
    """The connection whose transaction a caller means, who commits it. Sends nothing. Raises BadArgument.

    An object is asked what it is, not whether a call of its methods raises: those of an AsyncSession return coroutines.
    """
    if isinstance(given, scoped_session):
        given = given()
    connection = given.connection() if isinstance(given, Session) else given
    if not isinstance(connection, sa.Connection):
        kind = given if isinstance(given, type) else type(given)
        what = f"{'the class' if kind is given else 'an object of'} {kind.__module__}.{kind.__qualname__}"
        is_async = hasattr(given, "run_sync")
        name = "connection" if hasattr(given, "exec_driver_sql") else "session"
        raise _no_transaction(what, ASYNC.format(name) if is_async else TAKEN)
    if commits_by_itself(connection, unknown=False):
        raise _no_transaction("a connection in AUTOCOMMIT", f"set another isolation level, or {TAKEN}")
    return connection


def _no_transaction(given: str, step: str) -> BadArgument:
    return BadArgument(f"rows are written in a transaction that you commit, and {given} has none: {step}")


@contextlib.contextmanager
def savepoint(connection: sa.Connection) -> Iterator[None]:
    """Undo what the block did if it raises, so that the transaction around it can go on.

    The block's own error is raised, also if the database has undone the savepoint with the whole transaction, as after
    a deadlock.
    """
    point = connection.begin_nested()
    try:
        yield
    except BaseException:
        with contextlib.suppress(sa.exc.DBAPIError):
            point.rollback()
        raise
    point.commit()


@contextlib.contextmanager
def undoing(connection: sa.Connection) -> Iterator[None]:
    """A savepoint; or, if no transaction has begun, the whole transaction, which saves two round trips."""
    if connection.in_transaction():
        with savepoint(connection):
            yield
        return
    whole = connection.begin()
    try:
        yield
    except BaseException:
        with contextlib.suppress(sa.exc.DBAPIError):
            whole.rollback()
        raise


def isolation_of(connection: sa.Connection) -> str | None:
    """The isolation level of a connection, as far as it is known without a statement."""
    chosen: str | None = connection.get_execution_options().get("isolation_level")
    return chosen or connection.default_isolation_level


def commits_by_itself(connection: sa.Connection, *, unknown: bool) -> bool:
    """Whether each statement of a connection is a transaction now. `unknown`: the answer if the driver does not know.

    The connection's options say only how it began.
    """
    driver_connection = connection.connection.dbapi_connection
    if driver_connection is None:
        return unknown
    try:
        return bool(connection.dialect.detect_autocommit_setting(driver_connection))
    except NotImplementedError:
        return unknown


@contextlib.contextmanager
def lost_if_it_fails(connection: sa.Connection) -> Iterator[None]:
    """A block of statements after one that wrote. If they fail in autocommit, what was written is committed, though the
    caller gets an error. That is so for a lost connection, too: so this one is invalidated, as a lost one is.
    """
    try:
        yield
    except sa.exc.DBAPIError:
        if not connection.invalidated and commits_by_itself(connection, unknown=False):
            connection.invalidate()
        raise

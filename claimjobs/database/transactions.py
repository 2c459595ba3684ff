"""Transactions: the caller's own, a block that is undone, the time zone, and whether a session commits by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect
from claimjobs.errors import BadArgument

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

CallersTransaction: TypeAlias = "sa.Connection | Session | scoped_session[Any]"

IN_UTC: Final = "claimjobs_in_utc"
"""The key of a connection's `info` that says whether its session is in UTC: that of a connection of our own, or of any
one in a block of `in_utc`."""
HELD: Final = "claimjobs_held"
"""The key of a connection's `info` with the name of a table and those of its jobs that the open transaction holds.
Their rows do not say that they are claimed."""

TAKEN = "give a Connection or a Session of SQLAlchemy (`enqueue` without one commits by itself)"
ASYNC = "await `Queue.aenqueue`, or call this in `await {0}.run_sync(lambda sync: ...)`, with `sync` in place of `{0}`"


def connection_in(given: Any, table: Any, if_async: str = ASYNC) -> sa.Connection:
    """The connection whose transaction a caller means, who commits it. Sends nothing. Raises BadArgument, with the next
    step `if_async` if that is asynchronous.

    `table`: a Table, a mapped class or a name. A Session may have another engine for it than for the rest.

    An object is asked what it is, not whether a call of its methods raises: those of an AsyncSession return coroutines.
    """
    connection = given = session_of(given)
    if not isinstance(given, sa.Connection):
        # The ORM is a sixth of what a consumer would import at its start. Whoever has a Session has imported it.
        from sqlalchemy.orm import Session  # noqa: PLC0415

        if isinstance(given, Session):
            meant = {} if isinstance(table, str) else {"mapper" if isinstance(table, type) else "clause": table}
            try:
                connection = given.connection(bind_arguments=meant)
            except sa.exc.UnboundExecutionError as error:
                raise BadArgument(
                    f"the Session has no engine for table {table!r}: give a Connection ({reason(error)})"
                ) from error
    if not isinstance(connection, sa.Connection):
        kind = given if isinstance(given, type) else type(given)
        what = f"{'the class' if kind is given else 'an object of'} {kind.__module__}.{kind.__qualname__}"
        is_async = hasattr(given, "run_sync")
        name = "connection" if hasattr(given, "exec_driver_sql") else "session"
        step = if_async.format(name) if is_async else TAKEN
    elif commits_by_itself(connection, unknown=False):
        what, step = "a connection in AUTOCOMMIT", f"set another isolation level, or {TAKEN}"
    else:
        return connection
    raise BadArgument(f"rows are written in a transaction that you commit, and {what} has none: {step}")


def session_of(given: Any) -> Any:
    """The session that a scoped_session, or an async_scoped_session, has here; anything else as it is."""
    return given() if hasattr(given, "registry") and callable(given) and not isinstance(given, type) else given


@contextlib.contextmanager
def savepoint(connection: sa.Connection, *, or_transaction: bool = False) -> Iterator[None]:
    """Undo what the block did if it raises, so that the transaction around it can go on. `or_transaction`: if none has
    begun, the block begins one, and all of it is undone, which saves two round trips.

    The block's own error is raised, also if the database has undone the savepoint with the whole transaction, as after
    a deadlock.
    """
    is_transaction = or_transaction and not connection.in_transaction()
    point = connection.begin() if is_transaction else connection.begin_nested()
    try:
        yield
    except BaseException:
        with contextlib.suppress(sa.exc.DBAPIError):
            point.rollback()
        raise
    if not is_transaction:
        point.commit()


@contextlib.contextmanager
def unless_hidden(connection: sa.Connection, dialect: Dialect, *, needed: bool) -> Iterator[None]:
    """A block that reads a table that may be missing, or that this account may not see: then the block ends early,
    unless the table is `needed`.
    """
    try:
        with savepoint(connection):
            yield
    except sa.exc.DBAPIError as error:
        errors = dialect.errors
        if needed or not (errors.refuses_account(error) or errors.code(error) in errors.missing_table):
            raise


def in_utc(connection: sa.Connection, dialect: Dialect, *, depends: bool) -> AbstractContextManager[None]:
    """A block of our statements: the time zone of a session that is not ours is UTC in the block, and then as before.
    In a block that is within another one nothing is sent: what the session had before is stored once.

    `depends`: whether a statement on this table depends on the zone at all. If not, nothing is sent.
    """
    if not depends or connection.info.get(IN_UTC, False):
        return contextlib.nullcontext()
    return _with_zone_switched(connection, dialect)


@contextlib.contextmanager
def _with_zone_switched(connection: sa.Connection, dialect: Dialect) -> Iterator[None]:
    sessions, local = dialect.sessions, {"local": not commits_by_itself(connection, unknown=False)}
    info = connection.info
    connection.execute(sessions.to_utc, local).close()
    info[IN_UTC] = True
    try:
        yield
    except BaseException:
        # After an error Postgres refuses every statement, and the rollback restores the zone.
        with contextlib.suppress(sa.exc.SQLAlchemyError):
            connection.execute(sessions.zone_before, local).close()
        raise
    else:
        connection.execute(sessions.zone_before, local).close()
    finally:
        info[IN_UTC] = False


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

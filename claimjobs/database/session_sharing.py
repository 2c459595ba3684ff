"""Whether a pooler gives the session of a connection to other clients between two transactions. The server is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import raised_as_sqlalchemy_does
from claimjobs.dialects import Dialect
from claimjobs.errors import SessionsShared

TIMES: Final = 3
"""How often the two connections work in turn: between two of their transactions a third client may get the session."""
NO_OWNER: Final = 0
"""The number of a lock that no owner takes."""
SECONDS: Final = 5.0
"""How long a pooler may take to give a session to a second connection."""


def why_shared(engine: sa.Engine, dialect: Dialect, connection: sa.Connection) -> str | None:
    """Why the session of this connection is shared with other clients, or must be taken for shared. None: it is not.

    A session that greeted its connection itself has no pooler before it. Behind a pooler a second connection works
    between the transactions of this one. If it gets the same session, or takes it away, sessions are shared. The
    connection must not be in a transaction.
    """
    with connection.begin():
        if dialect.sessions.is_as_greeted(connection):
            return None
    sharing = _Sharing(engine, dialect, connection)
    with sharing.second_connection() as second:
        for _ in range(TIMES):
            if why := sharing.seen(second):
                return why
    return None


def require_session_lock(engine: sa.Engine, dialect: Dialect, table: sa.Table) -> None:
    """Raise SessionsShared if no session can keep a lock for a connection of this engine, or ConnectionFailed.

    `table`: one that is there, for the name of a lock.
    """
    with connected(engine) as connection:
        with connection.begin():
            seen = dialect.sessions.locks_are_seen(connection)
        why = why_shared(engine, dialect, connection) if seen else "primaries do not see each other's locks"
        if why:
            raise SessionsShared(why)
        connection.detach()  # its lock must not come back to the pool
        if not _is_kept(dialect, connection, table):
            raise SessionsShared("the server grants such locks and keeps none")


def _is_kept(dialect: Dialect, connection: sa.Connection, table: sa.Table) -> bool:
    """Whether the server really keeps a session lock: some grant it and keep none."""
    lock = sa.literal(NO_OWNER, sa.Integer)
    with connection.begin():
        connection.scalar(sa.select(dialect.sessions.try_session_lock(table, lock)))
        return connection.scalar(sa.select(dialect.sessions.lock_holder(table, lock))) is not None


class _Sharing:
    """Two connections that work in turn."""

    def __init__(self, engine: sa.Engine, dialect: Dialect, connection: sa.Connection) -> None:
        self._engine, self._sessions, self._connection = engine, dialect.sessions, connection
        self._number = sa.select(dialect.sessions.number.label("session"))
        self._late = False

    @contextmanager
    def second_connection(self) -> Iterator[Any]:
        """A connection of the driver, made as the engine makes its own, but in no pool that others use."""
        pool = self._engine.pool.recreate()
        with raised_as_sqlalchemy_does(self._connection):
            second = pool.connect()
        try:
            yield second
        finally:
            second.invalidate()
            pool.dispose()

    def seen(self, second: Any) -> str | None:
        """What shows that sessions are shared; None if nothing does."""
        mine = self._mine()
        theirs = self._theirs(second)
        if theirs is None:
            return f"the pooler has no session for a second connection within {SECONDS:g} s"
        if theirs == mine:
            return f"another client gets session {mine} when a transaction of this one has ended"
        again = self._mine()
        second.rollback()
        return None if again == mine else f"this connection had session {mine}, then session {again}"

    def _mine(self) -> int:
        with self._connection.begin():
            return int(self._connection.scalar(self._number) or 0)

    def _theirs(self, second: Any) -> int | None:
        """The session of the second connection, in a transaction that stays open. None: it has to wait for one."""
        timer = threading.Timer(SECONDS, self._cut, [second.driver_connection])
        timer.start()
        try:
            with raised_as_sqlalchemy_does(self._connection):
                cursor = second.cursor()
                cursor.execute(str(self._number.compile(dialect=self._engine.dialect)))
                return int(cursor.fetchone()[0])
        except sa.exc.DBAPIError:
            if not self._late:
                raise
            return None
        finally:
            timer.cancel()

    def _cut(self, driver_connection: Any) -> None:
        self._late = True
        self._sessions.break_connection(driver_connection)

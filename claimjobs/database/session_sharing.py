"""Whether a pooler gives the session of a connection to other clients between two transactions. The server is asked."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import not_longer_than, raised_as_sqlalchemy_does
from claimjobs.dialects import Dialect
from claimjobs.dialects.sessions import Sessions
from claimjobs.errors import ServerUnreachable, SessionsShared

TURNS: Final = 3
"""How often the two connections work in turn: between two of their transactions a third client may get the session."""
NO_OWNER: Final = 0
"""The number of a lock that no owner takes."""
POOLER_SECONDS: Final = 5.0
"""How long a pooler may take to give a session to a second connection."""


def require_session_lock(engine: sa.Engine, dialect: Dialect, table: sa.Table) -> None:
    """Raise SessionsShared if no session can keep a lock for a connection of this engine, or ConnectionFailed.

    `table`: one that is there, for the name of a lock.
    """
    sessions, lock = dialect.sessions, sa.literal(NO_OWNER, sa.Integer)
    with connected(engine) as connection:
        with connection.begin():
            is_seen, is_ours = sessions.locks_are_seen(connection), sessions.is_as_greeted(connection)
        if not is_seen:
            raise SessionsShared("primaries do not see each other's locks")
        if not is_ours and (why := _why_shared(engine, sessions, connection)):
            raise SessionsShared(why)
        connection.detach()  # its lock must not come back to the pool
        with connection.begin():
            connection.scalar(sa.select(sessions.try_session_lock(table, lock)))
            if connection.scalar(sa.select(sessions.lock_holder(table, lock))) is None:
                raise SessionsShared("the server grants such locks and keeps none")


def _why_shared(engine: sa.Engine, sessions: Sessions, connection: sa.Connection) -> str | None:
    """Why the session of this connection is shared with other clients, or must be taken for shared. None: it is not.

    A session that greeted its connection itself has no pooler before it. Behind a pooler a second connection works
    between the transactions of this one. If it gets the same session, or takes it away, sessions are shared.
    """
    number = sa.select(sessions.number.label("session"))
    pool = engine.pool.recreate()  # no other thread uses its connection
    with raised_as_sqlalchemy_does(connection):
        second: Any = pool.connect()
    try:
        for _ in range(TURNS):
            mine, theirs = _session_of(connection, number), None
            driver_connection = second.driver_connection
            with suppress(ServerUnreachable), not_longer_than(POOLER_SECONDS, sessions, connection, driver_connection):
                cursor = second.cursor()  # in a transaction that stays open
                cursor.execute(str(number.compile(dialect=connection.dialect)))
                theirs = int(cursor.fetchone()[0])
            if theirs is None:
                return f"the pooler has no session for a second connection within {POOLER_SECONDS:g} s"
            if theirs == mine:
                return f"another client gets session {mine} when a transaction of this one has ended"
            again = _session_of(connection, number)
            second.rollback()
            if again != mine:
                return f"this connection had session {mine}, then session {again}"
        return None
    finally:
        second.invalidate()
        pool.dispose()


def _session_of(connection: sa.Connection, number: sa.Select[Any]) -> int:
    with connection.begin():
        return int(connection.scalar(number) or 0)

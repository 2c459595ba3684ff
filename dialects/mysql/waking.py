"""Waking an owner on MySQL. There are no notifications, but a user may end statements of its other sessions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from math import inf
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.mysql.errors import KILLED, MySQLErrors
from claimjobs.dialects.mysql.sessions import MySQLSessions
from claimjobs.dialects.waking import Waking

_SLEEP_LOCK: Final = "concat('claimjobs.nap.', :session)"
"""The lock of a session that may be interrupted. Session numbers and lock names both belong to the server."""
_OWN_SLEEP_LOCK: Final = "concat('claimjobs.nap.', connection_id())"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ignore the error of an interrupted statement."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if MySQLErrors().code(error) != KILLED:
            raise


class _SleepListener:
    """Waits in a statement that sleeps, until another session interrupts it.

    The statement returns 1 then, or fails with 1317. An interrupt between two statements is lost.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        driver: Any = connection.connection.driver_connection
        self._session = int(driver.thread_id())
        # A driver with a read timeout would take a longer sleep for a lost connection.
        self._longest = (getattr(driver, "_read_timeout", None) or inf) / 2
        self._engine = connection.engine
        self._guard = threading.Lock()
        self._closed = False
        self._ending: threading.Thread | None = None

    def wait(self, seconds: float) -> bool:
        with _interruptible():
            return bool(self._connection.scalar(sa.select(sa.func.sleep(min(seconds, self._longest)))))
        return True

    def end(self) -> None:
        # A thread does it: if the pool has no free connection, the sleep ends sooner than the wait for one.
        with self._guard:
            if not self._closed and (self._ending is None or not self._ending.is_alive()):
                self._ending = threading.Thread(target=self._interrupt, name="claimjobs interrupts", daemon=True)
                self._ending.start()

    def _interrupt(self) -> None:
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._engine.connect() as other:
            if not self._closed:
                other.execute(MySQLWaking().interrupt(self._session))

    def close(self) -> None:
        with self._guard:
            self._closed = True
        if self._ending is not None:
            self._ending.join(1.0)  # so that it does not interrupt the next statement


class MySQLWaking(Waking):
    listener = _SleepListener

    def wake(self, owners: sa.Table, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        return MySQLSessions().lock_holder(owners, owner)

    def interrupt(self, session: int) -> sa.Executable:
        # A session holds the lock only while it may be interrupted. If none holds it, KILL fails with error 1094.
        return sa.text(f"KILL QUERY is_used_lock({_SLEEP_LOCK})").bindparams(session=session)

    @contextlib.contextmanager
    def autocommit(self, connection: sa.Connection) -> Iterator[None]:
        # One statement also takes the lock that allows others to interrupt this session.
        connection.exec_driver_sql(f"SET autocommit = 1, @claimjobs_sleep = get_lock({_OWN_SLEEP_LOCK}, 0)").close()
        try:
            yield
        finally:
            # If a session stayed in autocommit, each later statement would release the locks of its claim too early.
            is_reset = connection.invalidated  # then it has ended, and its own error is the one to raise
            try:
                for _ in range(0 if is_reset else 3):  # an interrupt may hit this statement, too
                    with _interruptible():
                        back = f"SET autocommit = 0, @claimjobs_sleep = release_lock({_OWN_SLEEP_LOCK})"
                        connection.exec_driver_sql(back).close()
                        is_reset = True
                        break
            finally:
                if not is_reset:
                    connection.invalidate()

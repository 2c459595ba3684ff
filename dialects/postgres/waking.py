"""Waking an owner on Postgres: NOTIFY, which a commit delivers and a rollback does not."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.waking import Waking

CHANNEL: Final = "claimjobs_"
"""The channel of an owner is this, then the owner's number."""
FULL: Final = 0.5
"""The part of the server's queue of notifications from which nobody is woken.

A full queue fails every transaction that notifies, at its commit. It fills while a session that listens has an open
transaction (8 GB; since Postgres 17 `max_notify_queue_pages`).
"""


class PostgresWaking(Waking):
    def listener(self, connection: sa.Connection) -> _NotificationListener:
        return _NotificationListener(connection)

    def listen(self, owner: int) -> sa.Executable:
        # Each owner has a channel: one for all would wake all. LISTEN takes no parameter; an owner is a number.
        return sa.text(f"LISTEN {CHANNEL}{owner:d}")

    def wake(self, owners: sa.Table, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        # The function that tells how full the queue is also removes what all have read.
        is_free = sa.func.pg_notification_queue_usage() < FULL
        return sa.case((is_free, sa.func.pg_notify(sa.func.concat(CHANNEL, owner), "")))

    @contextlib.contextmanager
    def autocommit(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        driver.autocommit = True  # the driver sends nothing for this, and no BEGIN and COMMIT while it is set
        try:
            yield
        finally:
            if not driver.closed:
                driver.autocommit = False


class _Notifications:
    """Counts the notifications of a connection. One may arrive with the answer to a statement."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, _notification: Any) -> None:
        """A notification has arrived."""
        self.count += 1

    @classmethod
    def of(cls, connection: sa.Connection) -> _Notifications:
        """The counter of this connection."""
        found: _Notifications | None = connection.info.get(CHANNEL)
        if found is None:
            found = connection.info[CHANNEL] = cls()
            driver: Any = connection.connection.driver_connection
            driver.add_notify_handler(found.add)
        return found


class _NotificationListener:
    """Waits until data arrive on the socket of the connection. It takes all data for a notification, and reads them:
    if no statement follows before the next sleep, they must not end that one, too.
    """

    def __init__(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._notifications = _Notifications.of(connection)
        self._known = self._notifications.count
        self._descriptor = driver.fileno()
        self._end_reader, self._end_writer = socket.socketpair()
        self._end_writer.setblocking(False)

    def wait(self, seconds: float) -> bool:
        if self._notifications.count > self._known:
            return True
        both = select.poll()
        both.register(self._descriptor, select.POLLIN)
        both.register(self._end_reader, select.POLLIN)
        ended = bool(both.poll(seconds * 1000))
        self._read()
        return ended

    def _read(self) -> None:
        with contextlib.suppress(self._driver.Error):  # a broken connection: the next statement raises it
            self._driver.pgconn.consume_input()
            while self._driver.pgconn.notifies():
                pass

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._end_writer.send(b".")

    def close(self) -> None:
        self._end_reader.close()
        self._end_writer.close()

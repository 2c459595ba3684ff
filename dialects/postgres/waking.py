"""Waking an owner on Postgres: NOTIFY, which a commit delivers and a rollback does not."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects.waking import CHANNEL, FULL, Waking


class _NotificationListener:
    """Waits until data arrive on the socket of the connection. It takes all data for a notification, and reads them:
    if no statement follows before the next sleep, they must not end that one, too.
    """

    def __init__(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self._driver = driver
        self._arrived: list[Any] | None = connection.info.get(CHANNEL)
        """Notifications of the connection: one may arrive with the answer to a statement."""
        if self._arrived is None:
            self._arrived = connection.info[CHANNEL] = []
            driver.add_notify_handler(self._arrived.append)
        self._arrived.clear()
        self._end_reader, self._end_writer = socket.socketpair()
        self._end_writer.setblocking(False)

    def wait(self, seconds: float) -> bool:
        if self._arrived:
            return True
        both = select.poll()
        both.register(self._driver.fileno(), select.POLLIN)
        both.register(self._end_reader, select.POLLIN)
        ended = bool(both.poll(seconds * 1000))
        with contextlib.suppress(self._driver.Error):  # a broken connection: the next statement raises it
            self._driver.pgconn.consume_input()
            while self._driver.pgconn.notifies():
                pass
        return ended

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._end_writer.send(b".")

    def close(self) -> None:
        self._end_reader.close()
        self._end_writer.close()


class PostgresWaking(Waking):
    listener = _NotificationListener

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

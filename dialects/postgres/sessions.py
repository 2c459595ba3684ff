"""Sessions of Postgres: advisory locks have numbers, and a pooler may share sessions.

An owner is woken by NOTIFY, which a commit delivers and a rollback does not.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from hashlib import blake2b
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from claimjobs.dialects.sessions import ISOLATION, Sessions

# Names are sent as values, to `to_regclass` for example: this style of parameters leaves a percent sign as it is.
PREPARER: Final = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]

_HALF: Final = 2**31
_IN_ERROR: Final = 3
"""The status of a transaction in libpq."""
_TWO_NUMBERS: Final[sa.ColumnElement[int]] = sa.literal_column("2")
"""`objsubid` of an advisory lock that was given as two numbers, and not as one."""

_PG_LOCKS: Final = ("locktype", "database", "classid", "objid", "objsubid", "pid", "granted")

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")

CHANNEL: Final = "claimjobs_"
"""The channel of an owner is this, then the owner's number."""
FULL_PART: Final = 0.5
"""The part of the server's queue of notifications from which nobody is woken.

A full queue fails every transaction that notifies, at its commit. It fills while a session that listens has an open
transaction (8 GB; since Postgres 17 `max_notify_queue_pages`).
"""


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


class PostgresSessions(Sessions):
    listener = _NotificationListener
    # The plan of a prepared statement is kept until the table is analyzed. One that was made for a few rows reads and
    # sorts the whole table when there are many.
    forget_plans = sa.text("DISCARD PLANS")
    knows_start_exactly = True
    # The default is the database's encoding. That of SQL_ASCII is none: the driver gives bytes for texts.
    connect_options: ClassVar[Mapping[str, Any]] = {"client_encoding": "utf8"}
    # A foreign key, a unique index or a trigger may be DEFERRABLE INITIALLY DEFERRED, as all foreign keys of Django.
    check_deferred = sa.text("SET CONSTRAINTS ALL IMMEDIATE")
    # The second one exists since 17.
    limits = sa.text(
        "SELECT name, setting::float8 / 1000 FROM pg_settings "
        "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout') ORDER BY setting::float8"
    )
    set_up = (
        "SET lock_timeout = {ms}",
        # A statement that is a transaction by itself has the session's isolation, whatever the server's default is.
        f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {ISOLATION}",
        # psycopg reads instants of this style only; the order of day and month stays the user's.
        "SET DateStyle = ISO",
        # A user's TIMESTAMP (without a zone) is compared with our clock, which is UTC, by the session's zone.
        "SET TimeZone = 'UTC'",
    )
    # Probes are sent while nothing else is; the user timeout counts from what was sent and is not confirmed. A session
    # with a session lock is idle for longer than some allow; before 14 none is ended for that.
    set_silence = (
        "SELECT set_config('tcp_keepalives_idle', '{first}', false), "
        "set_config('tcp_keepalives_interval', '{between}', false), "
        "set_config('tcp_keepalives_count', '{count}', false), set_config('tcp_user_timeout', '{ms}', false), "
        "CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL "
        "THEN set_config('idle_session_timeout', '0', false) END"
    )
    to_utc = sa.text(
        "SELECT set_config('claimjobs.zone', current_setting('TimeZone'), :local), "
        "set_config('TimeZone', 'UTC', :local)"
    )
    zone_before = sa.text("SELECT set_config('TimeZone', current_setting('claimjobs.zone'), :local)")
    zone = sa.text("SELECT current_setting('TimeZone')")
    read_only = sa.text("SELECT current_setting('transaction_read_only') = 'on'")
    # A standby is read-only whatever is set. The other sources are a server, a database or an account, which a failover
    # or an administrator changes; a driver that begins READ ONLY transactions sets nothing.
    set_read_only = sa.text(
        "SELECT CASE setting WHEN 'on' THEN name || ' = on' ELSE 'its driver begins READ ONLY transactions' END "
        "FROM pg_settings WHERE current_setting('transaction_read_only') = 'on' "
        "AND NOT pg_is_in_recovery() AND name = 'default_transaction_read_only' "
        "AND (setting = 'off' OR source IN ('client', 'session'))"
    )
    read_write = "SET default_transaction_read_only = off"
    number = sa.func.pg_backend_pid(type_=sa.Integer)
    kill = sa.text("SELECT pg_terminate_backend(:session)")
    _wanted = sa.func.unnest(sa.bindparam("locks", type_=sa.ARRAY(sa.BigInteger)))
    _lock = _wanted.table_valued(sa.column("lock", sa.BigInteger)).render_derived(name="wanted").c.lock
    try_key_locks = sa.select(_lock, sa.func.pg_try_advisory_lock(_lock, type_=sa.Boolean))
    unlock_key_locks = sa.select(sa.func.pg_advisory_unlock(_lock, type_=sa.Boolean))

    def is_aborted(self, driver_connection: Any) -> bool:
        return bool(driver_connection.info.transaction_status == _IN_ERROR)

    def set_savepoint(self, cursor: Any, name: str, *, again: bool) -> None:
        # It would stand above one with its name. Two statements cannot be prepared as one.
        cursor.execute(f"RELEASE {name}; SAVEPOINT {name}" if again else f"SAVEPOINT {name}", prepare=False)

    def prepare_nothing_if_pooled(self, driver_connection: Any) -> None:
        # psycopg prepares a statement that it has sent five times. Other drivers have no such attribute.
        threshold = getattr(driver_connection, "prepare_threshold", None)
        if threshold is None:
            return
        greeted_by, is_idle = driver_connection.info.backend_pid, not driver_connection.info.transaction_status
        driver_connection.prepare_threshold = None
        with contextlib.suppress(driver_connection.Error):  # the next statement reports a broken connection
            found = driver_connection.execute(f"SELECT 1 WHERE pg_backend_pid() = {greeted_by:d}").fetchone()
            if is_idle:  # a test gives a connection in whose transaction it goes on
                driver_connection.rollback()
            driver_connection.prepare_threshold = threshold if found else None

    def forget_prepared(self, driver_connection: Any) -> None:
        # psycopg forgets all that it has prepared, and the server, too, after a ROLLBACK.
        with contextlib.suppress(driver_connection.Error):  # the next statement reports a broken connection
            driver_connection.execute("BEGIN")
            driver_connection.execute("ROLLBACK")

    def pipeline(self, driver_connection: Any) -> AbstractContextManager[Any] | None:
        from psycopg import Pipeline  # noqa: PLC0415 - psycopg is slow to import

        return _left_or_closed(driver_connection) if Pipeline.is_supported() else None  # its C library is older than 14

    def try_session_lock(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.pg_try_advisory_lock(_number(owners), owner, type_=sa.Boolean)

    def try_leader_lock(self, owners: sa.Table, jobs: sa.Table) -> sa.ColumnElement[bool]:
        # Below zero, where no owner's id is.
        leader = sa.cast(sa.func.mod(sa.cast(_regclass(jobs), sa.BigInteger), _HALF) - _HALF, sa.Integer)
        return sa.func.pg_try_advisory_lock(_number(owners), leader, type_=sa.Boolean)

    def lock_holder(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        held = sa.table("pg_locks", *(sa.column(name) for name in _PG_LOCKS))
        here: sa.Select[Any] = sa.select(sa.column("oid")).select_from(
            sa.text("pg_database WHERE datname = current_database()")
        )
        return (
            sa.select(held.c.pid)
            .where(held.c.locktype == "advisory", held.c.granted, held.c.database == here.scalar_subquery())
            .where(held.c.classid == _regclass(owners), sa.cast(held.c.objid, sa.BigInteger) == owner)
            .where(held.c.objsubid == _TWO_NUMBERS)
            .limit(1)
            .scalar_subquery()
        )

    def give_ids_above(self, owners: sa.Table, last: int) -> sa.Select[Any] | None:
        # A sequence knows nothing of the rows: a TRUNCATE or a restore may set it back. No owner's id is 0. What FROM
        # has comes first, so nobody else is between the two calls.
        alone = sa.func.pg_advisory_xact_lock(_number(owners), 0).alias("alone")
        sequence = sa.func.pg_get_serial_sequence(sa.literal(PREPARER.format_table(owners), sa.Text), sa.literal("id"))
        behind = sa.func.nextval(sequence) < last
        return sa.select(sa.func.setval(sequence, last)).select_from(alone).where(behind)

    def server_since(self, connection: sa.Connection) -> datetime:
        since: datetime = connection.execute(sa.select(sa.func.pg_postmaster_start_time())).scalar_one()
        return since

    def listen(self, owner: int) -> sa.Executable:
        # Each owner has a channel: one for all would wake all. LISTEN takes no parameter; an owner is a number.
        return sa.text(f"LISTEN {CHANNEL}{owner:d}")

    def wake(self, owners: sa.Table, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        # The function that tells how full the queue is also removes what all have read.
        is_free = sa.func.pg_notification_queue_usage() < FULL_PART
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

    def key_lock(self, table: str, key: str) -> int:
        # pg_locks shows the table's half as classid and the key's half as objid: a whole number as it is.
        number = int(key) if _NUMBER.fullmatch(key) else int.from_bytes(blake2b(key.encode(), digest_size=4).digest())
        number = zlib.crc32(table.encode()) << 32 | number & 0xFFFFFFFF
        return number - (1 << 64) if number >> 63 else number

    def drop_database(self, connection: sa.Connection, name: str) -> None:
        # In one statement: a thread that a test has left makes a new session as soon as its old one is ended.
        connection.exec_driver_sql(f"DROP DATABASE {connection.dialect.identifier_preparer.quote(name)} WITH (FORCE)")


def _regclass(table: sa.Table) -> sa.ColumnElement[Any]:
    """The number of a table, which no other table of the database has; NULL if there is no such table."""
    return sa.func.to_regclass(sa.literal(PREPARER.format_table(table), sa.Text))


def _number(table: sa.Table) -> sa.ColumnElement[int]:
    """The number of a table as the first half of an advisory lock: advisory locks belong to the whole database."""
    return sa.cast(_regclass(table), sa.Integer)


@contextlib.contextmanager
def _left_or_closed(driver_connection: Any) -> Iterator[None]:
    """A pipeline. A connection that cannot leave it is closed: no statement could be sent on it any more.

    So it is when the session ends, or the block is interrupted, and its answers are not all read. What the driver
    raises then does not tell that the connection is lost.
    """
    try:
        with driver_connection.pipeline():
            yield
    finally:
        if driver_connection.pgconn.pipeline_status:
            driver_connection.close()

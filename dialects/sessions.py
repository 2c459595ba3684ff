"""Sessions: how a connection is made and set up, which locks a session holds, how it is woken, and how it is ended."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol

import sqlalchemy as sa

ISOLATION: Final = "READ COMMITTED"
"""The isolation level of every claim and settle: each statement sees what was committed before it."""

Lock = Any
"""An advisory lock on the key of a job: a number or a name."""

UTC_NAMES: Final = ("UTC", "Etc/UTC", "+00:00")
_TCP_OPTIONS: Final = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


def keepalive(seconds: float) -> tuple[int, int, int]:
    """Whole seconds until the first probe and between two of them, and how many: about so many seconds in all."""
    first, between = max(1, round(seconds / 2)), max(1, round(seconds / 5))
    return first, between, max(1, round((seconds - first) / between))


class Listener(Protocol):
    """Waits on the session of one connection, which does nothing else meanwhile."""

    def __init__(self, connection: sa.Connection) -> None: ...

    def wait(self, seconds: float) -> bool:
        """Wait for at most so many seconds; whether the session was woken, or `end` was called."""

    def end(self) -> None:
        """End `wait` soon, from another thread. It has no effect if `wait` has not begun: call it again then."""

    def close(self) -> None:
        """Free what the listener holds. `wait` is not called any more."""


class Sessions(Protocol):
    """Databases have different functions for this, and drivers different attributes."""

    forget_plans: ClassVar[sa.TextClause | None] = None
    """SQL that makes the server plan the prepared statements of this session anew; None: it plans each time."""
    ends_idle_clients: ClassVar[bool] = False
    """Whether `silence_setting` also ends the session of a client that is there, and sends nothing."""
    knows_start_exactly: ClassVar[bool] = False
    """Whether `server_since` is the same each time."""

    # --- limits ------------------------------------------------------------------------------------------

    statement_limit: ClassVar[str | None] = None
    """The setting by which a session ends if a statement is larger than `largest_statement`; None: it does not."""
    largest_statement: ClassVar[sa.TextClause] = sa.text("SELECT NULL")
    """Asks for the most bytes of a statement. It needs `statement_limit`."""
    check_deferred: ClassVar[sa.TextClause | None] = None
    """Has the server check now, until the transaction ends, what it would check at the commit only; None: nothing."""
    limits: ClassVar[sa.TextClause]
    """Asks for the settings of `idle_limits`, each with its seconds; 0: it is off."""

    def idle_limits(self, connection: sa.Connection) -> Mapping[str, float]:
        """The settings of the session by which the server ends an open transaction in which nothing happens, or that
        takes long, with their seconds. Empty: there is no such limit."""
        return {str(name): float(seconds) for name, seconds in connection.execute(self.limits) if seconds}

    def is_aborted(self, driver_connection: Any) -> bool:
        """Whether the server refuses all that follows in the open transaction, because a statement of it failed."""
        return False

    def set_savepoint(self, cursor: Any, name: str, *, again: bool) -> None:
        """Set a savepoint through a cursor of the driver. `again`: in place of the one with this name."""
        cursor.execute(f"SAVEPOINT {name}")  # it replaces one with its name

    # --- connections of a driver -------------------------------------------------------------------------

    connect_options: ClassVar[Mapping[str, Any]] = {}
    """Arguments of every connection."""

    def connect_arguments(self, driver: str, seconds: int) -> dict[str, Any]:
        """The arguments of a connection, which limit an attempt to connect to so many seconds."""
        return {"connect_timeout": seconds, **self.connect_options}

    def misread_option(self, driver: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
        """An option of a URL that does not mean what it says, and the next step; None if there is none."""
        return None

    def prepare(self, engine: sa.Engine) -> None:
        """Set up an engine: let it choose the one of several hosts that takes writes, and set up its connections."""
        return

    def prepare_nothing_if_pooled(self, driver_connection: Any) -> None:
        """Turn off the driver's prepared statements if a pooler may change the session between transactions."""
        return

    def forget_prepared(self, driver_connection: Any) -> None:
        """Let the driver prepare its statements anew, after an error `is_stale_plan` on a connection in autocommit."""
        return

    def descriptor(self, driver_connection: Any) -> int:
        """The file descriptor of a driver's connection."""
        return int(getattr(driver_connection, "_sock", driver_connection).fileno())  # PyMySQL's is of its socket

    def break_connection(self, driver_connection: Any) -> None:
        """Break a connection, so that a thread that waits for an answer on it stops waiting."""
        with contextlib.suppress(OSError, AttributeError), self._socket(driver_connection) as line:
            line.shutdown(socket.SHUT_RDWR)

    def limit_silence(self, driver_connection: Any, seconds: float) -> None:
        """Let the operating system break a connection whose server has not answered for so many seconds.

        Without it a statement waits a quarter of an hour for a server that has vanished, or two hours.
        """
        values = dict(zip(_TCP_OPTIONS, (*keepalive(seconds), round(seconds * 1000)), strict=True))
        with contextlib.suppress(OSError, AttributeError), self._socket(driver_connection) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in values.items():
                if hasattr(socket, name):  # each operating system has some of them
                    line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _socket(self, driver_connection: Any) -> socket.socket:
        """Another socket object for the same connection; to close it does not close the connection."""
        return socket.socket(fileno=os.dup(self.descriptor(driver_connection)))

    def pipeline(self, driver_connection: Any) -> AbstractContextManager[Any] | None:
        """A block in which the driver sends statements without a wait for their answers. None: it cannot.

        It needs `Dialect.pipelines`.
        """
        return None

    def is_quiet(self, driver_connection: Any) -> bool:
        """Whether the server has certainly sent nothing since its last answer. It would announce the session's end."""
        try:
            line = select.poll()
            line.register(self.descriptor(driver_connection), select.POLLIN)
            return not line.poll(0)
        except (AttributeError, OSError, ValueError):  # no such descriptor, or no poll (Windows)
            return False

    # --- an owner's session ------------------------------------------------------------------------------

    set_up: ClassVar[tuple[str, ...]]
    """The statements of `settings`, of the parameters `ms` and `whole` (seconds)."""

    def settings(self, lock_timeout: float) -> Sequence[str]:
        """The statements that set up an owner's new connection. `lock_timeout` is in seconds.

        Without it a settle could wait for another program's row lock until the owner's lease is over.
        """
        ms, whole = round(lock_timeout * 1000), max(1, round(lock_timeout))
        return [statement.format(ms=ms, whole=whole) for statement in self.set_up]

    to_utc: ClassVar[sa.TextClause]
    """Sets the session's time zone to UTC. Parameter `local`: a transaction is open, and nothing of this is left after
    it."""
    zone_before: ClassVar[sa.TextClause]
    """Sets the zone back to what it was before `to_utc`, with the same parameter."""
    zone: ClassVar[sa.TextClause]
    """Asks for the name of the session's time zone: one of UTC_NAMES, as far as it tells."""

    set_silence: ClassVar[str]
    """The statement of `silence_setting`, of the parameters `first`, `between` and `count` (see `keepalive`), `ms`, and
    `longer`: whole seconds, one more."""

    def silence_setting(self, seconds: float) -> str:
        """The statement after which the server ends this session if its client has not answered for so many seconds.

        A machine that vanishes says no goodbye: without it its row locks stay for hours.
        """
        first, between, count = keepalive(seconds)
        ms, longer = round(seconds * 1000), math.ceil(seconds) + 1
        return self.set_silence.format(first=first, between=between, count=count, ms=ms, longer=longer)

    def unfit_setting(self, connection: sa.Connection) -> tuple[str, str] | None:
        """A setting with which our statements fail, or read too few rows; and the SQL that changes it. None: all fit.

        For a session of the user's, which claimjobs does not set up.
        """
        return None

    read_only: ClassVar[sa.TextClause]
    """Asks whether the server or the session is read-only for an account that may not ignore that."""
    set_read_only: ClassVar[sa.TextClause]
    """Asks for the setting of `read_only_setting`."""
    read_write: ClassVar[str]
    """The SQL that changes it."""

    def read_only_setting(self, connection: sa.Connection) -> tuple[str, str] | None:
        """The setting that makes this session read-only, though the server is not; and the SQL that changes it."""
        setting: str | None = connection.scalar(self.set_read_only)
        return (setting, self.read_write) if setting else None

    number: ClassVar[sa.ColumnElement[int]]
    """The number of the session that answers."""

    def is_as_greeted(self, connection: sa.Connection) -> bool:
        """Whether the session that answers is the one that greeted the client. Behind a pooler it is another one."""
        driver: Any = connection.connection.dbapi_connection
        greeted_by = driver.thread_id() if hasattr(driver, "thread_id") else driver.info.backend_pid
        return bool(connection.scalar(sa.select(self.number.label("session"))) == int(greeted_by))

    several_primaries: ClassVar[sa.TextClause | None] = None
    """Returns a row on `is_one_of_several_primaries`; None: there is no such server."""
    catching_up: ClassVar[tuple[str, ...]] = ()
    """The statements of `catch_up`."""

    def is_one_of_several_primaries(self, connection: sa.Connection) -> bool:
        """Whether other servers take writes to this database, too. They see none of the locks of this one.

        Of two transactions that change one row on two of them, the later one is refused. Rows that a transaction only
        reads or locks protect nothing there.
        """
        return self.several_primaries is not None and connection.execute(self.several_primaries).first() is not None

    def catch_up(self, connection: sa.Connection) -> None:
        """On one of several primaries: wait until it has applied what was committed on the others before.

        Otherwise a consumer that comes from another one may find less here than it has written itself.
        """
        for statement in self.catching_up:
            connection.exec_driver_sql(statement).close()

    def locks_are_seen(self, connection: sa.Connection) -> bool:
        """Whether all sessions of the database see the locks of this one."""
        return not self.is_one_of_several_primaries(connection)

    # The name of each lock contains the table of owners, with its schema: sessions of several schemas share one space
    # of names, and owners of two of these tables may have the same id.

    def try_session_lock(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Take the session lock of this owner if it is free: true or false at once; NULL if there is no such table.

        The session keeps it.
        """

    def try_leader_lock(self, owners: sa.Table, jobs: sa.Table) -> sa.ColumnElement[bool]:
        """Take the session lock of the leader of a table of jobs, as above. It is no owner's."""

    def lock_holder(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """The session that holds the lock of this owner; NULL if none does.

        A server of another product may answer NULL though it granted the lock: CockroachDB grants all and keeps none.
        """

    def give_ids_above(self, owners: sa.Table, last: int) -> sa.Select[Any] | None:
        """The statement after which the table of owners gives ids above this one. One transaction after the other runs
        it, and only the first one changes anything.

        None: it does so after an INSERT of a row with this id.
        """
        return None

    kill: ClassVar[sa.TextClause]
    """Ends the session of the parameter `session`."""

    def end_session(self, session: int) -> sa.Executable:
        """End another session of the same user: its transaction is rolled back, and its locks are released."""
        return self.kill.bindparams(session=session)

    def server_since(self, connection: sa.Connection) -> datetime:
        """When this server was started, by its own clock, to within two seconds."""

    # --- how an idle owner is woken: by a notification, or by the end of the statement that it sleeps in ----

    listener: ClassVar[type[Listener]]
    """The listener of a connection's session."""

    def listen(self, owner: int) -> sa.Executable | None:
        """The statement that a session sends once so that it is woken with this owner; None: it needs none."""
        return None

    def wake(self, owners: sa.Table, owner: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        """Wake an owner when this transaction is committed. If the database `interrupts`: the session to interrupt
        after the commit, or NULL."""

    def interrupt(self, session: int) -> sa.Executable:
        """End the statement that another session of the same user sleeps in, if that session is in `autocommit`."""
        raise LookupError("sleepers of this database are not interrupted")

    def autocommit(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Let each statement commit itself for a `with` block, which saves a round trip each. If the database
        `interrupts`, the session can be interrupted in this block only.

        It must be inside a transaction of SQLAlchemy. If the session cannot be reset, it is ended.
        """

    # --- advisory locks on the keys of jobs, for `claimjobs.contrib.advisory_locks` alone ------------------

    # A lock can be held several times by one session, and needs as many unlocks.

    try_key_locks: ClassVar[sa.Select[Any]]
    """Takes each lock of the parameter `locks` for the session, if it is free: the lock, and whether it was taken.

    This statement reads no jobs. In the WHERE of a statement that reads jobs, a lock would be taken for every row that
    the plan reads before the LIMIT.
    """
    unlock_key_locks: ClassVar[sa.Select[Any]]
    """Releases each lock of the parameter `locks` once."""

    def key_lock(self, table: str, key: str) -> Lock:
        """The lock on a key, given as text, of the table with this full name. Every session computes the same lock.

        Two keys may have the same lock: then one claim waits for the other. Two tables hardly ever do.
        """

    # --- databases of tests ------------------------------------------------------------------------------

    def drop_database(self, connection: sa.Connection, name: str) -> None:
        """Drop a database, and end the sessions in it, which tests have left. The connection is in AUTOCOMMIT."""

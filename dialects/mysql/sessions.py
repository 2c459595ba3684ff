"""Sessions of MySQL: named locks belong to the whole server, and a group or a cluster does not share them.

There are no notifications: an owner waits in a statement that sleeps, and a user may end statements of its other
sessions.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

import sqlalchemy as sa

from claimjobs.dialects.mysql.errors import KILLED, NO_WRITES, UNREACHABLE, MySQLErrors
from claimjobs.dialects.sessions import Sessions
from claimjobs.dialects.types import database_now

_NO_LIMIT: Final = 2**64 - 1
"""`sql_select_limit` if there is no limit."""
CATCH_UP_SECONDS: Final = 5
"""Seconds that a primary may need to apply what others have committed. Then it is one that cannot be used."""

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

    # A time limit of the account is for other statements: its end would be taken for an interrupt. The hint knows no 0.
    sleep = sa.text("SELECT /*+ MAX_EXECUTION_TIME(4294967295) */ sleep(:seconds)")

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
            return bool(self._connection.scalar(self.sleep, {"seconds": min(seconds, self._longest)}))
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
                other.execute(MySQLSessions().interrupt(self._session))

    def close(self) -> None:
        with self._guard:
            self._closed = True
        if self._ending is not None:
            self._ending.join(1.0)  # so that it does not interrupt the next statement


class _MariaDBSleepListener(_SleepListener):
    sleep = sa.text("SET STATEMENT max_statement_time = 0 FOR SELECT sleep(:seconds)")


class MySQLSessions(Sessions):
    ends_idle_clients = True
    listener = _SleepListener

    refuses_joined_deletes = False
    """With `sql_safe_updates` a session refuses a DELETE of joined rows, unless it uses an index of each table."""

    # The server answers error 1153, or nothing, and closes the connection: the driver says that it was lost.
    statement_limit = "max_allowed_packet"
    largest_statement = sa.text("SELECT @@session.max_allowed_packet")
    # It ends a client that sends nothing.
    limits = sa.text("SELECT 'wait_timeout', @@session.wait_timeout")
    # The session's time zone applies to a user's TIMESTAMP columns; our clock is UTC. `sql_safe_updates` is for
    # statements that people type. `sql_select_limit` would limit every SELECT that has no LIMIT, and without
    # `sql_big_selects` a low `max_join_size` refuses to join a large table.
    set_up = (
        "SET SESSION innodb_lock_wait_timeout = {whole}, time_zone = '+00:00', "
        f"sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = {_NO_LIMIT}",
    )
    # A session has no variable for TCP keepalive. For `wait_timeout` the server waits for the next statement of a
    # client that has vanished, also in an open transaction.
    set_silence = "SET SESSION wait_timeout = {longer}"
    # A variable of the session does not depend on transactions.
    to_utc = sa.text("SET @claimjobs_zone = @@session.time_zone, time_zone = '+00:00'")
    zone_before = sa.text("SET time_zone = @claimjobs_zone")
    zone = sa.text("SELECT IF(@@session.time_zone = 'SYSTEM', @@global.system_time_zone, @@session.time_zone)")
    # super_read_only switches read_only on, too.
    read_only = sa.text("SELECT @@global.read_only OR @@session.transaction_read_only")
    set_read_only = sa.text(
        "SELECT IF(@@session.transaction_read_only AND NOT @@global.transaction_read_only, "
        "'transaction_read_only = 1', NULL)"
    )
    read_write = "SET SESSION TRANSACTION READ WRITE"
    # ProxySQL answers the text "SELECT CONNECTION_ID()" itself, with the number of its greeting. A server must.
    number = sa.func.connection_id(type_=sa.BigInteger) + sa.literal_column("0")
    # Every account may read these. A member that has left its group counts as well: it may join it again.
    several_primaries = sa.text(
        "SHOW GLOBAL VARIABLES WHERE (variable_name = 'wsrep_on' AND value = 'ON') "
        "OR (variable_name = 'group_replication_single_primary_mode' AND value = 'OFF')"
    )
    # The beginning of a transaction waits for what the group has committed, not for ever.
    catching_up = (
        f"SET SESSION group_replication_consistency = 'BEFORE', wait_timeout = {CATCH_UP_SECONDS}",
        *("START TRANSACTION", "COMMIT"),
        "SET SESSION group_replication_consistency = @@global.group_replication_consistency, "
        "wait_timeout = @@global.wait_timeout",
    )
    kill = sa.text("KILL :session")
    _wanted = sa.func.json_table(
        sa.bindparam("locks", type_=sa.JSON), sa.text("'$[*]' columns (name varchar(64) path '$')")
    )
    _lock = _wanted.table_valued(sa.column("name", sa.String(64)), name="wanted").c.name
    try_key_locks = sa.select(_lock, sa.func.get_lock(_lock, 0, type_=sa.Boolean))
    unlock_key_locks = sa.select(sa.func.release_lock(_lock, type_=sa.Boolean))

    def connect_arguments(self, driver: str, seconds: int) -> dict[str, Any]:
        # PyMySQL's connect_timeout covers the TCP connection only; waiting for the greeting is a read.
        more = {"read_timeout": seconds} if driver == "pymysql" else {}
        return {**super().connect_arguments(driver, seconds), **more}

    def misread_option(self, driver: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
        # To PyMySQL every text is true, also "false". `ssl_ca` comes from SQLAlchemy in a form that `ssl_verify_...`
        # replaces: the driver would not look at that authority, nor at the host name.
        if driver != "pymysql":
            return None
        if found := [name for name in ("ssl_verify_identity", "ssl_verify_cert") if name in options]:
            return found[0], "leave it out: `ssl_ca=FILE` alone checks the certificate and the host name"
        if options.get("ssl_disabled", "true") != "true":
            return "ssl_disabled", "leave it out: any value of it switches TLS off"
        return None

    def prepare(self, engine: sa.Engine) -> None:
        def limit_only_greeting(driver_connection: Any, _record: Any) -> None:  # a statement may take longer
            if hasattr(driver_connection, "_read_timeout"):
                driver_connection._read_timeout = None

        sa.event.listen(engine, "connect", limit_only_greeting)
        if "host" not in engine.url.query:
            return
        hosts = Hosts(engine.url)
        sa.event.listen(engine, "do_connect", hosts.connect)
        if hosts.chooses:
            sa.event.listen(engine, "checkout", hosts.leave_if_demoted)

    def unfit_setting(self, connection: sa.Connection) -> tuple[str, str] | None:
        # SQLAlchemy has no name for a variable of the session; one that is switched on is 1.
        limit, safe = connection.execute(sa.text("SELECT @@sql_select_limit, @@sql_safe_updates")).one()
        if int(limit) < _NO_LIMIT:
            return f"sql_select_limit = {limit}", f"SET SESSION sql_select_limit = {_NO_LIMIT}"
        if safe and self.refuses_joined_deletes:
            return "sql_safe_updates = 1", "SET SESSION sql_safe_updates = 0"
        return None

    def try_session_lock(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.func.get_lock(_owner_lock(owners, owner), 0, type_=sa.Boolean)

    def try_leader_lock(self, owners: sa.Table, jobs: sa.Table) -> sa.ColumnElement[bool]:
        # No name contains the character 0.
        name = _PREFIX, _digest(_schema(owners), sa.func.char(0), _schema(jobs), sa.func.char(0), _utf8(jobs.name))
        return sa.func.get_lock(sa.func.concat(*name), 0, type_=sa.Boolean)

    def lock_holder(self, owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.func.is_used_lock(_owner_lock(owners, owner), type_=sa.BigInteger)

    def server_since(self, connection: sa.Connection) -> datetime:
        uptime = connection.execute(sa.text("SHOW GLOBAL STATUS LIKE 'Uptime'")).one()[1]
        now: datetime = connection.execute(sa.select(database_now())).scalar_one()
        return now - timedelta(seconds=int(uptime))

    wake = lock_holder

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

    def key_lock(self, table: str, key: str) -> str:
        # A name has at most 64 characters, and case makes no difference; on some servers that is so for tables, too.
        table = table.lower()
        digest = blake2b(f"{table}\0{key}".encode(), digest_size=16).hexdigest()
        return f"cj.{table[:28]}.{digest}"

    def drop_database(self, connection: sa.Connection, name: str) -> None:
        # A DROP waits for the open transactions of other sessions, which lock the tables that they used.
        sessions = sa.text("SELECT id FROM information_schema.processlist WHERE db = :name")
        for session in connection.scalars(sessions, {"name": name}).all():
            with contextlib.suppress(sa.exc.DBAPIError):  # it may have ended meanwhile
                connection.execute(self.end_session(session)).close()
        connection.exec_driver_sql(f"DROP DATABASE {connection.dialect.identifier_preparer.quote(name)}")


class MariaDBSessions(MySQLSessions):
    listener = _MariaDBSleepListener

    # MariaDB also demands an index for the keys, which are a table of JSON; MySQL only one for the written table.
    refuses_joined_deletes = True
    # The last one: also of a transaction that has only locked rows.
    limits = sa.text(
        "SELECT 'wait_timeout', @@session.wait_timeout "
        "UNION ALL SELECT 'idle_transaction_timeout', @@session.idle_transaction_timeout "
        "UNION ALL SELECT 'idle_write_transaction_timeout', @@session.idle_write_transaction_timeout "
        "UNION ALL SELECT 'idle_readonly_transaction_timeout', @@session.idle_readonly_transaction_timeout"
    )
    # It has MySQL's name since 11.1, and keeps its own beside that.
    read_only = sa.text("SELECT @@global.read_only OR @@session.tx_read_only")
    set_read_only = sa.text("SELECT IF(@@session.tx_read_only AND NOT @@global.tx_read_only, 'tx_read_only = 1', NULL)")
    catching_up = (
        "SET SESSION wsrep_sync_wait = 1",
        *("START TRANSACTION", "COMMIT"),
        "SET SESSION wsrep_sync_wait = @@global.wsrep_sync_wait",
    )


_PREFIX: Final = "claimjobs."


def _owner_lock(owners: sa.Table, owner: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    return sa.func.concat(_PREFIX, _digest(_schema(owners)), ".", owner)


def _digest(*parts: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """A name of a lock has at most 64 characters, as a database's: so it contains a digest."""
    whole = parts[0] if len(parts) == 1 else sa.func.concat(*parts)
    return sa.func.left(sa.func.sha2(whole, 256), 32)


def _schema(table: sa.Table) -> sa.ColumnElement[str]:
    """The database that a table is in: locks belong to the whole server."""
    return _utf8(sa.func.database() if table.schema is None else table.schema)


def _utf8(name: Any) -> sa.ColumnElement[str]:
    """A name in one character set, so that its digest is the same whatever the client's is."""
    text = name if isinstance(name, sa.ColumnElement) else sa.literal(str(name))
    return sa.func.convert(text.op("USING")(sa.literal_column("utf8mb4")))


# --- several hosts in a URL ------------------------------------------------------------------------------------

# No driver of MySQL knows more than one, so we choose the first that takes writes. A primary that is demoted keeps its
# sessions, and answers what is read as it was then. (A Postgres ends them all.)

_READ_ONLY: Final = "SELECT @@global.read_only, @@global.innodb_read_only"
"""`super_read_only` switches `read_only` on, too. A later MariaDB has words for these values."""
_NO: Final = (0, "0", "OFF")
_MEMBERS: Final = "SELECT member_state FROM performance_schema.replication_group_members"
_UNREACHABLE_MEMBER: Final = "UNREACHABLE"
_GALERA: Final = "SHOW GLOBAL VARIABLES WHERE variable_name = 'wsrep_on' AND value = 'ON'"
_READY: Final = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'"
"""A member of a Galera cluster answers these also if it is cut off."""
FRESH_SECONDS: Final = 1.0
"""Seconds for which a pooled connection is not asked again whether its server takes writes."""
_ASKED: Final = "claimjobs_asked_for_writes"
"""The key of a connection's `info` with the time when it was asked."""


class Hosts:
    """The hosts in the query of a URL (`?host=a:3306&host=b:3306`). Each attempt to connect tries them in turn."""

    def __init__(self, url: sa.URL) -> None:
        """Raises ValueError or TypeError."""
        named = url.query["host"]
        parts = [urlsplit(f"//{host}") for host in ((named,) if isinstance(named, str) else named)]
        if not all(part.hostname for part in parts):
            raise ValueError("one of its hosts is empty")
        given: Any = url.port or url.query.get("port", 3306)
        port = int(given)
        self._addresses = [{"host": part.hostname, "port": part.port or port} for part in parts]
        self.chooses = len(self._addresses) > 1
        """One host alone may be a replica from which candidates are read."""

    def connect(self, dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Any:
        """A connection of the driver to the first host that takes writes. Raises the driver's error if none does."""
        driver, failures = dialect.loaded_dbapi, []
        for address in self._addresses:
            try:
                connection = dialect.connect(*arguments, **{**options, **address})
            except driver.Error as error:
                if MySQLErrors().broken_kind(error) is None:
                    raise  # a wrong password is wrong on every host
                failures.append(str(error.args[-1]))
                continue
            if not self.chooses or (_takes_writes(connection) and not _is_cut_off(connection)):
                return connection
            connection.close()
            failures.append(f"{address['host']}:{address['port']} {NO_WRITES}")
        raise driver.OperationalError(UNREACHABLE, "; ".join(failures))

    def leave_if_demoted(self, driver_connection: Any, record: Any, _proxy: Any) -> None:
        """Let the pool replace all connections to a server that takes writes no more, before one is used."""
        now = time.monotonic()
        if now - record.info.get(_ASKED, now - FRESH_SECONDS) < FRESH_SECONDS:
            return
        if not _takes_writes(driver_connection):
            raise sa.exc.InvalidatePoolError
        record.info[_ASKED] = now


def _takes_writes(driver_connection: Any) -> bool:
    """Whether the server is a primary, for every account: also for one that may write on a read-only server."""
    try:
        [values] = _rows(driver_connection, _READ_ONLY)
    except Exception as error:
        if MySQLErrors().broken_kind(error) is None:
            raise
        return False
    return all(value in _NO for value in values)


def _is_cut_off(driver_connection: Any) -> bool:
    """Whether the server is a member of a cluster or a group that sees no majority. One of a group takes writes, and
    no commit ends.

    False if the account may not ask, or the server knows no groups. True if the connection is lost meanwhile.
    """
    try:
        is_galera = _rows(driver_connection, _GALERA)  # any other MariaDB server is never ready
        if is_galera and any(value != "ON" for _, value in _rows(driver_connection, _READY)):
            return True
        states = [state for (state,) in _rows(driver_connection, _MEMBERS)]
    except Exception as error:
        if MySQLErrors().code(error) is None:
            raise
        return MySQLErrors().broken_kind(error) is not None
    return 2 * states.count(_UNREACHABLE_MEMBER) >= len(states) > 0


def _rows(driver_connection: Any, query: str) -> Any:
    with contextlib.closing(driver_connection.cursor()) as cursor:
        cursor.execute(query)
        return cursor.fetchall()

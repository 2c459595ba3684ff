"""Sessions of MySQL: named locks belong to the whole server, and a group or a cluster does not share them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.mysql.hosts import Hosts
from claimjobs.dialects.sessions import Sessions
from claimjobs.dialects.types import database_now

_NO_LIMIT: Final = 2**64 - 1
"""`sql_select_limit` if there is no limit."""
CATCH_UP: Final = 5
"""Seconds that a primary may need to apply what others have committed. Then it is one that cannot be used."""


class MySQLSessions(Sessions):
    ends_idle_clients = True

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
        f"SET SESSION group_replication_consistency = 'BEFORE', wait_timeout = {CATCH_UP}",
        *("START TRANSACTION", "COMMIT"),
        "SET SESSION group_replication_consistency = @@global.group_replication_consistency, "
        "wait_timeout = @@global.wait_timeout",
    )
    kill = sa.text("KILL :session")
    sessions_of = sa.text("SELECT id FROM information_schema.processlist WHERE db = :name")

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
        sa.event.listen(engine, "connect", _limit_only_greeting)
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


class MariaDBSessions(MySQLSessions):
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


def _limit_only_greeting(driver_connection: Any, _record: Any) -> None:
    """The read timeout was for the greeting; a statement may take longer."""
    if hasattr(driver_connection, "_read_timeout"):
        driver_connection._read_timeout = None


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

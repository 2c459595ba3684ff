"""What MySQL and MariaDB say of themselves to a DBA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import Finding, Inspection, NotShown, Plan, TableRead

Row = dict[str, Any]
LAG: Final = 100_000
"""So many transactions that wait for purge are a warning. A busy server has some thousands."""
LONG_WAIT: Final = 50
"""Seconds, the default of the server."""
LONG_SILENCE: Final = 60
"""Seconds until the first probe of TCP keepalive; a later one is a warning for open transactions."""
_VANISHED: Final = (
    "until it notices that a client's machine has vanished, the jobs of that open transaction stay locked, "
    "with the defaults of Linux for two hours"
)

# Our own session has another innodb_lock_wait_timeout.
_VARIABLES: Final = sa.text(
    "SELECT @@log_bin AS log_bin, @@session.binlog_format AS binlog_format, "
    "@@global.innodb_lock_wait_timeout AS lock_wait"
)
_LOCKS: Final = sa.text(
    "SELECT count(*) FROM performance_schema.data_locks WHERE object_name = :table AND lock_type = 'RECORD' "
    "AND object_schema = coalesce(:schema, database()) AND thread_id = "
    "(SELECT thread_id FROM performance_schema.threads WHERE processlist_id = connection_id())"
)
_COLUMNS: Final = ("table", "type", "key", "rows", "Extra")


_WAITS: Final = "innodb_lock_wait_timeout = {whole}, lock_wait_timeout = {whole}"


class MySQLInspection(Inspection):
    # The table of a plan is the only form that all versions of MySQL and MariaDB write alike: FORMAT=JSON has other
    # keys in each, and MySQL 9 chooses between two versions of it by a variable. A session's default may be TREE.
    explain = "EXPLAIN FORMAT=TRADITIONAL"

    # It counts for SELECT alone. Other statements wait at most for a row, or for a table that is altered now.
    time_limit = f"SET SESSION max_execution_time = {{ms}}, {_WAITS}"

    # A transaction at READ COMMITTED has a new snapshot for each statement.
    snapshots = sa.text(
        "SELECT IF(trx_mysql_thread_id = 0, 'a prepared XA transaction', "
        "concat('session ', trx_mysql_thread_id, ' of ', coalesce(user, 'another user'))) AS who, "
        "timestampdiff(MICROSECOND, trx_started, now(6)) / 1000000 AS seconds FROM information_schema.innodb_trx "
        "LEFT JOIN information_schema.processlist ON id = trx_mysql_thread_id "
        "WHERE trx_isolation_level IN ('REPEATABLE READ', 'SERIALIZABLE') AND trx_mysql_thread_id <> connection_id() "
        "ORDER BY trx_started"
    )
    keepalive: ClassVar[sa.TextClause | None] = None
    """Asks for the seconds until the first probe of TCP keepalive; None: this server has no variable for it."""
    # How many transactions wait for purge.
    history = sa.text("SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        found = connection.exec_driver_sql(f"{self.explain} {sql}", parameters).mappings()
        rows: list[Row] = [dict(row) for row in found]
        # Those about a table: not about a subquery's result, and not about a JSON_TABLE.
        named = [row for row in rows if row["table"] and not row["table"].startswith("<")]
        real = [row for row in named if "Table function" not in (row["Extra"] or "")]
        return Plan(tuple(map(_read, real)), any("filesort" in (row["Extra"] or "") for row in real), _table(rows))

    def rows_read(self, connection: sa.Connection, table: sa.Table) -> int:
        # Of the session, for all tables: InnoDB counts by table for the whole server only.
        counts = connection.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
        return sum(int(count) for _, count in counts)

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        if not connection.scalar(sa.text("SELECT @@performance_schema")):
            raise NotShown("performance_schema is off on this server")
        return int(connection.execute(_LOCKS, {"table": table.name, "schema": table.schema}).scalar_one())

    def settings(self, connection: sa.Connection, *, by_lease: bool) -> Iterator[Finding]:
        found = connection.execute(_VARIABLES).one()
        if not found.log_bin:
            yield Finding("binlog", "ok", "there is no binary log")
        elif found.binlog_format != "STATEMENT":
            yield Finding("binlog", "ok", "the binary log has rows, so claims can be READ COMMITTED")
        else:
            says = "InnoDB refuses each claim: it is READ COMMITTED, and the binary log has the format STATEMENT"
            yield Finding("binlog", "will not work", says, ("SET GLOBAL binlog_format = 'ROW';",))
        seconds = int(found.lock_wait)
        says = f"innodb_lock_wait_timeout is {seconds} s on this server"
        if by_lease:
            says = f"{says}; a consumer sets it for its own session, to a fifth of its lease"
            yield Finding("lock wait", "ok", says)
            return
        if seconds <= LONG_WAIT:
            yield Finding("lock wait", "ok", says)
        else:
            says = f"{says}, and hold='transaction' does not change it: a settle may wait so long"
            fix = f"SET GLOBAL innodb_lock_wait_timeout = {LONG_WAIT};"
            yield Finding("lock wait", "warning", says, (fix,))
        yield self._vanished_clients(connection)

    def _vanished_clients(self, connection: sa.Connection) -> Finding:
        """When the server ends the transaction of a client whose machine has vanished."""
        if self.keepalive is None:
            says = f"not known, because this server does not show it: {_VANISHED}"
            step = "see net.ipv4.tcp_keepalive_time and tcp_retries2 on its machine"
            return Finding("vanished clients", "not known", f"{says}; {step}")
        seconds = int(connection.scalar(self.keepalive) or 0)
        if 0 < seconds <= LONG_SILENCE:
            return Finding("vanished clients", "ok", f"tcp_keepalive_time is {seconds} s on this server")
        says = f"tcp_keepalive_time is {seconds or 'not set'} on this server: {_VANISHED}"
        values = {"time": LONG_SILENCE, "interval": 10, "probes": 6}
        fix = f"SET {', '.join(f'GLOBAL tcp_keepalive_{name} = {value}' for name, value in values.items())};"
        return Finding("vanished clients", "warning", says, (fix,))

    def garbage(self, connection: sa.Connection, table: sa.Table) -> Iterator[Finding]:
        found = connection.execute(self.history).first()
        lag = int(found[-1]) if found else 0
        text = f"purge has not removed what {lag:,} transactions left"
        if lag > LAG:
            text += ": a claim at the head reads deleted rows until it has; see who holds a snapshot"
        yield Finding("purge lag", "warning" if lag > LAG else "ok", text)


class MariaDBInspection(MySQLInspection):
    # It knows no name for the format that it has by default, and shows no partitions there.
    explain = "EXPLAIN PARTITIONS"

    time_limit = f"SET SESSION max_statement_time = {{seconds}}, {_WAITS}"
    history = sa.text("SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")
    keepalive = sa.text("SELECT @@global.tcp_keepalive_time")

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        # It lists no locks. InnoDB's count is that of all tables of the transaction, and is renewed ten times a second.
        connection.execute(sa.text("SELECT SLEEP(0.15)")).close()
        count = connection.scalar(
            sa.text(
                "SELECT trx_rows_locked FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = connection_id()"
            )
        )
        return int(count or 0)


def _read(row: Row) -> TableRead:
    # "index" reads a whole index in its order: a LIMIT ends that, unless the rows must be sorted.
    extra = row["Extra"] or ""
    is_scan = row["type"] == "ALL" or (row["type"] == "index" and "filesort" in extra)
    rows = row["rows"]
    partitions = tuple(filter(None, (row["partitions"] or "").split(",")))
    return TableRead(row["table"], row["key"], is_scan, None if rows is None else int(rows), partitions)


def _table(rows: Sequence[Row]) -> str:
    cells = [_COLUMNS, *(tuple(str(row[column] or "") for column in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)

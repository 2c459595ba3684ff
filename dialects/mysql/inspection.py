"""What MySQL and MariaDB say of their tables, and of themselves to a DBA."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs.dialects.inspection import LOCK_TIMEOUT, Finding, Inspection, NotShown, Plan, TableRead, TableRules

Row = dict[str, Any]

_BINLOG: Final = sa.text("SELECT @@log_bin AS log_bin, @@session.binlog_format AS binlog_format")
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

    # A transaction at READ COMMITTED has a new snapshot for each statement. InnoDB tells times in the machine's zone.
    snapshots = sa.text(
        "SELECT IF(trx_mysql_thread_id = 0, 'a prepared XA transaction', "
        "concat('session ', trx_mysql_thread_id, ' of ', coalesce(user, 'another user'))) AS who, "
        "IF(trx_isolation_level = 'READ COMMITTED', time, timestampdiff(MICROSECOND, trx_started, "
        "convert_tz(utc_timestamp(6), '+00:00', 'SYSTEM')) / 1000000) AS seconds FROM information_schema.innodb_trx "
        "LEFT JOIN information_schema.processlist ON id = trx_mysql_thread_id "
        "WHERE (trx_isolation_level IN ('REPEATABLE READ', 'SERIALIZABLE') "
        "OR trx_isolation_level = 'READ COMMITTED' AND command <> 'Sleep') "
        "AND trx_mysql_thread_id <> connection_id() ORDER BY seconds DESC"
    )

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        found = connection.exec_driver_sql(f"{self.explain} {sql}", parameters).mappings()
        rows: list[Row] = [dict(row) for row in found]
        # Those about a table: not about a subquery's result, and not about a JSON_TABLE.
        named = [row for row in rows if row["table"] and not row["table"].startswith("<")]
        real = [row for row in named if "Table function" not in (row["Extra"] or "")]
        sorted_ = [row for row in real if "filesort" in (row["Extra"] or "")]
        # "index" reads a whole index in its order: a LIMIT ends that, unless the rows must be sorted.
        scans = [row for row in real if row["type"] == "ALL" or (row["type"] == "index" and row in sorted_)]
        reads = [TableRead(row["table"], row["key"], row in scans) for row in real]
        cells = [_COLUMNS, *(tuple(str(row[column] or "") for column in _COLUMNS) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        text = "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
        return Plan(tuple(reads), bool(sorted_), text)

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        if not connection.scalar(sa.text("SELECT @@performance_schema")):
            raise NotShown("performance_schema is off on this server")
        return int(connection.execute(_LOCKS, {"table": table.name, "schema": table.schema}).scalar_one())

    def settings(self, connection: sa.Connection) -> Iterator[Finding]:
        found = connection.execute(_BINLOG).one()
        if not found.log_bin:
            yield Finding("binlog", "ok", "there is no binary log")
        elif found.binlog_format != "STATEMENT":
            yield Finding("binlog", "ok", "the binary log has rows, so claims can be READ COMMITTED")
        else:
            says = "InnoDB refuses each claim: it is READ COMMITTED, and the binary log has the format STATEMENT"
            yield Finding("binlog", "will not work", says, ("SET GLOBAL binlog_format = 'ROW';",))


class MariaDBInspection(MySQLInspection):
    explain = "EXPLAIN"  # it knows no name for the format that it has by default

    time_limit = f"SET SESSION max_statement_time = {{seconds}}, {_WAITS}"

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        # It lists no locks. InnoDB's count is that of all tables of the transaction, and is renewed ten times a second.
        connection.execute(sa.text("SELECT SLEEP(0.15)")).close()
        count = connection.scalar(
            sa.text(
                "SELECT trx_rows_locked FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = connection_id()"
            )
        )
        return int(count or 0)


# --- which tables can be claimed from: those of an engine with row locks -----------------------------------------

PREPARER: Final = mysql.dialect(paramstyle="named").identifier_preparer

_CLOCK: Final = re.compile(r"(?i)\b(?:now|local|cur)(?:rent)?(?:_?timestamp|_?date|_?time)?\b")
"""A function in a default that tells the time of the session's zone."""


def _about(select: str, view: str, condition: str = "") -> sa.TextClause:
    """Asks a view of information_schema about one table."""
    table = "table_schema = coalesce(:schema, database()) AND table_name = :name"
    return sa.text(f"SELECT {select} FROM information_schema.{view} WHERE {table} {condition}")  # noqa: S608


class MySQLTableRules(TableRules):
    # https://dev.mysql.com/doc/refman/8.4/en/innodb-online-ddl-operations.html: the server chooses the lightest way.
    locks: ClassVar[Mapping[str, str]] = {
        "ALTER TABLE": "waits until no transaction uses the table; a column is added instantly, without a copy",
        "CREATE INDEX": "others read and write while it runs; it begins and ends when no transaction uses the table",
        "CREATE UNIQUE INDEX": "others read and write while it runs, but for its beginning and end",
        "CREATE TABLE": "locks no other table",
    }
    # A driver reads a TIME as a duration, which SQLAlchemy turns into a time of day, and a SET in any order. JSON_TABLE
    # changes the bits of a BIT: a key in a claim row was not found there, and claimed again.
    exact_types = (*TableRules.exact_types, mysql.YEAR)
    names_have_case = False
    inexact_types = (*TableRules.inexact_types, sa.Time, mysql.SET, mysql.BIT)

    longest = 64
    counted_in = "characters"
    last_character = "\uffff"  # the server replaces those behind it by question marks

    # A server may compare names without regard to case: the one that is spelled so comes first.
    location_of = _about(
        "table_schema, table_name, table_schema = database()",
        "tables",
        "ORDER BY CAST(table_name AS BINARY) = CAST(:name AS BINARY) DESC LIMIT 1",
    )
    holder_of = sa.text(
        "SELECT concat('session ', processlist_id, ' (', processlist_user, '@', processlist_host, ')') "
        "FROM performance_schema.metadata_locks JOIN performance_schema.threads ON thread_id = owner_thread_id "
        "WHERE object_type = 'TABLE' AND object_schema = coalesce(:schema, database()) AND object_name = :name "
        "AND lock_status = 'GRANTED' AND processlist_id <> connection_id() LIMIT 1"
    )
    # SHOW CREATE TABLE, which SQLAlchemy reads, leaves it out in the modes NO_TABLE_OPTIONS, ANSI, ORACLE and more.
    comment_of = _about("table_comment", "tables")
    # FORCE INDEX with an invisible one is error 1176.
    unused_of = _about("DISTINCT index_name", "statistics", "AND is_visible = 'NO'")
    inexact_of = _about("DISTINCT index_name", "statistics", "AND sub_part IS NOT NULL")
    unusual_of = _about(
        "index_name, column_name, sub_part IS NULL AND collation = 'D'",
        "statistics",
        "AND (sub_part IS NOT NULL OR coalesce(collation, '') <> 'A')",
    )
    sizes_of = _about(
        "column_name, CASE WHEN data_type = 'json' OR data_type LIKE '%text' OR data_type LIKE '%blob' THEN 1e9 "
        "WHEN data_type IN ('enum', 'set') THEN 2 ELSE coalesce(character_octet_length, 4) END",
        "columns",
    )
    partitioned_by = _about("DISTINCT partition_expression, subpartition_expression", "partitions")
    updated_of = _about("column_name, extra", "columns", "AND extra LIKE '%on update%'")
    # If no collation is named, the columns of a JSON_TABLE have the connection's: comparing them is error 1267.
    collations_of = _about("column_name, collation_name", "columns", "AND collation_name IS NOT NULL")
    named_with_words = sa.text(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = database() "
        "AND table_type = 'BASE TABLE' AND locate(:words, table_comment) > 0 ORDER BY table_name"
    )

    def named(self, table: sa.Table) -> dict[str, Any]:
        return {"schema": table.schema, "name": table.name}

    def depends_on_zone(self, column: Any) -> bool:
        # A TIMESTAMP is converted by the session's zone, both ways; a default is the time of that zone.
        return isinstance(column["type"], sa.TIMESTAMP) or _CLOCK.search(column.get("default") or "") is not None

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        # MariaDB's FEDERATED reports YES, but locks nothing on the server that stores the rows.
        locking = "coalesce(transactions, 'NO') = 'YES' AND tables.engine <> 'FEDERATED'"
        engines = "tables LEFT JOIN information_schema.engines ON engines.engine = tables.engine"
        there = _about(f"table_type, tables.engine, {locking}", engines, "AND table_type <> 'TEMPORARY'")
        found = self._asked(connection, there, table)
        if not found:
            return "is a temporary table, which every session has for itself", "make a table that is not temporary"
        if odd := [column.name for column in table.columns if "`" in column.name]:
            return f"has a column {odd[0]!r}, a backtick in whose name SQLAlchemy reads as two", "rename the column"
        [(kind, engine, locks)] = found
        if kind == "VIEW":
            return "is a view, whose rows have no key to lock them by", "name the table that it reads"
        if locks:
            return None
        alter = f"ALTER TABLE {PREPARER.format_table(table)} ENGINE=InnoDB"
        return f"is stored by {engine}, an engine without transactions and row locks", alter

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        # The server writes an expression, which names a column with or without backticks.
        parts = self._asked(connection, self.partitioned_by, table)
        expressions = " ".join(expression for row in parts for expression in row if expression)
        return [
            column.name
            for column in table.columns
            if PREPARER.quote_identifier(column.name) in expressions
            or re.search(rf"\b{re.escape(column.name)}\b", expressions)
        ]

    def add_column(self, connection: sa.Connection, table: str, name: str, column: str) -> list[str]:
        # If its default is an expression, the server copies the table, and lets nobody write meanwhile.
        begin, _, expression = column.partition(" DEFAULT (")
        if not expression:
            return super().add_column(connection, table, name, column)
        value = connection.exec_driver_sql(f"SELECT ({expression}").scalar_one()
        first = super().add_column(connection, table, name, f"{begin} DEFAULT '{value}'")
        return [*first, f"ALTER TABLE {table} ALTER COLUMN {name} SET DEFAULT ({expression};"]

    @contextmanager
    def limited(self, connection: sa.Connection) -> Iterator[None]:
        # The default is a year on MySQL and a day on MariaDB.
        before = connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout").scalar_one()
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT}").close()
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {before}").close()


class MariaDBTableRules(MySQLTableRules):
    unused_of = _about("DISTINCT index_name", "statistics", "AND ignored = 'YES'")
    # Its JSON_TABLE has no ENUM; a text would not find a row through the index.
    inexact_types = (*MySQLTableRules.inexact_types, sa.Enum)
    # Metadata locks are shown by a plugin that few servers have. A transaction that has a lock is not sure either.
    holder_of = sa.text(
        "SELECT concat('perhaps session ', id, ' (', user, '@', host, ')') FROM information_schema.innodb_trx "
        "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
        "WHERE id <> connection_id() ORDER BY trx_started LIMIT 1"
    )

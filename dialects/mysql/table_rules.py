"""Which tables of MySQL can be claimed from: those of an engine with row locks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs.dialects.table_rules import LOCK_TIMEOUT, Place, TableRules

PREPARER: Final = mysql.dialect(paramstyle="named").identifier_preparer

_KIND: Final = sa.text(
    "SELECT table_type, tables.engine, coalesce(transactions, 'NO') = 'YES' "
    # MariaDB's FEDERATED reports YES, but locks nothing on the server that stores the rows.
    "AND tables.engine <> 'FEDERATED' FROM information_schema.tables "
    "LEFT JOIN information_schema.engines ON engines.engine = tables.engine "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND table_type <> 'TEMPORARY'"
)
# A server may compare names without regard to case: the one that is spelled so comes first.
_PLACE: Final = sa.text(
    "SELECT table_schema, table_name, table_schema = database() FROM information_schema.tables "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name "
    "ORDER BY CAST(table_name AS BINARY) = CAST(:name AS BINARY) DESC LIMIT 1"
)
_PARTITIONS: Final = sa.text(
    "SELECT DISTINCT partition_expression, subpartition_expression FROM information_schema.partitions "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
)
_ARGUMENTS: Final = sa.text(
    "SELECT column_name AS name, column_type AS type, data_type AS kind FROM information_schema.columns "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND column_type LIKE '%(%' "
    "ORDER BY ordinal_position"
)
_COMMENT: Final = sa.text(
    "SELECT table_comment FROM information_schema.tables "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
)
_COLLATIONS: Final = sa.text(
    "SELECT column_name AS name, collation_name AS collation FROM information_schema.columns "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND collation_name IS NOT NULL"
)

_ON_UPDATE: Final = sa.text(
    "SELECT column_name AS name, extra FROM information_schema.columns "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND extra LIKE '%on update%'"
)
_CLOCK: Final = re.compile(r"(?i)\b(?:now|local|cur)(?:rent)?(?:_?timestamp|_?date|_?time)?\b")
"""A function in a default that tells the time of the session's zone."""
_NAMED_WITH: Final = sa.text(
    "SELECT table_name FROM information_schema.tables WHERE table_schema = database() "
    "AND table_type = 'BASE TABLE' AND locate(:words, table_comment) > 0 ORDER BY table_name"
)
_HOLDER: Final = sa.text(
    "SELECT processlist_id AS id, processlist_user AS user, processlist_host AS host "
    "FROM performance_schema.metadata_locks JOIN performance_schema.threads ON thread_id = owner_thread_id "
    "WHERE object_type = 'TABLE' AND object_schema = coalesce(:schema, database()) AND object_name = :name "
    "AND lock_status = 'GRANTED' AND processlist_id <> connection_id() LIMIT 1"
)
_OLDEST: Final = sa.text(
    "SELECT id, user, host FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE id <> connection_id() ORDER BY trx_started LIMIT 1"
)


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
    inexact_types = (*TableRules.inexact_types, sa.Time, mysql.SET, mysql.BIT)

    longest = 64
    counted_in = "characters"

    def length(self, name: str) -> int:
        return len(name)

    def unnameable(self, name: str) -> str | None:
        # The server replaces a character beyond U+FFFF by a question mark.
        if strange := [character for character in name if character > "\uffff"]:
            return f"no name can have the character {strange[0]!r}"
        return super().unnameable(name)

    def comment(self, inspector: sa.Inspector, table: sa.Table) -> str | None:
        # SHOW CREATE TABLE, which SQLAlchemy reads, leaves it out in the modes NO_TABLE_OPTIONS, ANSI, ORACLE and more.
        # Without rows the inspector says which table is missing.
        connection: Any = inspector.bind
        found: str | None = connection.scalar(_COMMENT, {"schema": table.schema, "name": table.name})
        return super().comment(inspector, table) if found is None else found

    def changed_by_each_update(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
        found = connection.execute(_ON_UPDATE, {"schema": table.schema, "name": table.name})
        return {row[0]: row[1].upper() for row in found}

    def depends_on_zone(self, column: Any) -> bool:
        # A TIMESTAMP is converted by the session's zone, both ways; a default is the time of that zone.
        return isinstance(column["type"], sa.TIMESTAMP) or _CLOCK.search(column.get("default") or "") is not None

    def place(self, connection: sa.Connection, table: sa.Table) -> Place:
        found = connection.execute(_PLACE, {"schema": table.schema, "name": table.name})
        schema, name, is_default = found.one()
        return Place(schema, name, bool(is_default))

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        found = connection.execute(_KIND, {"schema": table.schema, "name": table.name}).first()
        if found is None:
            return "is a temporary table, which every session has for itself", "make a table that is not temporary"
        if odd := [column.name for column in table.columns if "`" in column.name]:
            return f"has a column {odd[0]!r}, a backtick in whose name SQLAlchemy reads as two", "rename the column"
        kind, engine, locks = found
        if kind == "VIEW":
            return "is a view, whose rows have no key to lock them by", "name the table that it reads"
        if locks:
            return None
        alter = f"ALTER TABLE {PREPARER.format_table(table)} ENGINE=InnoDB"
        return f"is stored by {engine}, an engine without transactions and row locks", alter

    def unreadable_column(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        # SQLAlchemy reads an unknown type, but not its arguments.
        found = connection.execute(_ARGUMENTS, {"schema": table.schema, "name": table.name})
        known: Any = connection.dialect
        return next(((row[0], row[1]) for row in found if row[2] not in known.ischema_names), None)

    unused: ClassVar[str] = "is_visible = 'NO'"

    def unused_indexes(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        # FORCE INDEX with an invisible one is error 1176.
        found = sa.text(
            "SELECT DISTINCT index_name FROM information_schema.statistics "  # noqa: S608
            f"WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND {self.unused}"
        )
        return connection.scalars(found, {"schema": table.schema, "name": table.name}).all()

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        parts = connection.execute(_PARTITIONS, {"schema": table.schema, "name": table.name}).all()
        expressions = [expression for row in parts for expression in row if expression]
        return [column.name for column in table.columns if any(_mentions(one, column.name) for one in expressions)]

    def collations(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
        # If no collation is named, the columns of a JSON_TABLE have the connection's: comparing them is error 1267.
        found = connection.execute(_COLLATIONS, {"schema": table.schema, "name": table.name})
        return {row[0]: row[1] for row in found}

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

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        found = connection.execute(_HOLDER, {"schema": table.schema, "name": table.name}).first()
        return None if found is None else f"session {found.id} ({found.user}@{found.host})"

    def named_with(self, connection: sa.Connection, words: str) -> Sequence[str]:
        return connection.scalars(_NAMED_WITH, {"words": words}).all()


class MariaDBTableRules(MySQLTableRules):
    unused = "ignored = 'YES'"
    # Its JSON_TABLE has no ENUM; a text would not find a row through the index.
    inexact_types = (*MySQLTableRules.inexact_types, sa.Enum)

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        # Metadata locks are shown by a plugin that few servers have. A transaction that has a lock is not sure either.
        found = connection.execute(_OLDEST).first()
        return None if found is None else f"perhaps session {found.id} ({found.user}@{found.host})"


def _mentions(expression: str, column: str) -> bool:
    """Whether an expression, as the server writes it, names a column, with or without backticks."""
    return (
        PREPARER.quote_identifier(column) in expression
        or re.search(rf"\b{re.escape(column)}\b", expression) is not None
    )

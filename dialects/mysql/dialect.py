"""The statements of MySQL: what differs from the portable base, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs.dialects.base import Dialect, Write
from claimjobs.dialects.lexis import STANDARD_QUOTES, Lexis
from claimjobs.dialects.mysql.encoding import MySQLEncoding
from claimjobs.dialects.mysql.errors import MySQLErrors
from claimjobs.dialects.mysql.inspection import MySQLInspection
from claimjobs.dialects.mysql.key_locks import MySQLKeyLocks
from claimjobs.dialects.mysql.keys import (
    StraightDelete,
    force,
    joined,
    json_keys,
    json_rows,
    keys_table,
    listed,
    straight,
)
from claimjobs.dialects.mysql.sessions import MySQLSessions
from claimjobs.dialects.mysql.table_rules import MySQLTableRules
from claimjobs.dialects.mysql.waking import MySQLWaking


class MySQL(Dialect):
    errors = MySQLErrors()
    sessions = MySQLSessions()
    key_locks = MySQLKeyLocks()
    table_rules = MySQLTableRules()
    encoding = MySQLEncoding()
    waking = MySQLWaking()
    inspection = MySQLInspection()

    title = "MySQL"
    drivers = ("pymysql", "mysqldb")
    # SKIP LOCKED came with 8.0.1, expression defaults with 8.0.13.
    oldest: ClassVar[tuple[int, ...]] = (8, 0, 13)

    finds_and_locks_at_once = True
    # PyMySQL's executemany also sends one statement, but formats each row by itself, which takes half as long again in
    # the client. This limit is below every max_allowed_packet in use.
    joins_rows = 1_000_000
    needs_database = True
    # InnoDB's secondary indexes refer to a row by its primary key.
    indexes_end_in_the_key = True
    primary = "PRIMARY"
    wakes = True
    # KILL QUERY in a trigger is allowed, and ends the sleep. But a trigger runs before the commit, once for each row.
    no_wake_trigger = "its triggers run before the commit, once for each row: who is woken then finds no job"
    interrupts = True
    reads_that_lock = frozenset({"SERIALIZABLE"})

    # `skips_duplicates` is false: INSERT IGNORE and ON DUPLICATE KEY UPDATE name no key. They would take any other
    # error of the row, or another unique key, for the duplicate.

    # A backslash escapes a quote unless sql_mode contains NO_BACKSLASH_ESCAPES: a text must be whole either way. `#`
    # begins a comment, `--` only before a space, comments do not nest, and one that begins with `!` is executed.
    lexis = Lexis(
        quoted=r"""'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+"|`(?:[^`]|``)*+`""",
        opening="['\"`]",
        comment=r"(?:\#|--(?=[\x00-\x20\x7f]))[^\n]*+(?P<end>\n)?",
        nests_comments=False,
        runs_comments=True,
        quoted_without_escapes=rf"{STANDARD_QUOTES}|`(?:[^`]|``)*+`",
    )

    # --- conditions --------------------------------------------------------------------------------------

    def among_some(self, key: Sequence[sa.ColumnElement[Any]], parameter: str) -> sa.ColumnElement[bool]:
        """PyMySQL writes a list of values into the statement. SQLAlchemy makes a parameter of each, which is a tenth
        of a client's work for a job.
        """
        return listed(key, parameter) if self._driver == "pymysql" else self.among(key, parameter)

    def later(self, now: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        # In microseconds: INTERVAL n SECOND would round a fraction given as a parameter.
        return sa.func.timestampadd(sa.text("MICROSECOND"), seconds * 1_000_000, now)

    # --- keys as JSON ------------------------------------------------------------------------------------

    def json_of_keys(self, key: Sequence[sa.Column[Any]], parameter: str) -> sa.ColumnElement[Any]:
        return json_keys(key, parameter)

    def keys_in_json(
        self, document: sa.Column[Any], key: Sequence[sa.Column[Any]]
    ) -> tuple[sa.FromClause, Sequence[sa.ColumnElement[Any]]]:
        return json_rows(document, key, "claimjobs_listed")

    # --- finding and locking rows ------------------------------------------------------------------------

    def only_candidates(
        self,
        jobs: sa.Select[Any],
        key: Sequence[sa.Column[Any]],
        order: Sequence[sa.ColumnElement[Any]],
        index: str | None,
    ) -> sa.Select[Any]:
        """Read the candidates as a table, in their order, and find each row by its primary key.

        InnoDB locks a row when it reads it, before a sort: `IN (800 keys) ORDER BY ... LIMIT 100 FOR UPDATE` locks 800
        rows. Joined in the order of the candidates, the LIMIT ends the reading, and 100 rows are locked
        (tests/conformance/test_locks.py counts them in performance_schema.data_locks).

        The index is forced, because a table that seems small is otherwise read whole, in its own order.
        """
        del order  # the candidates are in this order
        return joined(jobs, key, "claimjobs_candidates", index)

    def lock_in_order(self, wanted: sa.Select[Any], join: sa.Join, limit: Any, index: str | None) -> sa.Select[Any]:
        """As `only_candidates`, but the candidates do not leave the server.

        FOR UPDATE OF locks the table that it names; a subquery is a plain read. Because of its window function the
        subquery is stored, and read in the order in which it was stored.
        """
        found = straight(wanted, join, index)
        return found.limit(limit).with_for_update(skip_locked=True, of=join.right)

    def restrict_to_keys(self, statement: Write, key: Sequence[sa.Column[Any]], index: str | None) -> Write:
        """Read the keys as a table, and find each row by the index.

        For `WHERE id IN (...)` the planner may choose another index and lock the rows that it reads there. Even with a
        forced index it may read all of a small table, and wait for rows that others have locked (both were seen;
        tests/conformance/test_locks.py). An UPDATE at READ COMMITTED has only the first problem: it does not wait for a
        row before it knows that it wants it. But in a join it locks the rows that its subqueries read.
        """
        if isinstance(statement, sa.Select):
            return joined(statement, key, "claimjobs_keys", index)
        if isinstance(statement, sa.Update):
            return self.by_key(statement.where(self.among_some(key, "claimjobs_keys")), index)
        given, matches = keys_table(key, "claimjobs_keys")
        return statement.where(matches).with_hint(force(index), selectable=given, dialect_name="*")

    def by_key(self, statement: Write, index: str | None) -> Write:
        # InnoDB would lock other consumers' rows that it reads through another index.
        if isinstance(statement, sa.Select):
            return statement.with_hint(statement.get_final_froms()[0], force(index))
        return statement.with_hint(force(index), dialect_name="*")

    def through(self, rows: sa.Select[Any], column: sa.Column[Any], index: str | None) -> sa.Select[Any]:
        # MariaDB sorts by a column that is NULL in all rows, and locks the rows that it sorts.
        return rows.with_hint(column.table, force(index))

    # --- writing -----------------------------------------------------------------------------------------

    def delete(self, table: sa.Table) -> sa.Delete:
        return StraightDelete(table)

    def upsert(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        rows: sa.Select[Any],
        *,
        values: Mapping[sa.Column[Any], Any],
        guard: sa.ColumnElement[bool],
    ) -> sa.Executable:
        """ON DUPLICATE KEY UPDATE has no WHERE: a row that does not meet the guard is written as it was.

        INSERT IGNORE would hide other errors too. At READ COMMITTED the rows that it reads are not locked.
        """
        key = next(iter(table.primary_key))
        written: list[tuple[str, Any]] = [
            (column.name, sa.func.if_(guard, value, column)) for column, value in values.items()
        ]
        insert = mysql.insert(table).from_select([column.name for column in columns], rows)
        return insert.on_duplicate_key_update(written or [(key.name, key)])

    def key_column(self, name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
        # Every update sets the first TIMESTAMP of a table anew, unless it has a default.
        default = sa.text("'2000-01-01'") if isinstance(type_, sa.TIMESTAMP) else None
        return sa.Column(name, type_, primary_key=True, autoincrement=False, server_default=default)

"""What MySQL and MariaDB say of themselves to a DBA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import Inspection, Plan, TableRead

Row = dict[str, Any]
_COLUMNS: Final = ("table", "type", "key", "rows", "Extra")


class MySQLInspection(Inspection):
    # The table of a plan is the only form that all versions of MySQL and MariaDB write alike: FORMAT=JSON has other
    # keys in each, and MySQL 9 chooses between two versions of it by a variable. A session's default may be TREE.
    explain = "EXPLAIN FORMAT=TRADITIONAL"

    def limit_time(self, connection: sa.Connection, seconds: float) -> None:
        # It counts for SELECT and EXPLAIN; what locks is limited by the wait for a lock.
        connection.exec_driver_sql(
            f"SET SESSION max_execution_time = {max(1, round(seconds * 1000))}, "
            f"innodb_lock_wait_timeout = {max(1, round(seconds))}"
        ).close()

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        found = connection.exec_driver_sql(f"{self.explain} {sql}", parameters).mappings()
        rows: list[Row] = [dict(row) for row in found]
        real = [row for row in rows if _is_real(row)]
        return Plan(tuple(map(_read, real)), any("filesort" in (row["Extra"] or "") for row in real), _table(rows))


class MariaDBInspection(MySQLInspection):
    # It knows no name for the format that it has by default.
    explain = "EXPLAIN"

    def limit_time(self, connection: sa.Connection, seconds: float) -> None:
        connection.exec_driver_sql(
            f"SET SESSION max_statement_time = {seconds}, innodb_lock_wait_timeout = {max(1, round(seconds))}"
        ).close()


def _is_real(row: Row) -> bool:
    """Whether a row of a plan is about a table: not about a subquery's result, and not about a JSON_TABLE."""
    table = row["table"]
    return bool(table) and not table.startswith("<") and "Table function" not in (row["Extra"] or "")


def _read(row: Row) -> TableRead:
    # "index" reads a whole index in its order: a LIMIT ends that, unless the rows must be sorted.
    extra = row["Extra"] or ""
    is_scan = row["type"] == "ALL" or (row["type"] == "index" and "filesort" in extra)
    rows = row["rows"]
    return TableRead(row["table"], row["key"], is_scan, None if rows is None else int(rows))


def _table(rows: Sequence[Row]) -> str:
    cells = [_COLUMNS, *(tuple(str(row[column] or "") for column in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)

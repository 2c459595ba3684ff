"""How a database runs a statement, and how many rows it reads for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tests.flavours import Family


@dataclass(frozen=True)
class Plan:
    """How a statement is run: the indexes it goes through, and whether it sorts rows of the table."""

    indexes: tuple[str, ...]
    sorts: bool
    scans: bool
    """Whether it reads a whole table."""
    text: str


def explain(family: Family, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> Plan:
    """How the database would run a statement; it is not run."""
    sql, parameters = _as_sent(connection, statement, values)
    if family == "postgres":
        explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        nodes = list(_nodes(explained.scalar_one()))
        kinds = [node.get("Node Type", "") for node in nodes]
        return Plan(
            indexes=tuple(node["Index Name"] for node in nodes if "Index Name" in node),
            sorts="Sort" in kinds,
            scans="Seq Scan" in kinds,
            text=json.dumps(nodes, indent=1, default=str),
        )
    how = "EXPLAIN FORMAT=TRADITIONAL" if family == "mysql" else "EXPLAIN"
    rows = connection.exec_driver_sql(f"{how} {sql}", parameters).mappings().all()
    real = [row for row in rows if row["table"] not in (None, "candidate")]
    return Plan(
        indexes=tuple(row["key"] or "" for row in real),
        sorts=any("filesort" in (row["Extra"] or "") for row in rows),
        scans=any(row["type"] in ("ALL", "index") and not row["key"] for row in real),
        text="\n".join(str(dict(row)) for row in rows),
    )


def rows_read(family: Family, connection: sa.Connection, statement: Any, values: dict[str, Any]) -> int:
    """How many rows, or entries of an index, the database reads when it runs a statement, which it does."""
    if family == "postgres":
        sql, parameters = _as_sent(connection, statement, values)
        explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters)
        scans = [node for node in _nodes(explained.scalar_one()) if "Scan" in node.get("Node Type", "")]
        leaves = [node for node in scans if node["Node Type"] != "Subquery Scan"]  # it hands on what its child reads
        rows = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in leaves]
        return round(sum((count * node["Actual Loops"] for count, node in zip(rows, leaves, strict=True)), 0.0))
    before = _handler_reads(connection)
    connection.execute(statement, values).all()
    return _handler_reads(connection) - before


def _handler_reads(connection: sa.Connection) -> int:
    counts = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
    return sum(int(count) for name, count in counts if name != "Handler_read_rnd_next")  # of a temporary table, too


def _as_sent(connection: sa.Connection, statement: Any, values: dict[str, Any]) -> tuple[str, Any]:
    """The text and the parameters with which the driver would be called; it is not."""

    class Sent(Exception):
        pass

    def catch(_c: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> None:
        raise Sent(sql, parameters)

    sa.event.listen(connection, "before_cursor_execute", catch)
    try:
        connection.execute(statement, values)
    except Sent as sent:
        return sent.args[0], sent.args[1]
    finally:
        sa.event.remove(connection, "before_cursor_execute", catch)
    raise AssertionError("nothing was sent")


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plan, list):
        for part in plan:
            yield from _nodes(part)
    elif isinstance(plan, dict):
        yield plan
        for part in plan.values():
            if isinstance(part, list | dict):
                yield from _nodes(part)

"""What Postgres says of itself to a DBA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.inspection import Inspection, Plan, TableRead

_SORTS: Final = ("Sort", "Incremental Sort")
_SCANS: Final = ("Seq Scan", "Parallel Seq Scan")

Node = dict[str, Any]


class PostgresInspection(Inspection):
    def limit_time(self, connection: sa.Connection, seconds: float) -> None:
        limit = round(seconds * 1000)
        connection.exec_driver_sql(f"SET statement_timeout = {limit}; SET lock_timeout = {limit}").close()

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters).scalar_one()
        top: Node = found[0]["Plan"]
        nodes = list(_all(top))
        reads = tuple(read for node in nodes if (read := _read(node)) is not None)
        return Plan(reads, any(_sorts_a_table(node) for node in nodes), json.dumps(found, indent=1))


def _all(node: Node) -> Iterator[Node]:
    yield node
    for below in node.get("Plans", ()):
        yield from _all(below)


def _input(node: Node) -> Iterator[Node]:
    """The nodes whose rows come through this one. CTEs and subplans of a node are listed below it, too."""
    for below in node.get("Plans", ()):
        if below.get("Parent Relationship") not in ("InitPlan", "SubPlan"):
            yield below
            yield from _input(below)


def _sorts_a_table(node: Node) -> bool:
    # The rows that a claim returns are sorted at its end: these come from a CTE.
    return node["Node Type"] in _SORTS and any("Relation Name" in below for below in _input(node))


def _read(node: Node) -> TableRead | None:
    kind, table, rows = node["Node Type"], node.get("Relation Name"), node.get("Plan Rows")
    if table is None or kind == "ModifyTable":
        return None
    indexes = [below["Index Name"] for below in (node, *_input(node)) if "Index Name" in below]
    return TableRead(table, indexes[0] if indexes else None, kind in _SCANS, rows)

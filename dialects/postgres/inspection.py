"""What Postgres says of its tables, and of itself to a DBA."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from claimjobs.dialects.inspection import LOCK_TIMEOUT, Inspection, Plan, TableRead, TableRules
from claimjobs.dialects.postgres.sessions import CHANNEL, FULL_PART, PREPARER

CHEAP_COST: Final = 200.0
"""A planner reads and sorts some thousand rows at this cost, as of a small partition, whatever indexes there are."""

_INDEXES: Final = (
    "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = to_regclass(:name) "
)
_SCANS: Final = ("Seq Scan", "Parallel Seq Scan")

Node = dict[str, Any]


class PostgresInspection(Inspection):
    limits_transaction = True

    time_limit = "SET LOCAL statement_timeout = {ms}; SET LOCAL lock_timeout = {ms}"
    # A snapshot of a session counts for the tables of its database, a slot's for all. At READ COMMITTED a transaction
    # that has written has none between its statements, but its own number keeps later versions as well.
    snapshots = sa.text(
        "SELECT who, extract(epoch FROM now() - since)::float8 AS seconds FROM ("
        "SELECT 'session ' || pid || ' of ' || usename AS who, coalesce(xact_start, backend_start) AS since "
        "FROM pg_stat_activity WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL AND datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend' "
        "UNION ALL SELECT 'the prepared transaction ' || gid, prepared FROM pg_prepared_xacts "
        "WHERE database = current_database() "
        "UNION ALL SELECT 'the replication slot ' || slot_name, NULL FROM pg_replication_slots "
        "WHERE xmin IS NOT NULL) AS pins ORDER BY since"
    )
    hidden = sa.text(
        "SELECT count(*) || ' sessions of other users are hidden: GRANT pg_read_all_stats to this user' "
        "FROM pg_stat_activity WHERE datname = current_database() AND query = '<insufficient privilege>' "
        "HAVING count(*) > 0"
    )

    def plan(self, connection: sa.Connection, sql: str, parameters: Any) -> Plan:
        found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters).scalar_one()
        top: Node = found[0]["Plan"]
        nodes = list(_all(top))
        reads = []
        for node in nodes:
            kind, table = node["Node Type"], node.get("Relation Name")
            if table is None or kind == "ModifyTable":
                continue
            indexes = [below["Index Name"] for below in (node, *_input(node)) if "Index Name" in below]
            is_scan = kind in _SCANS and node["Total Cost"] > CHEAP_COST
            reads.append(TableRead(table, indexes[0] if indexes else None, is_scan))
        # The rows that a claim returns are sorted at its end: these come from a CTE. An "Incremental Sort" reads an
        # index in its order, and sorts only rows that are equal there.
        sorts = any(
            "Relation Name" in below
            for node in nodes
            if node["Node Type"] == "Sort" and node["Total Cost"] > CHEAP_COST
            for below in _input(node)
        )
        return Plan(tuple(reads), sorts, json.dumps(found, indent=1))

    def row_locks(self, connection: sa.Connection, table: sa.Table) -> int:
        # pg_locks lists no row locks: they are in the rows, and so are the writes of this transaction.
        mine = "IN (SELECT pg_current_xact_id()::xid)"
        rows = f"SELECT count(*) FROM {PREPARER.format_table(table)} WHERE xmax {mine} OR xmin {mine}"  # noqa: S608
        return int(connection.exec_driver_sql(rows).scalar_one())


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


# --- the trigger that wakes idle owners: its NOTIFY waits for the commit -------------------------------------------

# It is a trigger for each statement, not for each row: COPY of 100,000 rows calls it once.
#
# Its function runs with the rights of who made it (SECURITY DEFINER), with a fixed search_path and qualified names: so
# a producer needs no right on the table of owners, and can put no object of its own in the function's way.

TRIGGER: Final = "claimjobs_wake"
"""The name of the trigger, and of its function."""

_BODY: Final = f"""
DECLARE
    wakes integer;
BEGIN
    IF EXISTS (SELECT FROM {{owners}} o WHERE o.asleep IS NOT NULL AND o.claims = TG_ARGV[0])
    THEN
        IF pg_notification_queue_usage() >= {FULL_PART} THEN
            RETURN NULL; -- a full queue would fail this transaction at its commit, whoever's it is
        END IF;
        SELECT (count(*) + 99) / 100 + least(count(*), 1) INTO wakes
        FROM (SELECT FROM claimjobs_inserted LIMIT 10000) counted;
        PERFORM pg_notify('{CHANNEL}' || chosen.id, '')
        FROM (SELECT o.id FROM {{owners}} o WHERE o.asleep IS NOT NULL AND o.claims = TG_ARGV[0]
            ORDER BY random() LIMIT wakes) chosen;
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL; -- a wake that fails must not fail the INSERT: consumers poll
END
"""  # noqa: S608 - constants
"""Wakes one owner more than the rows make batches, as `enqueue` does. If nobody sleeps, it reads a small table."""

_MAKE: Final = f"""
DO $make$
DECLARE
    jobs regclass := '{{table}}';
    place text;
    claimed text;
BEGIN
    SELECT quote_ident(n.nspname), CASE WHEN there.oid = n.oid THEN '' ELSE there.nspname || '.' END || t.relname
        INTO STRICT place, claimed
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
            pg_class t JOIN pg_namespace there ON there.oid = t.relnamespace
        WHERE c.oid = '{{claims}}'::regclass AND t.oid = jobs;
    EXECUTE 'CREATE OR REPLACE FUNCTION ' || place || '.{TRIGGER}() RETURNS trigger LANGUAGE plpgsql '
        'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS '
        || quote_literal(replace($body${_BODY}$body$, '{{owners}}', place || '.{{owner_table}}'));
    EXECUTE 'REVOKE ALL ON FUNCTION ' || place || '.{TRIGGER}() FROM PUBLIC';
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = jobs AND tgname = '{TRIGGER}') THEN
        EXECUTE 'CREATE TRIGGER {TRIGGER} AFTER INSERT ON ' || jobs || ' REFERENCING NEW TABLE AS claimjobs_inserted '
            'FOR EACH STATEMENT EXECUTE FUNCTION ' || place || '.{TRIGGER}(' || quote_literal(claimed) || ')';
    END IF;
END $make$
"""  # noqa: S608 - constants


# --- which tables can be claimed from: no views, no foreign tables, no rules that change a write -----------------

# All partitions of a table count, because another server may store one of them.
_KIND: Final = sa.text(
    "SELECT CASE WHEN EXISTS (SELECT FROM pg_partition_tree(main.oid) AS part JOIN pg_class AS leaf "
    "ON leaf.oid = part.relid WHERE leaf.relkind = 'f') THEN 'f' ELSE relkind END AS kind, relpersistence, "
    "(SELECT min(rulename) FROM pg_rewrite WHERE ev_class = main.oid AND ev_type IN ('2', '4') AND ev_enabled <> 'D') "
    "AS rule FROM pg_class AS main WHERE main.oid = to_regclass(:name)"
)
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table, or has a partition that is one"}


class PostgresTableRules(TableRules):
    # https://www.postgresql.org/docs/current/explicit-locking.html; since Postgres 11 a constant default writes no row.
    locks: ClassVar[Mapping[str, str]] = {
        "ALTER TABLE": "locks the table for a moment (ACCESS EXCLUSIVE), when no transaction uses it; writes no row",
        "CREATE INDEX": "lets nobody write while it runs (SHARE); on a large table: CREATE INDEX CONCURRENTLY, alone",
        "CREATE UNIQUE INDEX": "lets nobody write while it runs (SHARE); on a large table: CONCURRENTLY, alone",
        "CREATE TABLE": "locks no other table",
        "COMMENT": "locks nothing that others need",
    }
    exact_types = (
        *TableRules.exact_types,
        *(postgresql.INET, postgresql.CIDR, postgresql.MACADDR, postgresql.MACADDR8),
        *(postgresql.OID, postgresql.BIT, postgresql.ranges.AbstractRange),
    )
    inexact_types = (*TableRules.inexact_types, postgresql.ranges.AbstractMultiRange)  # its values are lists: no keys

    location_of = sa.text(
        "SELECT nspname, relname, nspname IS NOT DISTINCT FROM current_schema() FROM pg_class JOIN pg_namespace "
        "ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(:name)"
    )
    # Last come those whose locks let CREATE INDEX run. ALTER TABLE waits for all.
    holder_of = sa.text(
        "SELECT format('session %s (%s, %s)', pid, usename, coalesce(nullif(application_name, ''), state, 'hidden')) "
        "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE granted AND relation = to_regclass(:name) "
        "AND datname = current_database() AND pid <> pg_backend_pid() "
        "ORDER BY mode IN ('AccessShareLock', 'RowShareLock', 'ShareLock'), xact_start LIMIT 1"
    )
    # CREATE INDEX CONCURRENTLY that failed leaves one behind.
    unused_of = sa.text(_INDEXES + "AND NOT indisvalid")
    # One that is DEFERRABLE, or not valid, is none for ON CONFLICT.
    inexact_of = sa.text(_INDEXES + "AND NOT (indisvalid AND indimmediate)")
    # An option is 1 for DESC, and 2 for NULLS FIRST. Both are what DESC means in an order.
    unusual_of = sa.text(
        "SELECT relname, attname, coalesce(option = 3, false) AND amname = 'btree' AND indpred IS NULL "
        "FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam "
        "CROSS JOIN unnest(indkey, indoption) AS part (number, option) "
        "JOIN pg_attribute ON attrelid = indrelid AND attnum = number WHERE indrelid = to_regclass(:name) "
        "AND (option <> 0 OR amname <> 'btree' OR indpred IS NOT NULL)"
    )
    child_of = sa.text(
        "SELECT min(inhrelid::regclass::text) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
        "WHERE inhparent = to_regclass(:name) AND relkind <> 'p'"
    )
    partitioned_by = sa.text(
        "SELECT attname FROM pg_partitioned_table JOIN pg_attribute ON attrelid = partrelid "
        "AND attnum = ANY(partattrs) WHERE partrelid = to_regclass(:name)"
    )
    named_with_words = sa.text(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') "
        "AND strpos(obj_description(oid, 'pg_class'), :words) > 0 ORDER BY relname"
    )

    def named(self, table: sa.Table) -> dict[str, Any]:
        return {"name": PREPARER.format_table(table)}

    def depends_on_zone(self, column: Any) -> bool:
        # An instant is written into it, and compared with it, as the time of the session's zone.
        return isinstance(column["type"], sa.DateTime) and not column["type"].timezone

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        [found] = self._asked(connection, _KIND, table)
        if found.relpersistence == "t":
            return "is a temporary table, which every session has for itself", "make a table that is not temporary"
        if found.kind in _KINDS:
            return f"is {_KINDS[found.kind]}, whose rows cannot be locked", "name the table that it reads"
        if found.rule is None:
            return None
        # A rule rewrites our statements, so that one may write other rows or none, or return nothing.
        step = f"DROP RULE {PREPARER.quote(found.rule)} ON {PREPARER.format_table(table)}"
        return (
            f"has the rule {found.rule!r}, which changes what an UPDATE or a DELETE of a claim does",
            f"{step}, and let a trigger do its work",
        )

    @contextmanager
    def limited(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'").close()
        yield

    def make_trigger(self, table: str, claims: str, owners: str) -> str:
        statement = _MAKE.replace("{owner_table}", owners)
        for name, value in {"{table}": table, "{claims}": claims}.items():
            statement = statement.replace(name, value.replace("'", "''"))
        return statement.strip()

    def drop_trigger(self, table: str) -> str:
        return f"DROP TRIGGER IF EXISTS {TRIGGER} ON {table}"

    def has_trigger(self, table: str) -> sa.ColumnElement[bool]:
        triggers = sa.table("pg_trigger", *map(sa.column, ("tgrelid", "tgname", "tgenabled")))
        ours = triggers.c.tgrelid == sa.func.to_regclass(sa.literal(str(table), sa.String))
        return sa.exists().where(ours, triggers.c.tgname == TRIGGER, triggers.c.tgenabled != "D")

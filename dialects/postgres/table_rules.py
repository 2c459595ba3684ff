"""Which tables of Postgres can be claimed from: no views, no foreign tables, no rules that change a write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from claimjobs.dialects.postgres.sessions import PREPARER
from claimjobs.dialects.table_rules import LOCK_TIMEOUT, TableRules

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

    place_of = sa.text(
        "SELECT nspname, relname, nspname IS NOT DISTINCT FROM current_schema() FROM pg_class JOIN pg_namespace "
        "ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(:name)"
    )
    holder_of = sa.text(
        "SELECT format('session %s (%s, %s)', pid, usename, coalesce(nullif(application_name, ''), state, 'hidden')) "
        "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE granted AND relation = to_regclass(:name) "
        "AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
    )
    # CREATE INDEX CONCURRENTLY that failed leaves one behind.
    unused_of = sa.text(
        "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indrelid = to_regclass(:name) AND NOT indisvalid"
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

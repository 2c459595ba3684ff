"""Which tables of Postgres can be claimed from: no views, no foreign tables, no rules that change a write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from claimjobs.dialects.postgres.sessions import PREPARER
from claimjobs.dialects.table_rules import LOCK_TIMEOUT, Place, TableRules

# All partitions of a table count, because another server may store one of them.
_KIND: Final = sa.text(
    "SELECT CASE WHEN EXISTS (SELECT FROM pg_partition_tree(main.oid) AS part JOIN pg_class AS leaf "
    "ON leaf.oid = part.relid WHERE leaf.relkind = 'f') THEN 'f' ELSE relkind END AS kind, relpersistence, "
    "(SELECT min(rulename) FROM pg_rewrite WHERE ev_class = main.oid AND ev_type IN ('2', '4') AND ev_enabled <> 'D') "
    "AS rule FROM pg_class AS main WHERE main.oid = to_regclass(:name)"
)
_PLACE: Final = sa.text(
    "SELECT nspname, relname, nspname IS NOT DISTINCT FROM current_schema() FROM pg_class JOIN pg_namespace "
    "ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(:name)"
)
_CHILD: Final = sa.text(
    "SELECT min(inhrelid::regclass::text) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
    "WHERE inhparent = to_regclass(:name) AND relkind <> 'p'"
)
_INVALID: Final = sa.text(
    "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
    "WHERE indrelid = to_regclass(:name) AND NOT indisvalid"
)
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table, or has a partition that is one"}
_PARTITIONED_BY: Final = sa.text(
    "SELECT attname FROM pg_partitioned_table JOIN pg_attribute ON attrelid = partrelid AND attnum = ANY(partattrs) "
    "WHERE partrelid = to_regclass(:name)"
)
_NAMED_WITH: Final = sa.text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') "
    "AND strpos(obj_description(oid, 'pg_class'), :words) > 0 ORDER BY relname"
)
_HOLDER: Final = sa.text(
    "SELECT pid, usename, coalesce(nullif(application_name, ''), state, 'hidden') AS doing "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE granted AND relation = to_regclass(:name) "
    "AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
)


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

    def finds_again(self, type_: sa.types.TypeEngine[Any]) -> bool:
        return super().finds_again(type_.data_type if isinstance(type_, postgresql.DOMAIN) else type_)

    def depends_on_zone(self, column: Any) -> bool:
        # An instant is written into it, and compared with it, as the time of the session's zone.
        return isinstance(column["type"], sa.DateTime) and not column["type"].timezone

    def place(self, connection: sa.Connection, table: sa.Table) -> Place:
        schema, name, is_default = connection.execute(_PLACE, {"name": PREPARER.format_table(table)}).one()
        return Place(schema, name, is_default)

    def unclaimable(self, connection: sa.Connection, table: sa.Table) -> tuple[str, str] | None:
        name = PREPARER.format_table(table)
        found = connection.execute(_KIND, {"name": name}).one()
        if found.relpersistence == "t":
            return "is a temporary table, which every session has for itself", "make a table that is not temporary"
        if found.kind not in _KINDS:
            return None if found.rule is None else _refused_for_rule(found.rule, name)
        return f"is {_KINDS[found.kind]}, whose rows cannot be locked", "name the table that it reads"

    def unused_indexes(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        # CREATE INDEX CONCURRENTLY that failed leaves one behind.
        return connection.scalars(_INVALID, {"name": PREPARER.format_table(table)}).all()

    def child(self, connection: sa.Connection, table: sa.Table) -> str | None:
        found: str | None = connection.scalar(_CHILD, {"name": PREPARER.format_table(table)})
        return found

    def partition_columns(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        return connection.scalars(_PARTITIONED_BY, {"name": PREPARER.format_table(table)}).all()

    @contextmanager
    def limited(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'").close()
        yield

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        found = connection.execute(_HOLDER, {"name": PREPARER.format_table(table)}).first()
        return None if found is None else f"session {found.pid} ({found.usename}, {found.doing})"

    def named_with(self, connection: sa.Connection, words: str) -> Sequence[str]:
        return connection.scalars(_NAMED_WITH, {"words": words}).all()


def _refused_for_rule(rule: str, table: str) -> tuple[str, str]:
    """A rule rewrites our statements, so that one may write other rows or none, or return nothing."""
    step = f"DROP RULE {PREPARER.quote(rule)} ON {table}, and let a trigger do its work"
    return f"has the rule {rule!r}, which changes what an UPDATE or a DELETE of a claim does", step

"""Altering tables of Postgres: an ADD COLUMN with a default changes metadata; indexes are built concurrently."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect as SQLAlchemyDialect

from claimjobs.dialects.online_ddl import LOCK_TIMEOUT, Change, OnlineDDL, create_index
from claimjobs.dialects.postgres.names import PREPARER

_NAMED_WITH: Final = sa.text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') "
    "AND strpos(obj_description(oid, 'pg_class'), :words) > 0 ORDER BY relname"
)
_INVALID: Final = sa.text(
    "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
    "WHERE indrelid = to_regclass(:name) AND NOT indisvalid"
)
_HOLDER: Final = sa.text(
    "SELECT pid, usename, coalesce(nullif(application_name, ''), state, 'hidden') AS doing "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE granted AND relation = to_regclass(:name) "
    "AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
)
_SHARED: Final = "SHARE UPDATE EXCLUSIVE: reads and writes go on, other DDL and VACUUM wait"
_WRITES: Final = "SHARE: reads go on, writes wait"
_TWICE: Final = "reads the table twice; waits for transactions that began before"


class PostgresOnlineDDL(OnlineDDL):
    def alter(self, statement: str, *, computes: bool = False) -> Change:
        # An expression is computed once for all rows, unless it is volatile; now() is not.
        del computes
        return Change(statement, "ACCESS EXCLUSIVE: reads and writes wait")

    def comment(self, statement: str) -> Change:
        return Change(statement, _SHARED)

    def lock_timeout(self, change: Change) -> str:
        # A concurrent build waits for open transactions. A limit for that would leave an invalid index each time.
        return f"SET lock_timeout = '{0 if change.waits else LOCK_TIMEOUT}s'"

    @contextmanager
    def limited(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'").close()
        yield

    def lock_holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        found = connection.execute(_HOLDER, {"name": PREPARER.format_table(table)}).first()
        return None if found is None else f"session {found.pid} ({found.usename}, {found.doing})"

    def named_with(self, connection: sa.Connection, words: str) -> Sequence[str]:
        return connection.scalars(_NAMED_WITH, {"words": words}).all()

    def invalid_indexes(self, connection: sa.Connection, table: sa.Table) -> Collection[str]:
        return connection.scalars(_INVALID, {"name": PREPARER.format_table(table)}).all()

    def index_changes(
        self, wanted: sa.Index, fits: Collection[str], there: Collection[str], *, dialect: SQLAlchemyDialect
    ) -> list[Change]:
        """Postgres cannot replace an index in one statement: the new one is built under another name."""
        name, new = str(wanted.name), _new_name(str(wanted.name))
        how, locks, waits = ("", _WRITES, False) if _is_partitioned(wanted) else ("CONCURRENTLY ", _SHARED, True)
        if set(fits) - {new}:
            return [self._drop(new, wanted)] if new in there else []
        changes = [self._drop(new, wanted)] if new in there and new not in fits else []
        if new not in fits:
            build = create_index(wanted, new, dialect, how)
            changes.append(Change(build, locks, _TWICE if waits else "reads the table once", waits=waits))
        if name in there:
            changes.append(self._drop(name, wanted))
        rename = f"ALTER INDEX {_qualified(new, wanted)} RENAME TO {PREPARER.quote(name)}"
        return [*changes, Change(rename, _SHARED)]

    def _drop(self, name: str, wanted: sa.Index) -> Change:
        if _is_partitioned(wanted):
            return Change(f"DROP INDEX {_qualified(name, wanted)}", "ACCESS EXCLUSIVE: reads and writes wait")
        work = "metadata only; waits for every transaction that uses the index"
        return Change(f"DROP INDEX CONCURRENTLY {_qualified(name, wanted)}", _SHARED, work, waits=True)


def _is_partitioned(index: sa.Index) -> bool:
    """Whether the index is that of a partitioned table, of which Postgres builds none concurrently."""
    return index.table is not None and bool(index.table.dialect_options["postgresql"]["partition_by"])


def _new_name(name: str) -> str:
    """The name of an index while it is built. The server cuts a name after 63 bytes."""
    return f"{name.encode()[:59].decode(errors='ignore')}_new"


def _qualified(name: str, index: sa.Index) -> str:
    schema = None if index.table is None else index.table.schema
    return PREPARER.quote(name) if schema is None else f"{PREPARER.quote_schema(schema)}.{PREPARER.quote(name)}"

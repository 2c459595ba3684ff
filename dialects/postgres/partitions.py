"""Partitions of Postgres: tables of their own, `jobs_p20261123`, and `jobs_default` for all other times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from claimjobs.dialects.partitions import Partitions, Period
from claimjobs.dialects.postgres.names import PREPARER

_NAMES: Final = sa.text(
    "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid "
    "WHERE inhparent = to_regclass(:name) ORDER BY relname"
)


class PostgresPartitions(Partitions):
    rest = "default"
    # A new partition is refused if the default one has a row of its time.
    moves_rows = False
    needs = "the owner of the table"

    def names(self, connection: sa.Connection, table: sa.Table) -> Sequence[str]:
        found = connection.scalars(_NAMES, {"name": PREPARER.format_table(table)})
        return [name.removeprefix(f"{table.name}_") for name in found if name.startswith(f"{table.name}_")]

    def shown(self, table: sa.Table, name: str) -> str:
        return f"{table.name}_{name}"

    def part(self, table: sa.Table, name: str) -> sa.TableClause:
        return sa.table(f"{table.name}_{name}", schema=table.schema)

    def additions(self, table: sa.Table, periods: Sequence[Period], *, has_rest: bool) -> Sequence[str]:
        bounds = {
            period.name: f"FOR VALUES FROM ('{period.first} 00:00:00+00') TO ('{period.end} 00:00:00+00')"
            for period in periods
        }
        if not has_rest:
            bounds[self.rest] = "DEFAULT"
        whole = PREPARER.format_table(table)
        return [f"CREATE TABLE {self._named(table, name)} PARTITION OF {whole} {bounds[name]}" for name in bounds]

    def removal(self, table: sa.Table, name: str) -> str:
        # DETACH ... CONCURRENTLY would lock less, but is refused for a table with a default partition.
        return f"DROP TABLE {self._named(table, name)}"

    @contextmanager
    def locked(
        self, connection: sa.Connection, table: sa.Table, seconds: int, name: str | None = None
    ) -> Iterator[None]:
        # Statements lock the whole table before its partitions, and so must this, or it would end in a deadlock. ONLY:
        # the other partitions are left to autovacuum.
        names = [PREPARER.format_table(table), *([] if name is None else [self._named(table, name)])]
        with connection.begin():
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{seconds}s'").close()
            for locked in names:
                statement = f"LOCK TABLE ONLY {locked} IN ACCESS EXCLUSIVE MODE"
                connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()
            yield

    def _named(self, table: sa.Table, name: str) -> str:
        return PREPARER.format_table(sa.Table(f"{table.name}_{name}", sa.MetaData(schema=table.schema)))

"""Partitions of MySQL and MariaDB: parts of one table, `p20261123`, and `pmax` for all later times.

A row from before the first partition is in the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from claimjobs.dialects.mysql.keys import PREPARER
from claimjobs.dialects.partitions import Partitions, Period
from claimjobs.dialects.types import LAST_PARTITION

_NAMES: Final = sa.text(
    "SELECT partition_name FROM information_schema.partitions WHERE table_schema = coalesce(:schema, database()) "
    "AND table_name = :name AND partition_name IS NOT NULL ORDER BY partition_ordinal_position"
)


class MySQLPartitions(Partitions):
    rest = LAST_PARTITION
    # A partition can only be added after the last one, and that has no end: so the last one is divided.
    moves_rows = True
    needs = "ALTER and DROP on the table, LOCK TABLES on its database"

    def names(self, connection: sa.Connection, table: sa.Table) -> Sequence[str]:
        return connection.scalars(_NAMES, {"schema": table.schema, "name": table.name}).all()

    def shown(self, table: sa.Table, name: str) -> str:
        return name

    def part(self, table: sa.Table, name: str) -> sa.TableClause:
        # Without an alias: LOCK TABLES locks a table under the name by which a statement uses it.
        selected = f"{PREPARER.quote(table.name)} PARTITION ({PREPARER.quote(name)})"
        return sa.table(quoted_name(selected, quote=False), schema=table.schema)

    def additions(self, table: sa.Table, periods: Sequence[Period], *, has_rest: bool) -> Sequence[str]:
        made = [f"PARTITION {period.name} VALUES LESS THAN ('{period.end} 00:00:00')" for period in periods]
        made.append(f"PARTITION {self.rest} VALUES LESS THAN (MAXVALUE)")
        how = f"REORGANIZE PARTITION {self.rest} INTO" if has_rest else "ADD PARTITION"
        return [f"ALTER TABLE {PREPARER.format_table(table)} {how} ({', '.join(made)})"]

    def removal(self, table: sa.Table, name: str) -> str:
        return f"ALTER TABLE {PREPARER.format_table(table)} DROP PARTITION {PREPARER.quote(name)}"

    @contextmanager
    def locked(
        self, connection: sa.Connection, table: sa.Table, seconds: int, name: str | None = None
    ) -> Iterator[None]:
        # LOCK TABLES first commits, so the next read sees what is committed under the lock. An ALTER TABLE would end a
        # transaction, and keeps this lock.
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {seconds}").close()
        connection.exec_driver_sql(
            f"LOCK TABLES {PREPARER.format_table(table)} WRITE", execution_options={"no_parameters": True}
        ).close()
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql("UNLOCK TABLES").close()

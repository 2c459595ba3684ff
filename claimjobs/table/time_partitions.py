"""The partitions by time of a table that claimjobs made: which it has, and those of the coming time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.dialects import Dialect
from claimjobs.dialects.online_ddl import LOCK_TIMEOUT
from claimjobs.dialects.partitions import UNITS, Period, Unit, coming, period_named
from claimjobs.dialects.types import Instant, database_now
from claimjobs.errors import PartitionsNotMade, UnfitTable
from claimjobs.table.definitions import CREATED, MADE_BY, PARTITIONS

MOST_MOVED: Final = 100_000
"""New partitions are not made if more rows than this are in the partition for all other times: on MySQL they would be
moved, on Postgres be read, while everybody else waits."""

_UNIT: Final = re.compile(rf"{MADE_BY}.*, {PARTITIONS} ({'|'.join(UNITS)})")


def unit_of(comment: str | None) -> Unit | None:
    """The time of a partition, from the comment of a table that claimjobs made; None: it has no partitions by time."""
    found = _UNIT.search(comment or "")
    return None if found is None else cast("Unit", found[1])


def unit_in_database(connection: sa.Connection, table: sa.Table) -> Unit | None:
    """The time of a partition of this table in the database; None: it has no partitions by time of ours."""
    return unit_of(sa.inspect(connection).get_table_comment(table.name, schema=table.schema)["text"])


def check_unit(connection: sa.Connection, table: sa.Table) -> None:
    """Check that an existing table has the partitions by time that its description says. Raises UnfitTable."""
    wanted = unit_of(table.comment)
    found = None if wanted is None else unit_in_database(connection, table)
    if wanted == found:
        return
    has = "no partitions by time" if found is None else f"a partition for each {found}"
    raise UnfitTable(
        f"table {table.fullname!r} exists with {has}, which is not changed to one for each {wanted}, because the "
        "database would copy all rows: make another table and let this one run empty, or drop this one"
    )


# --- making them ---------------------------------------------------------------------------------------------


def first_partitions(dialect: Dialect, table: sa.Table, now: datetime) -> Sequence[str]:
    """The statements after which a new table has partitions for this time and the coming one; none for other tables."""
    unit = unit_of(table.comment)
    if unit is None:
        return ()
    is_there = dialect.partitions.moves_rows  # its CREATE TABLE had to name a partition
    return dialect.partitions.additions(table, list(coming(unit, now)), has_rest=is_there)


def make_coming(
    engine: sa.Engine, dialect: Dialect, table: sa.Table, now: sa.ColumnElement[Any] | None = None
) -> Sequence[str]:
    """Make the partitions of the coming time that are missing; their names.

    It waits at most `LOCK_TIMEOUT` seconds for a lock on the table, because all others wait behind it. Raises
    PartitionsNotMade.
    """
    with connected(engine) as connection:
        if not lacking(connection, dialect, table, now):
            return ()
        connection.detach()  # the settings of its session change
        connection.rollback()
        try:
            with dialect.partitions.locked(connection, table, LOCK_TIMEOUT):
                return _make(connection, dialect, table, now)
        except sa.exc.DBAPIError as error:
            step = "run `claimjobs setup-tables` or `claimjobs purge` again, as a user who may alter the table"
            raise PartitionsNotMade(table.fullname, reason(error), step) from error


def lacking(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, now: sa.ColumnElement[Any] | None = None
) -> list[Period]:
    """The periods of the coming time for which the table has no partition. Empty for a table without such partitions.

    A period is not counted if a later one has a partition.
    """
    unit = unit_in_database(connection, table)
    if unit is None:
        return []
    moment: datetime = connection.execute(sa.select(database_now() if now is None else now)).scalar_one()
    there = [period_named(unit, name) for name in dialect.partitions.names(connection, table)]
    last = max((period.end for period in there if period is not None), default=None)
    return [period for period in coming(unit, moment) if last is None or period.first >= last]


def _make(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, now: sa.ColumnElement[Any] | None
) -> Sequence[str]:
    parts = dialect.partitions
    wanted, has_rest = lacking(connection, dialect, table, now), parts.rest in parts.names(connection, table)
    if has_rest:
        wanted = _free(connection, dialect, table, wanted)
    if wanted or not has_rest:
        for statement in parts.additions(table, wanted, has_rest=has_rest):
            run(connection, statement)
    return [period.name for period in wanted]


def _free(connection: sa.Connection, dialect: Dialect, table: sa.Table, wanted: list[Period]) -> list[Period]:
    """Those of the periods whose partitions can be made now. Raises PartitionsNotMade.

    The rows of the partition for all other times are moved, or the periods that have such rows are left out.
    """
    parts = dialect.partitions
    rest = parts.part(table, parts.rest)
    created = sa.column(CREATED, Instant())
    some = sa.select(created).select_from(rest).limit(MOST_MOVED + 1).subquery("some")
    rows, latest = connection.execute(sa.select(sa.func.count(), sa.func.max(some.c[CREATED]))).one()
    if rows > MOST_MOVED:
        statements = "; ".join(parts.additions(table, wanted, has_rest=True))
        why = f"more than {MOST_MOVED:,} rows are in the partition {parts.rest!r}"
        raise PartitionsNotMade(table.fullname, why, f"when the queue may wait, run {statements}")
    if latest is None or parts.moves_rows:
        return wanted
    return [period for period in wanted if period.first > latest.date()]


def run(connection: sa.Connection, statement: str) -> None:
    """Run DDL as it is written: without parameters a driver leaves a percent sign as it is."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()

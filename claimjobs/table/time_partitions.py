"""The partitions by time of a table that claimjobs made: which it has, and those of the coming time."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Final, NamedTuple, cast

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.database.inspector import inspector_of
from claimjobs.dialects import Dialect, dialect_of
from claimjobs.dialects.online_ddl import LOCK_TIMEOUT
from claimjobs.dialects.partitions import UNITS, Partitions, Period, Unit, coming, period_named
from claimjobs.dialects.types import Instant, database_now
from claimjobs.errors import PartitionsNotMade, UnfitTable
from claimjobs.log_events import PARTITIONS_MISSING
from claimjobs.table.definitions import CREATED, MADE_BY, PARTITIONS

log = logging.getLogger("claimjobs.partitions")

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
    return unit_of(dialect_of(connection).table_rules.comment(inspector_of(connection), table))


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


class Missing(NamedTuple):
    """The periods of the coming time for which a table has no partition."""

    free: list[Period]
    """Those whose partitions can be made."""
    taken: list[Period]
    """Those whose partitions cannot be made, because rows of their time are in the partition for all other times."""
    rest_rows: int | None
    """How many rows that partition has, at most one more than `MOST_MOVED` if they would be moved; None: it is gone."""


def make_coming(
    engine: sa.Engine, dialect: Dialect, table: sa.Table, now: sa.ColumnElement[Any] | None = None
) -> Sequence[str]:
    """Make the partitions of the coming time that are missing; their names.

    It waits at most `LOCK_TIMEOUT` seconds for a lock on the table, because all others wait behind it. What could not
    be made is logged: jobs have a place without it.
    """
    with connected(engine) as connection:
        try:
            missing = find_missing(connection, dialect, table, now)
            if missing.taken:
                _warn(table, f"table {table.fullname!r}: {why_taken(dialect, table, missing.taken)}")
            return _make_free(connection, dialect, table, now=now, missing=missing) if missing.free else ()
        except PartitionsNotMade as error:
            _warn(table, str(error))
        except sa.exc.DBAPIError as error:
            step = f"run `claimjobs purge` again, with an account that may do it ({dialect.partitions.needs})"
            _warn(table, str(PartitionsNotMade(table.fullname, reason(error), step)))
        return ()


def find_missing(
    connection: sa.Connection, dialect: Dialect, table: sa.Table, now: sa.ColumnElement[Any] | None = None
) -> Missing:
    """The periods of the coming time without a partition; none for a table without partitions by time of ours.

    If some are missing, rows of the partition for all other times are read: all of them where they cannot be moved.
    """
    unit, parts = unit_in_database(connection, table), dialect.partitions
    names = [] if unit is None else parts.names(connection, table)
    if unit is None:
        return Missing([], [], None)
    moment: datetime = connection.execute(sa.select(database_now() if now is None else now)).scalar_one()
    there = [period for period in (period_named(unit, name) for name in names) if period is not None]
    lacking = [period for period in coming(unit, moment) if not _has_a_place(parts, there, period)]
    if not lacking or parts.rest not in names:
        return Missing(lacking, [], None)
    rest = parts.part(table, parts.rest)
    if parts.moves_rows:
        some = sa.select(sa.literal(1)).select_from(rest).limit(MOST_MOVED + 1).subquery("some")
        return Missing(lacking, [], connection.scalar(sa.select(sa.func.count()).select_from(some)))
    rows, *each = connection.execute(_counts(rest, lacking)).one()
    free = [period for period, count in zip(lacking, each, strict=True) if not count]
    return Missing(free, [period for period in lacking if period not in free], rows)


def why_taken(dialect: Dialect, table: sa.Table, taken: Sequence[Period]) -> str:
    """Why these periods have no partition, and what becomes of their rows."""
    parts = dialect.partitions
    return (
        f"there is no partition {', '.join(parts.shown(table, period.name) for period in taken)}, because rows of that "
        f"time are in the partition {parts.shown(table, parts.rest)}: they stay there, and `claimjobs purge` deletes "
        "them in chunks"
    )


def _has_a_place(parts: Partitions, there: list[Period], period: Period) -> bool:
    """Whether a period needs no partition: it has one, or none can be added before a later one."""
    return any(other == period or (parts.moves_rows and other.end > period.first) for other in there)


def _counts(part: sa.TableClause, periods: Sequence[Period]) -> sa.Select[Any]:
    """How many rows a partition has, and how many of them are of each period."""
    created = sa.column(CREATED, Instant())
    within = [sa.and_(created >= _start(period.first), created < _start(period.end)) for period in periods]
    counts: list[Any] = [sa.func.count(), *(sa.func.count(sa.case((one, 1))) for one in within)]
    return sa.select(*counts).select_from(part)


def _start(day: date) -> datetime:
    return datetime.combine(day, time(tzinfo=UTC))


def _make_free(
    connection: sa.Connection,
    dialect: Dialect,
    table: sa.Table,
    *,
    now: sa.ColumnElement[Any] | None,
    missing: Missing,
) -> Sequence[str]:
    """Make those of the missing partitions that can be made; their names. Raises PartitionsNotMade."""
    _check_few(dialect, table, missing)
    connection.detach()  # the settings of its session change
    connection.rollback()
    with dialect.partitions.locked(connection, table, LOCK_TIMEOUT):
        missing = find_missing(connection, dialect, table, now)
        _check_few(dialect, table, missing)
        if missing.free:
            for statement in _additions(dialect, table, missing):
                run(connection, statement)
        return [period.name for period in missing.free]


def _check_few(dialect: Dialect, table: sa.Table, missing: Missing) -> None:
    """Raises PartitionsNotMade if so many rows would be moved or read that others wait long."""
    parts = dialect.partitions
    if (missing.rest_rows or 0) > MOST_MOVED and missing.free:
        why = f"more than {MOST_MOVED:,} rows are in the partition {parts.shown(table, parts.rest)}"
        then = (
            "moves these rows" if parts.moves_rows else "leaves these rows there, where `claimjobs purge` deletes them"
        )
        statements = "; ".join(_additions(dialect, table, missing))
        raise PartitionsNotMade(table.fullname, why, f"when the queue may wait, run what {then}: {statements}")


def _additions(dialect: Dialect, table: sa.Table, missing: Missing) -> Sequence[str]:
    return dialect.partitions.additions(table, missing.free, has_rest=missing.rest_rows is not None)


def _warn(table: sa.Table, message: str) -> None:
    fields = {"event": PARTITIONS_MISSING, "queue": table.fullname, "error": message}
    log.warning("%s", message, extra=fields)


def run(connection: sa.Connection, statement: str) -> None:
    """Run DDL as it is written: without parameters a driver leaves a percent sign as it is."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).close()

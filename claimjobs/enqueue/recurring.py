"""RecurringRows: enqueues rows for each tick of a schedule, in any number of processes, each tick once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.database.connection import Connector
from claimjobs.dialects.types import database_now
from claimjobs.enqueue.enqueuer import Enqueuer, Rows
from claimjobs.enqueue.schedule import Schedule
from claimjobs.errors import BadArgument
from claimjobs.table.roles import ColumnRoles

AHEAD: Final = timedelta(seconds=5)
"""The rows of a tick are inserted so long before it at least: a machine may be busy for a moment, and a tick that is
over is not made up for."""
CLOCK_EVERY: Final = 60.0
"""Seconds between two readings of the database's clock: this machine's may differ, or may have slept."""

OnTick = Callable[[datetime, int], None]


class RecurringRows:
    """The rows of a tick are inserted while the tick before is the last one, or 5 s ahead, with the tick as their
    `run_at`.

    So no consumer can have deleted them when another process inserts them: the unique key is there until the tick.
    They are committed before their tick, or not at all.
    """

    def __init__(
        self,
        roles: ColumnRoles,
        schedule: Schedule,
        rows: Rows | Callable[[datetime], Rows],
        *,
        tick: str,
        unique: tuple[str, ...],
    ) -> None:
        """Raises BadArgument, and ColumnMissing for a table without `run_at`."""
        if tick not in unique:
            raise BadArgument(f"tick={tick!r} is none of the unique columns {', '.join(unique)}: give it there, too")
        self._due = roles.need("run_at", "waiting for a tick").key
        self._schedule, self._tick, self._unique = schedule, tick, unique
        self._rows = rows if callable(rows) or isinstance(rows, Mapping) else list(rows)

    def run(self, enqueuer: Enqueuer, connector: Connector, control: Control, on_tick: OnTick) -> None:
        """Enqueue until the control is stopping. An outage is waited for."""
        last = datetime.min.replace(tzinfo=UTC)
        while not control.stopping:
            for attempt in connector.attempts(math.inf, unless=control):
                with attempt as connection:
                    now = _now(connection)
                    tick = self._schedule.after(max(now, last))
                    count = self._enqueue(enqueuer, connection, tick)
            last = max(last, tick)
            on_tick(tick, count)
            self._wait(connector, control, min(tick, self._schedule.after(tick) - AHEAD))

    def _enqueue(self, enqueuer: Enqueuer, connection: sa.Connection, tick: datetime) -> int:
        point = connection.begin_nested()
        count = enqueuer.enqueue(self._rows_of(tick), connection, on_bad=None, unique=self._unique)
        if _now(connection) >= tick:
            point.rollback()
            return 0
        point.commit()
        return count

    def _rows_of(self, tick: datetime) -> Rows:
        rows: Any = self._rows(tick) if callable(self._rows) else self._rows
        several = [rows] if isinstance(rows, Mapping) else rows
        return [{self._due: tick, **row, self._tick: tick} for row in several]

    @staticmethod
    def _wait(connector: Connector, control: Control, until: datetime) -> None:
        """Wait until this instant by the database's clock."""
        left = CLOCK_EVERY
        while left > 0 and not control.stopping:
            for attempt in connector.attempts(math.inf, unless=control):
                with attempt as connection:
                    left = (until - _now(connection)).total_seconds()
            ends = time.monotonic() + min(left, CLOCK_EVERY)
            while (rest := ends - time.monotonic()) > 0 and not control.stopping:
                control.wait(rest)


def _now(connection: sa.Connection) -> datetime:
    now: datetime = connection.execute(sa.select(database_now())).scalar_one()
    return now

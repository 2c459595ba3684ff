"""Recurring jobs: rows for each tick of a schedule are enqueued in any number of processes, each tick once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from cronsim import CronSim, CronSimError

from claimjobs.control import Control
from claimjobs.database.connection import Connector
from claimjobs.dialects.types import statement_now
from claimjobs.enqueue.enqueuer import Enqueuer, Rows
from claimjobs.errors import BadArgument
from claimjobs.instants import duration_of, next_whole

SHORTEST: Final = timedelta(seconds=1)
AHEAD: Final = timedelta(seconds=5)
"""The rows of a tick are inserted so long before it at least: a machine may be busy for a moment, and a tick that is
over is not made up for."""
CLOCK_EVERY: Final = 60.0
"""Seconds between two readings of the database's clock: this machine's may differ, or may have slept."""

OnTick = Callable[[datetime, int], None]


class Schedule:
    """The ticks of a cron expression, or the whole multiples of an interval, counted in UTC from 1970.

    So all processes with one schedule agree on its ticks. A cron expression is read as Debian's cron reads it, also
    when the clocks of the zone are changed (https://github.com/cuu508/cronsim).
    """

    def __init__(self, text: str | timedelta, zone: str = "UTC") -> None:
        """`text`: five fields of cron, or an interval such as 15m, or a timedelta. Raises BadArgument."""
        self._interval = text if isinstance(text, timedelta) else duration_of(text)
        self._text = str(text)
        try:
            self._zone = ZoneInfo(zone)
        except (LookupError, ValueError, OSError):
            raise BadArgument(f"{zone!r} is no time zone: give a name such as Europe/Berlin") from None
        if self._interval is not None and self._interval < SHORTEST:
            raise BadArgument(f"a tick every {self._interval} is too often: give an interval of 1s or more")
        self.after(datetime.now(UTC))

    def after(self, instant: datetime) -> datetime:
        """The first tick after an instant, in UTC. Raises BadArgument for an expression that has none."""
        if self._interval is not None:
            return next_whole(instant, self._interval)
        try:
            ticks = (tick.astimezone(UTC) for tick in CronSim(self._text, instant.astimezone(self._zone)))
            return next(tick for tick in ticks if tick > instant)  # in an hour that is repeated, it begins at the first
        except (CronSimError, StopIteration):
            step = "give an interval such as 15m, or a cron expression such as '0 6 * * 1'"
            raise BadArgument(f"{self._text!r} is no schedule, or one without a tick: {step}") from None


class RecurringRows:
    """The rows of a tick are inserted while the tick before is the last one, or 5 s ahead, with the tick as their
    `run_at`.

    So no consumer can have deleted them when another process inserts them: the unique key is there until the tick.
    They are committed before their tick, or not at all.
    """

    def __init__(
        self,
        enqueuer: Enqueuer,
        schedule: Schedule,
        rows: Rows | Callable[[datetime], Rows],
        *,
        tick: str,
        unique: tuple[str, ...],
    ) -> None:
        """Raises BadArgument, and ColumnMissing for a table without `run_at`."""
        if tick not in unique:
            raise BadArgument(f"tick={tick!r} is none of the unique columns {', '.join(unique)}: give it there, too")
        self._due = enqueuer.roles.need("run_at", "waiting for a tick").key
        self._enqueuer, self._schedule, self._tick, self._unique = enqueuer, schedule, tick, unique
        self._rows = rows if callable(rows) or isinstance(rows, Mapping) else list(rows)

    def run(self, connector: Connector, control: Control, on_tick: OnTick | None) -> None:
        """Enqueue until the control is stopping. An outage is waited for."""
        last = datetime.min.replace(tzinfo=UTC)
        while not control.stopping:
            for attempt in connector.attempts(math.inf, unless=control):
                with attempt as connection:
                    tick = self._schedule.after(max(_now(connection), last))
                    rows: Any = self._rows(tick) if callable(self._rows) else self._rows
                    several = [rows] if isinstance(rows, Mapping) else rows
                    dated = [{self._due: tick, **row, self._tick: tick} for row in several]
                    point = connection.begin_nested()
                    count = self._enqueuer.enqueue(dated, connection, on_bad=None, unique=self._unique)
                    if _now(connection) < tick:
                        point.commit()
                    else:
                        point.rollback()
                        count = 0
            last = max(last, tick)
            if on_tick is not None:
                on_tick(tick, count)
            _wait(connector, control, min(tick, self._schedule.after(tick) - AHEAD))


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
    now: datetime = connection.execute(sa.select(statement_now())).scalar_one()
    return now

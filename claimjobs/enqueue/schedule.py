"""Schedule: when the ticks of a recurring job are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from claimjobs.errors import BadArgument
from claimjobs.instants import duration_of, next_whole

SHORTEST = timedelta(seconds=1)


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
            return next(CronSim(self._text, instant.astimezone(self._zone))).astimezone(UTC)
        except (CronSimError, StopIteration):
            step = "give an interval such as 15m, or a cron expression such as '0 6 * * 1'"
            raise BadArgument(f"{self._text!r} is no schedule, or one without a tick: {step}") from None

"""Instants to wait for together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def next_whole(instant: datetime, every: timedelta = timedelta(hours=1)) -> datetime:
    """The next whole hour after an instant, or the next whole multiple of `every`; in UTC, and counted in UTC.

    A `run_at` for jobs that are to be done together, up until then: `next_whole(queue.now())`. An instant that is
    whole itself belongs to what begins with it. Raises ValueError for a datetime without a time zone, or for steps
    that lead nowhere.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone: give an aware datetime, such as `queue.now()`")
    if every <= timedelta(0):
        raise ValueError(f"steps of {every} lead nowhere: give a positive timedelta")
    return EPOCH + ((instant - EPOCH) // every + 1) * every

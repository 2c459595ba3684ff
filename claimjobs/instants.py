"""Instants and spans of time, as others give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

LONGEST: Final = timedelta(days=365_000)
"""A thousand years: no database holds an instant that is older."""


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


def in_utc(instant: datetime) -> datetime:
    """The same in UTC, without a time zone, as not every database gives one back; one without is taken as UTC."""
    return instant.astimezone(UTC).replace(tzinfo=None) if instant.tzinfo else instant


def age_of(older_than: timedelta | float) -> timedelta:
    """A timedelta, or so many seconds; a thousand years at most. Raises ValueError for one below 0."""
    age = older_than if isinstance(older_than, timedelta) else timedelta(seconds=older_than)
    if age < timedelta(0):
        raise ValueError(f"nothing is {older_than} old yet: give an age of 0 or more")
    return min(age, LONGEST)

"""Instants and durations that callers give."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
"""The units of durations, for `timedelta`."""
LONGEST_AGE: Final = timedelta(days=365_000)
"""A thousand years: no database holds an instant that is older."""


def next_whole(instant: datetime, every: timedelta = timedelta(hours=1)) -> datetime:
    """The next whole hour after an instant, or the next whole multiple of `every`; in UTC, and counted in UTC.

    Use it as the `run_at` of jobs that are to run together then: `next_whole(queue.now())`. The result is later than
    the instant, also if the instant is whole. Raises ValueError for a datetime without a time zone, or if `every` is
    not positive.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone: give an aware datetime, such as `queue.now()`")
    if every <= timedelta(0):
        raise ValueError(f"steps of {every} do not advance: give a positive timedelta")
    return EPOCH + ((instant - EPOCH) // every + 1) * every


def duration_of(text: str) -> timedelta | None:
    """A number and a unit: 90s, 15m, 12h, 7d, 2w. None: it is none, or too long."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    with suppress(OverflowError):
        return None if found is None else timedelta(**{UNITS[found[2]]: float(found[1])})
    return None


def in_utc(instant: datetime) -> datetime:
    """The instant in UTC, without a time zone, because not every database returns one. One without a zone is in UTC."""
    return instant.astimezone(UTC).replace(tzinfo=None) if instant.tzinfo else instant


def age(seconds: float) -> str:
    """`3 s`, `2 min 3 s`, `5 h 2 min`, `12 d 4 h`: the two largest units."""
    rest = round(seconds)
    counts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in counts[:2] if count) or "0 s"

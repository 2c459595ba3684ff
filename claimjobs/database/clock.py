"""The database's time, without a statement for each reading."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.errors import ClaimjobsError

READ_EVERY_SECONDS: Final = 60.0
"""Seconds between two readings of the database's clock."""


class DatabaseClock:
    """Reads the database's clock once a minute. In between this machine's monotonic clock counts on.

    The error of a reading is at most the time of its round trip. A clock that is set is noticed within a minute.
    """

    def __init__(self, engine: sa.Engine, now: sa.ColumnElement[Any]) -> None:
        self._engine = engine
        self._statement = sa.select(now)
        self._ahead: float | None = None
        """Seconds since 1970 by the database's clock, less this machine's monotonic clock."""
        self._read_at = -inf

    def now(self) -> float | None:
        """Seconds since 1970, by the database's clock; None while it could not be read."""
        began = time.monotonic()
        if began - self._read_at >= READ_EVERY_SECONDS:
            self._read_at = began
            # An error leaves the reading before: the claim goes on.
            with suppress(ClaimjobsError, sa.exc.SQLAlchemyError), connected(self._engine) as connection:
                began = time.monotonic()
                moment = connection.execute(self._statement).scalar_one()
                self._ahead = in_seconds(moment) - (began + time.monotonic()) / 2
        return None if self._ahead is None else time.monotonic() + self._ahead


def in_seconds(moment: datetime) -> float:
    """Seconds since 1970. An instant without a time zone is one of UTC, as the database's clock is."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def age_at(now: datetime, instant: datetime) -> float:
    """Seconds from an instant until `now`; 0 for what was written after the transaction that reads it had begun: on
    Postgres that is its `now`.
    """
    return max(0.0, in_seconds(now) - in_seconds(instant))

"""The database's time, without a statement for each reading; and the time zone of a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.transactions import commits_by_itself
from claimjobs.dialects import Dialect
from claimjobs.errors import ClaimjobsError

EVERY: Final = 60.0
"""Seconds between two readings of the database's clock."""

IN_UTC: Final = "claimjobs_in_utc"
"""The key of a connection's `info` that says whether its session is in UTC. It is there for connections of our own."""


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
        here = time.monotonic()
        if here - self._read_at >= EVERY:
            self._read_at = here
            self._read()
        return None if self._ahead is None else time.monotonic() + self._ahead

    def _read(self) -> None:
        """Read the database's clock. An error leaves the reading before: the claim goes on."""
        try:
            with connected(self._engine) as connection:
                began = time.monotonic()
                moment = connection.execute(self._statement).scalar_one()
        except (ClaimjobsError, sa.exc.SQLAlchemyError):
            return
        self._ahead = in_seconds(moment) - (began + time.monotonic()) / 2


def in_seconds(moment: datetime) -> float:
    """Seconds since 1970. An instant without a time zone is one of UTC, as the database's clock is."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def age_at(now: datetime, instant: datetime) -> float:
    """Seconds from an instant until `now`; 0 for what was written after the transaction that reads it had begun: on
    Postgres that is its `now`.
    """
    return max(0.0, in_seconds(now) - in_seconds(instant))


@contextmanager
def in_utc(connection: sa.Connection, dialect: Dialect, *, depends: bool) -> Iterator[None]:
    """A block of our statements in a session that is not ours: its time zone is UTC in the block, and then as before.

    `depends`: whether a statement on this table depends on the zone at all. If not, nothing is sent.
    """
    if not depends or connection.info.get(IN_UTC, False):
        yield
        return
    sessions, local = dialect.sessions, {"local": not commits_by_itself(connection, unknown=False)}
    connection.execute(sessions.to_utc, local).close()
    try:
        yield
    except BaseException:
        # After an error Postgres refuses every statement, and the rollback restores the zone.
        with suppress(sa.exc.SQLAlchemyError):
            connection.execute(sessions.zone_before, local).close()
        raise
    connection.execute(sessions.zone_before, local).close()

"""Pool: a connection that waited in the pool of an engine is asked whether it lives, unless that is known."""

from __future__ import annotations

import time
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect

FRESH: Final = 1.0
"""Seconds in which a connection does not fall silent: no firewall on the way forgets it, no server times it out."""
_USED: Final = "claimjobs_used"
"""Where the `info` of a connection holds when it was used last."""


def ask_before_use(engine: sa.Engine, dialect: Dialect) -> None:
    """Have connections that ended while they waited replaced, and all that are as old with them.

    As `pool_pre_ping` does, with a round trip before each use; but a server that ends a session says so, at once, to
    whoever listens. So one that was used a moment ago, and has heard nothing since, is not asked.
    """

    def used(_driver_connection: Any, record: Any) -> None:
        record.info[_USED] = time.monotonic()

    def wanted(driver_connection: Any, record: Any, _proxy: Any) -> None:
        rested = time.monotonic() - record.info.get(_USED, -FRESH)
        if rested < FRESH and dialect.sessions.is_quiet(driver_connection):
            return
        try:
            engine.dialect.do_ping(driver_connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error

    sa.event.listen(engine, "connect", used)
    sa.event.listen(engine, "checkin", used)
    sa.event.listen(engine, "checkout", wanted)

"""Which connections of an engine's pool may be used again: those that are alive, and lead to a server for writes."""

from __future__ import annotations

import time
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.error_codes import READ_ONLY

FRESH: Final = 1.0
"""Seconds for which a connection needs no ping: no firewall drops it, and no server times it out, so soon."""
_USED: Final = "claimjobs_used"
"""The key of a connection's `info` with the time of its last use."""


def ask_before_use(engine: sa.Engine, dialect: Dialect) -> None:
    """Make the pool replace connections that ended while they were in it, and all that are as old.

    `pool_pre_ping` does so with a round trip before each use. But a server that ends a session sends a message at once.
    So a connection that was used a moment ago, and has received nothing since, is not pinged.
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


def leave_read_only_members(engine: sa.Engine, dialect: Dialect) -> None:
    """Make the pool replace all connections when a server refuses to write because it is read-only.

    It may be the primary of before a failover, which still answers. New connections lead to whoever takes writes now.
    """

    def refused(context: sa.engine.ExceptionContext) -> None:
        if dialect.errors.broken_kind(context.original_exception) == READ_ONLY:
            context.is_disconnect = True

    sa.event.listen(engine, "handle_error", refused)

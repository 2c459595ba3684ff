"""The time zone of a session: our statements mean instants in UTC, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import commits_by_itself
from claimjobs.dialects import Dialect

IN_UTC: Final = "claimjobs_in_utc"
"""The key of a connection's `info` that says whether its session is in UTC. It is there for connections of our own."""


@contextmanager
def in_utc(connection: sa.Connection, dialect: Dialect, *, depends: bool) -> Iterator[None]:
    """A block of our statements in a session that is not ours: its time zone is UTC in the block, and then as before.

    `depends`: whether a statement on this table depends on the zone at all. If not, nothing is sent.
    """
    if not depends or connection.info.get(IN_UTC, False):
        yield
        return
    utc, as_before = dialect.sessions.zone_switch(local=not commits_by_itself(connection, unknown=False))
    connection.execute(utc).close()
    try:
        yield
    except BaseException:
        # After an error Postgres refuses every statement, and the rollback restores the zone.
        with suppress(sa.exc.SQLAlchemyError):
            connection.execute(as_before).close()
        raise
    connection.execute(as_before).close()

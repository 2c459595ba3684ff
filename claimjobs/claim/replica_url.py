"""The engine of a replica for candidates, and errors that say that it is the replica which cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import engine_of, shown
from claimjobs.dialects import are_one_family, dialect_named_by
from claimjobs.errors import ConnectionFailed, DatabaseMissing, ReplicaUnfit, UnknownDatabase

LONGEST_CONNECT: Final = 2
"""Seconds after which an attempt to connect to one address of a replica ends. A claim waits meanwhile, and so does the
heartbeat of its owner."""


def replica_engine(bind: str | sa.URL | sa.Engine, primary: sa.Engine) -> sa.Engine:
    """An engine for the replica of a primary. Opens no connection.

    Raises UnknownDatabase, DriverUnsupported or DriverMissing.
    """
    with said_of_the_replica():
        engine = engine_of(bind, connect_seconds=LONGEST_CONNECT)
        ours, theirs = dialect_named_by(engine), dialect_named_by(primary)
        if not are_one_family(ours, theirs):
            raise UnknownDatabase(
                f"{shown(engine.url)} is a {ours.title} server, and the primary is {theirs.title}: give the URL of a "
                "server that replicates the primary"
            )
        return engine


@contextmanager
def said_of_the_replica() -> Iterator[None]:
    """A block that reaches for the replica. Its errors say so: their URL is not that of the primary."""
    try:
        yield
    except ReplicaUnfit:
        raise
    except ConnectionFailed as error:
        # A database that is made there would stay empty: the replica gets it from its primary.
        cause = f"{error.found}: correct the URL" if isinstance(error, DatabaseMissing) else error
        error.args = (f"the replica for candidates (--candidates-url): {cause}",)
        raise

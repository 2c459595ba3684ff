"""Row locks: whether SKIP LOCKED takes a lock. A plan does not show that, only a second session does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.errors import ClaimjobsError
from claimjobs.explain.subject import Subject
from claimjobs.statements import samples


def lock_nothing(engine: sa.Engine, subject: Subject) -> bool:
    """Whether two sessions lock one row of the table at once, so that two consumers would claim one job.

    False also if that cannot be tried: the table has no row that is free, this account may lock none, or a pooler may
    let the second session wait for the end of the first. The lock lasts some milliseconds.
    """
    dialect, table = subject.backend.dialect, subject.backend.source
    lock = samples.locked(table, dialect)
    with contextlib.suppress(sa.exc.DBAPIError, ClaimjobsError), connected(engine) as first:
        keys = {"claimjobs_keys": subject.some_keys(first)[:1]}
        is_direct = dialect.sessions.is_as_greeted(first)
        first.rollback()
        if is_direct and keys["claimjobs_keys"] and _gets(first, lock, keys, dialect.isolation):
            with _elsewhere(engine) as second:
                return _gets(second, lock, keys, dialect.isolation)
    return False


def _gets(connection: sa.Connection, lock: sa.Select[Any], keys: Mapping[str, Any], isolation: str) -> bool:
    """Whether this session gets the lock. It keeps it until its transaction ends."""
    connection.execution_options(isolation_level=isolation)
    return connection.execute(lock, keys).first() is not None


@contextlib.contextmanager
def _elsewhere(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection made as the engine makes its own, in no pool that others use: that one may have no more."""
    alone = sa.Engine(engine.pool.recreate(), engine.dialect, engine.url)
    try:
        with connected(alone) as connection:
            yield connection
    finally:
        alone.dispose()

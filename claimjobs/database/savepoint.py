"""Savepoints: undo one block of a transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa


@contextlib.contextmanager
def savepoint(connection: sa.Connection) -> Iterator[None]:
    """Undo what the block did if it raises, so that the transaction around it can go on.

    The block's own error is raised, also if the database has undone the savepoint with the whole transaction, as after
    a deadlock.
    """
    point = connection.begin_nested()
    try:
        yield
    except BaseException:
        with contextlib.suppress(sa.exc.DBAPIError):
            point.rollback()
        raise
    point.commit()


@contextlib.contextmanager
def undoing(connection: sa.Connection) -> Iterator[None]:
    """A savepoint; or, if no transaction has begun, the whole transaction, which saves two round trips."""
    if connection.in_transaction():
        with savepoint(connection):
            yield
        return
    whole = connection.begin()
    try:
        yield
    except BaseException:
        with contextlib.suppress(sa.exc.DBAPIError):
            whole.rollback()
        raise

"""Savepoint: what a block did is undone alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa


@contextlib.contextmanager
def savepoint(connection: sa.Connection) -> Iterator[None]:
    """Undo what the block did if it raises, so that the transaction around it can go on.

    What leaves the block is the block's own error, also where the database has undone the transaction, and the
    savepoint with it, as after a deadlock.
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
    """The same, for a transaction that nobody else has begun: what comes first in it is undone with it.

    That is two round trips less, and all that a transaction of one statement needs.
    """
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

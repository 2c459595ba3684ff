"""Raises the errors of a driver as SQLAlchemy raises them, also in the few places where SQLAlchemy does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa


@contextmanager
def raised_as_sqlalchemy_does(connection: sa.Connection) -> Iterator[None]:
    """Raise sqlalchemy.exc.DBAPIError for an error of the driver in the block, and invalidate a lost connection.

    SQLAlchemy does so for statements, but not if the driver refuses another isolation level, because it knows already
    that the connection is lost. Nothing would be tried again after that error.
    """
    try:
        yield
    except connection.dialect.loaded_dbapi.Error as error:
        connection._handle_dbapi_exception(error, None, None, None, None)

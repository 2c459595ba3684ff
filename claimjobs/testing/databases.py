"""Databases of tests: a new one for each, and an engine that works in the open transaction of a test."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, engine_of
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import BadArgument

OURS: Final = "claimjobs_test_"
"""What the names of our savepoints begin with."""


@contextmanager
def new_database(server: str, name: str) -> Iterator[str]:
    """The URL of a new database on a server, for a `with` block. It is dropped at the end, with the sessions in it.

    Raises ConnectionFailed, and SQLAlchemy's error if the account may not make one.
    """
    engine = engine_of(server)
    admin = engine.execution_options(isolation_level="AUTOCOMMIT")
    try:
        with connected(admin) as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {engine.dialect.identifier_preparer.quote(name)}")
        try:
            yield sa.make_url(server).set(database=name).render_as_string(hide_password=False)
        finally:
            with connected(admin) as connection:
                dialect_named_by(engine).sessions.drop_database(connection, name)
    finally:
        engine.dispose()


def engine_within(connection: sa.Connection) -> sa.Engine:
    """An engine that works in the open transaction of a connection: it commits nothing, and closes no connection.

    It is for one thread, which ends its transactions in the reverse order. Raises BadArgument if none is open.
    """
    if not connection.in_transaction():
        raise BadArgument("the connection has no open transaction: call its `begin`, and enqueue in it, before `run`")
    driver_connection = connection.connection.dbapi_connection
    dialect = copy.copy(connection.dialect)
    vars(dialect).update(_Savepoints().replacements(dialect))
    pool = sa.pool.NullPool(lambda: driver_connection, reset_on_return=None, dialect=dialect)  # type: ignore[arg-type]
    return sa.Engine(pool, dialect, connection.engine.url)


class _Savepoints:
    """What a SQLAlchemy dialect does at the ends of a transaction, with savepoints."""

    _open = 0

    def replacements(self, dialect: sa.Dialect) -> dict[str, Any]:
        closes = ("do_close", "do_terminate", "set_isolation_level", "reset_isolation_level")
        nested = ("do_savepoint", "do_rollback_to_savepoint", "do_release_savepoint")
        return {
            "do_begin": self._begin,
            "do_commit": self._commit,
            "do_rollback": self._roll_back,
            **dict.fromkeys(closes, lambda *_: None),  # the connection is left as the test has made it
            **{method: _renaming(getattr(dialect, method)) for method in nested},
        }

    def _begin(self, connection: Any) -> None:
        self._open += 1
        self._send(connection, "SAVEPOINT")

    def _commit(self, connection: Any) -> None:
        if self._open:
            self._send(connection, "RELEASE SAVEPOINT")
            self._open -= 1

    def _roll_back(self, connection: Any) -> None:
        if self._open:
            self._send(connection, "ROLLBACK TO SAVEPOINT")
            self._commit(connection)

    def _send(self, connection: Any, statement: str) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"{statement} {OURS}{self._open}")


def _renaming(send: Callable[[sa.Connection, str], None]) -> Callable[[sa.Connection, str], None]:
    """Each connection of SQLAlchemy numbers its savepoints from 1, and the test may have one with this number: a second
    savepoint of a name ends the first one on MySQL, and hides it on Postgres.
    """
    return lambda connection, name: send(connection, f"{OURS}{name}")

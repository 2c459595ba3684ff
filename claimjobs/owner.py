"""Owner: one incarnation of a consumer, and the connection that it claims and settles through."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
import tenacity

from claimjobs.connect import open_connection
from claimjobs.dialects import Dialect
from claimjobs.report import Report
from claimjobs.signals import shielded
from claimjobs.statements import owners as statements

Result = TypeVar("Result")

ATTEMPTS = 12
"""How often a transaction is run before its deadlock is passed on to the caller; some 4 s of trying."""

log = logging.getLogger("claimjobs")


class Connector:
    """One connection, kept open, for short transactions that are run again when the database says so.

    Threads take turns. Isolation is the dialect's, whatever the engine's default: a claim at REPEATABLE READ
    would see a frozen table and, on InnoDB, lock gaps.
    """

    def __init__(self, engine: sa.Engine, dialect: Dialect, report: Report) -> None:
        self._engine = engine
        self._dialect = dialect
        self._report = report
        self._turn = threading.RLock()
        self._connection: sa.Connection | None = None

    def transaction(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction and commit it.

        A deadlock, lock timeout or serialization failure rolls it back and runs it again, after a pause with
        jitter, and is counted. Any other error of the database is raised as SQLAlchemy raises it.
        """
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_transient),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.5),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            before_sleep=self._count,
            reraise=True,
        )
        with self._turn, shielded():
            result: Result = again(self._once, work)
            return result

    def close(self) -> None:
        """Close the connection; a later transaction opens another one."""
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _once(self, work: Callable[[sa.Connection], Result]) -> Result:
        connection = self._open()
        with connection.begin():
            return work(connection)

    def _open(self) -> sa.Connection:
        # An invalidated Connection would come back without its isolation level.
        if self._connection is not None and self._connection.invalidated:
            self.close()
        if self._connection is None:
            connection = open_connection(self._engine)
            self._connection = connection.execution_options(isolation_level=self._dialect.isolation)
        return self._connection

    def _is_transient(self, error: BaseException) -> bool:
        return self._dialect.transient_kind(error) is not None

    def _count(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        kind = self._dialect.transient_kind(error) if error else None
        if kind:
            self._report.transients[kind] += 1


class Owner:
    """A row of the owners table. Its id is the fencing token in `owner_id` of every job it holds; never reused."""

    def __init__(self, connector: Connector, table: sa.Table, claims: str) -> None:
        self._connector = connector
        self._table = table
        self.id = connector.transaction(lambda connection: self._register(connection, claims))

    def _register(self, connection: sa.Connection, claims: str) -> int:
        who = {"host": socket.gethostname()[:255], "pid": os.getpid(), "claims": claims}
        inserted = connection.execute(statements.register(self._table), who)
        return int(inserted.inserted_primary_key[0])  # type: ignore[index]  # one row was inserted

    def leave(self) -> None:
        """Take this owner out of the table. What it still holds must have been handed back before."""
        me = {"me": self.id}
        self._connector.transaction(lambda connection: connection.execute(statements.leave(self._table), me))

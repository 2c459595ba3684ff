"""Drops old partitions of done jobs as a whole, and makes those of the coming time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.dialects.online_ddl import LOCK_TIMEOUT
from claimjobs.dialects.partitions import Unit, period_named
from claimjobs.errors import PartitionsNotMade
from claimjobs.log_events import PARTITION_KEPT, PARTITIONS_MISSING
from claimjobs.statements import partitions as statements
from claimjobs.table.backend import Backend
from claimjobs.table.time_partitions import make_coming, run, unit_in_database

log = logging.getLogger("claimjobs.purge")


class OldPartitions:
    """The partitions by time of a table that claimjobs made.

    A partition is dropped if its time has passed, all its jobs are done, and they have been done for long enough. All
    rows are read for that, before the lock. Under the lock, which ends claims and INSERTs for a moment, it is only
    checked again that no job is there which is not done, and none after the last one: that reads two entries of an
    index.
    """

    def __init__(self, engine: sa.Engine, backend: Backend) -> None:
        self._engine = engine
        self._backend = backend
        self._parts = backend.dialect.partitions
        self._table = backend.roles.table

    def make_coming(self, now: sa.ColumnElement[Any]) -> None:
        """Make the missing partitions of the coming time. A failure is logged: jobs have a place without them."""
        try:
            make_coming(self._engine, self._backend.dialect, self._table, now)
        except PartitionsNotMade as error:
            fields = {"queue": self._table.fullname, "error": str(error)}
            log.warning("%s", error, extra={"event": PARTITIONS_MISSING, **fields})

    def drop(self, until: datetime) -> int:
        """Drop the partitions in which all jobs have been done since `until` or longer; how many jobs they had.

        If one cannot be locked soon, or must not be dropped, this is logged, and the others stay as well.
        """
        jobs = 0
        with connected(self._engine) as connection:
            connection.detach()  # the settings of its session change
            for name in self._old(connection, until):
                try:
                    jobs += self._drop(connection, name, until)
                except sa.exc.DBAPIError as error:
                    self._say_why_not(name, error)
                    break
        return jobs

    def _old(self, connection: sa.Connection, until: datetime) -> Sequence[str]:
        """The names of the partitions whose time had passed at this instant."""
        unit = unit_in_database(connection, self._table)
        if unit is None:
            return ()
        return [name for name in self._parts.names(connection, self._table) if _is_over(unit, name, until)]

    def _drop(self, connection: sa.Connection, name: str, until: datetime) -> int:
        roles, part = self._backend.roles, self._parts.part(self._table, name)
        rows, old = connection.execute(statements.count_rows(part, roles, until)).one()
        last = connection.execute(statements.last_key(part, roles.key)).first()
        connection.rollback()
        if rows != old:
            return 0
        with self._parts.locked(connection, self._table, LOCK_TIMEOUT, name):
            if not self._is_as_seen(connection, part, last):
                return 0
            run(connection, self._parts.removal(self._table, name))
        return int(rows)

    def _is_as_seen(self, connection: sa.Connection, part: sa.TableClause, last: sa.Row[Any] | None) -> bool:
        """Whether all jobs of a partition are done, and none came after the last one."""
        roles = self._backend.roles
        if connection.execute(statements.one_not_done(part, roles)).first() is not None:
            return False
        return connection.execute(statements.last_key(part, roles.key)).first() == last

    def _say_why_not(self, name: str, error: sa.exc.DBAPIError) -> None:
        said = reason(error)
        log.warning(
            "partition %r of table %r was not dropped (%s): jobs are deleted one by one",
            *(name, self._table.fullname, said),
            extra={"event": PARTITION_KEPT, "queue": self._table.fullname, "partition": name, "error": said},
        )


def _is_over(unit: Unit, name: str, until: datetime) -> bool:
    period = period_named(unit, name)
    return period is not None and period.end <= until.date()

"""Drops old partitions of done jobs as a whole, and makes those of the coming time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from typing import Any, NamedTuple

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import reason
from claimjobs.dialects.online_ddl import LOCK_TIMEOUT
from claimjobs.dialects.partitions import Unit, period_at, period_named
from claimjobs.dialects.types import Instant
from claimjobs.log_events import PARTITION_KEPT, PARTITION_STAYS, PARTITIONS_DROPPED
from claimjobs.statements import partitions as statements
from claimjobs.statements.purge import Predicates
from claimjobs.table.backend import Backend
from claimjobs.table.definitions import CREATED
from claimjobs.table.time_partitions import make_coming, run, unit_in_database

log = logging.getLogger("claimjobs.purge")


class _Old(NamedTuple):
    """A partition in which all jobs have been done for long enough."""

    name: str
    part: sa.TableClause
    rows: int
    last: sa.Row[Any] | None


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
        """Make the missing partitions of the coming time."""
        make_coming(self._engine, self._backend.dialect, self._table, now)

    def inserted(self, until: datetime, *, dropped: bool) -> Predicates:
        """The predicate of a job that was inserted before this instant; none for a table without partitions.

        A later one cannot have been done or dead by then. So no partition of a later time is read. `dropped`: jobs in
        the partition whose time was not over then are left to the purge that drops it.
        """
        with connected(self._engine) as connection:
            unit = unit_in_database(connection, self._table)
        if unit is None:
            return ()
        if dropped:
            until = datetime.combine(period_at(unit, until.date()).first, time(), UTC)
        return (sa.column(CREATED, Instant()) < until,)  # a description of the table may lack it

    def drop(self, until: datetime) -> int:
        """Drop the partitions in which all jobs have been done since `until` or longer; how many jobs they had.

        The log says which. If one cannot be locked soon, or must not be dropped, this is logged, and the others stay as
        well.
        """
        dropped: dict[str, int] = {}
        with connected(self._engine) as connection:
            connection.detach()  # the settings of its session change
            for old in self._all_done(connection, until):
                try:
                    if self._drop(connection, old):
                        dropped[old.name] = old.rows
                except sa.exc.DBAPIError as error:
                    self._say_why_not(old.name, error)
                    break
        self._say_which("dropped", list(dropped))
        return sum(dropped.values())

    def say_what_would_be_dropped(self, until: datetime) -> None:
        """Log the names of the partitions that `drop` would drop."""
        with connected(self._engine) as connection:
            self._say_which("would drop", [old.name for old in self._all_done(connection, until)])

    def _all_done(self, connection: sa.Connection, until: datetime) -> Iterator[_Old]:
        """The partitions that may be dropped. Why another one of that time stays is logged."""
        roles = self._backend.roles
        for name in self._old(connection, until):
            part = self._parts.part(self._table, name)
            try:
                last = connection.execute(statements.last_key(part, roles.key)).first()
                rows, done, old = connection.execute(statements.count_rows(part, roles, until)).one()
            except sa.exc.DBAPIError as error:
                self._say_why_not(name, error)
                return
            finally:
                connection.rollback()
            if rows == old:
                yield _Old(name, part, rows, last)
            elif rows != done:
                self._say_it_stays(name, _jobs(rows - done, "not done"))
            else:
                self._say_it_stays(name, _jobs(done - old, "not done for long enough"))

    def _old(self, connection: sa.Connection, until: datetime) -> Sequence[str]:
        """The names of the partitions whose time had passed at this instant, and that a lock protects."""
        unit = unit_in_database(connection, self._table)
        if unit is None:
            return ()
        names = [name for name in self._parts.names(connection, self._table) if _is_over(unit, name, until)]
        if names and self._backend.dialect.sessions.is_one_of_several_primaries(connection):
            for name in names:
                self._say_it_stays(name, "a lock of one primary keeps no other one from it; its jobs are deleted")
            return ()
        return names

    def _drop(self, connection: sa.Connection, old: _Old) -> bool:
        with self._parts.locked(connection, self._table, LOCK_TIMEOUT, old.name):
            as_seen = self._is_as_seen(connection, old.part, old.last)
            if as_seen:
                run(connection, self._parts.removal(self._table, old.name))
        if not as_seen:
            self._say_it_stays(old.name, "a job came, or was changed, in this moment")
        return as_seen

    def _is_as_seen(self, connection: sa.Connection, part: sa.TableClause, last: sa.Row[Any] | None) -> bool:
        """Whether all jobs of a partition are done, and none came after the last one."""
        roles = self._backend.roles
        if connection.execute(statements.one_not_done(part, roles)).first() is not None:
            return False
        return connection.execute(statements.last_key(part, roles.key)).first() == last

    def _say_which(self, done: str, names: list[str]) -> None:
        if not names:
            return
        table, parts = self._table.fullname, [self._parts.shown(self._table, name) for name in names]
        log.info(
            "%s %d partition%s of %s: %s",
            *(done, len(parts), "" if len(parts) == 1 else "s", table, ", ".join(parts)),
            extra={"event": PARTITIONS_DROPPED, "queue": table, "partitions": parts, "done": done},
        )

    def _say_it_stays(self, name: str, why: str) -> None:
        part = self._parts.shown(self._table, name)
        fields = {"queue": self._table.fullname, "partition": part, "reason": why}
        log.info("partition %s stays: %s", part, why, extra={"event": PARTITION_STAYS, **fields})

    def _say_why_not(self, name: str, error: sa.exc.DBAPIError) -> None:
        said, part = reason(error), self._parts.shown(self._table, name)
        refused = self._backend.dialect.errors.refuses_account(error)
        needs = f"; to drop partitions an account needs {self._parts.needs}" if refused else ""
        log.warning(
            "partition %r of table %r was not dropped (%s): jobs are deleted one by one%s",
            *(part, self._table.fullname, said, needs),
            extra={"event": PARTITION_KEPT, "queue": self._table.fullname, "partition": part, "error": said},
        )


def _jobs(count: int, what: str) -> str:
    return f"{count:,} {'job is' if count == 1 else 'jobs are'} {what}"


def _is_over(unit: Unit, name: str, until: datetime) -> bool:
    period = period_named(unit, name)
    return period is not None and period.end <= until.date()

"""The ledger: which jobs were done in a destination, written in the transaction of the effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from claimjobs.database.connect import dialect_for, engine_of
from claimjobs.database.connection import Connector
from claimjobs.database.transactions import CallersTransaction, connection_in, savepoint
from claimjobs.dialects import Dialect, Key, dialect_of
from claimjobs.dialects.types import database_now
from claimjobs.errors import TableMissing
from claimjobs.instants import age_of, in_utc
from claimjobs.job import Job
from claimjobs.options import Liveness
from claimjobs.report import Report
from claimjobs.statements import ledger as statements
from claimjobs.table.create import MakeResult, make
from claimjobs.table.definitions import LEDGER_TABLE, LONGEST_NAME, ledger_table

AT_ONCE: Final = 1_000
"""Entries of one statement and one transaction of a clean-up."""


class Ledger:
    """Tells the first attempt of a job from a second one in a destination, which is another database than the queue's.

    A job runs again if its consumer dies after the effect was committed there and before the job was settled here. So
    the effect and its ledger entry are one transaction there, and a second attempt leaves the effect out:

        with destination.begin() as connection:
            if ledger.once(connection, job):
                ...  # the effect, through this connection

    `queue` names the queue in the destination, and a key names the job. A second job with one key is not done: so give
    another name (`emails-2`) to a queue whose table is created again and begins with id 1, and keep entries for longer
    than any job may wait for its next attempt. A key is compared as text: all consumers of a queue should describe its
    table alike.

    The destination needs the table `claimjobs_ledger`: `Ledger.make(url)`, or `claimjobs setup-tables --ledger`.
    """

    def __init__(self, queue: str, *, dialect: Dialect | None = None) -> None:
        """`dialect` overrides the detected capabilities of the destination. Raises ValueError for a bad name."""
        if not 0 < len(queue) <= LONGEST_NAME:
            raise ValueError(f"a queue's name in the ledger has 1 to {LONGEST_NAME} characters, not {len(queue)}")
        self.queue = queue
        self._dialect = dialect
        self._table = ledger_table()

    @staticmethod
    def make(bind: str | sa.URL | sa.Engine) -> MakeResult:
        """Make the table in a destination, if it is missing. Raises ConnectionFailed or ServerUnfit."""
        return make(engine_of(bind), [ledger_table()])

    def once(self, connection: CallersTransaction, job: Job | Key) -> bool:
        """Write an entry for a job in the transaction of this connection; return whether it is the first one.

        If another transaction has written the entry and is not committed, this waits for it, as for any lock; if that
        one is rolled back, this is the first. An error of the database is raised unchanged, such as a serialization
        failure of Postgres above READ COMMITTED: then the attempt fails, and the next one finds the entry. Raises
        BadArgument for a connection in AUTOCOMMIT and for an object that is no Connection or Session, TableMissing,
        or UnknownDatabase for a destination other than MySQL, MariaDB and Postgres.
        """
        used = connection_in(connection)
        key = job.key if isinstance(job, Job) else job
        dialect = self._dialect or _dialect_of(used)
        with _missing(dialect):
            return _insert(used, self._table, dialect, self._entry(key))

    def purge(self, bind: str | sa.URL | sa.Engine, older_than: timedelta | float, *, dry_run: bool = False) -> int:
        """Delete the entries of this queue that are so old, by the destination's clock; return how many.

        `older_than` is a timedelta or seconds; it must be longer than any job may wait for its next attempt. They are
        deleted and committed 1,000 at a time; with `dry_run` they are only counted. Raises ConnectionFailed
        or TableMissing.
        """
        age, engine = age_of(older_than), engine_of(bind)
        dialect = self._dialect or dialect_for(engine)
        connector = Connector(engine, dialect, Liveness(), Report())
        try:
            until = connector.transaction(_now) - age
            chosen = {"queue": self.queue, "until": until}
            with _missing(dialect):
                return self._count(connector, chosen) if dry_run else self._forget(connector, dialect, chosen)
        finally:
            connector.close()

    def _count(self, connector: Connector, chosen: dict[str, Any]) -> int:
        statement = statements.count_old_entries(self._table)
        return int(connector.scalar(statement, chosen))

    def _forget(self, connector: Connector, dialect: Dialect, chosen: dict[str, Any]) -> int:
        count, chunk = 0, AT_ONCE
        while chunk == AT_ONCE:
            for attempt in connector.attempts():
                with attempt as connection:
                    chunk = self._forget_chunk(connection, dialect, chosen)
            count += chunk
        return count

    def _forget_chunk(self, connection: sa.Connection, dialect: Dialect, chosen: dict[str, Any]) -> int:
        found = connection.scalars(statements.old_entries(self._table), {**chosen, "limit": AT_ONCE}).all()
        if found:
            connection.execute(statements.forget(self._table, dialect), {"claimjobs_keys": found})
        return len(found)

    def _entry(self, key: Key) -> dict[str, str]:
        parts = [_plain(part) for part in (key if isinstance(key, tuple) else (key,))]
        whole = json.dumps([self.queue, *parts])
        return {
            "digest": hashlib.sha256(whole.encode()).hexdigest(),
            "queue": self.queue,
            "job": _readable(", ".join(parts)),
        }


def _insert(connection: sa.Connection, table: sa.Table, dialect: Dialect, entry: dict[str, str]) -> bool:
    statement = statements.note_entry(table, dialect)
    if dialect.skips_duplicates:
        return connection.execute(statement, entry).first() is not None
    try:
        with savepoint(connection):
            connection.execute(statement, entry)
    except sa.exc.DBAPIError as error:
        if dialect.errors.code(error) not in dialect.errors.duplicate:
            raise
        return False
    return True


@contextmanager
def _missing(dialect: Dialect) -> Iterator[None]:
    """Raise TableMissing for the database's error of a missing table."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if dialect.errors.code(error) in dialect.errors.missing_table:
            raise TableMissing(LEDGER_TABLE) from error
        raise


def _dialect_of(connection: sa.Connection) -> Dialect:
    engine_of(connection.engine)  # raises UnknownDatabase where there is none
    return dialect_of(connection)


def _now(connection: sa.Connection) -> datetime:
    now: datetime = connection.execute(sa.select(database_now())).scalar_one()
    return now


def _plain(part: Any) -> str:
    """A part of a key as text, independent of the driver and the description of the table."""
    if isinstance(part, UUID):
        return part.hex
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part).hex()
    if isinstance(part, Enum):  # a table that is read from the database has its name
        return str(part.name)
    return in_utc(part).isoformat() if isinstance(part, datetime) else str(part)


def _readable(text: str) -> str:
    text = text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"

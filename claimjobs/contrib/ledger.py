"""The ledger of a destination: an effect in another database than the queue's happens once.

    ledger = Ledger("emails")
    make(archive, [ledger_table()])
    for job in batch:
        with archive.begin() as connection:
            if ledger.once(connection, job):
                ...  # the effect, through this connection

A job runs again if its consumer dies after the effect was committed there and before the job was settled here. So the
effect and an entry for the job are one transaction there, and a second attempt, which finds the entry, leaves it out.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

import sqlalchemy as sa

from claimjobs.database.connect import require_known
from claimjobs.database.transactions import CallersTransaction, connection_in, savepoint
from claimjobs.dialects import Key, dialect_of
from claimjobs.dialects.types import Instant, database_now, exact_text, table_options
from claimjobs.errors import UnfitTable
from claimjobs.job import Job, values_of
from claimjobs.key_text import same_text

LEDGER_TABLE: Final = "claimjobs_ledger"
LONGEST_NAME: Final = 255
"""Characters of a queue's name, and of a key as text."""


def ledger_table(metadata: sa.MetaData | None = None) -> sa.Table:
    """The table of a destination: one row for each job that was done there."""
    return sa.Table(
        LEDGER_TABLE,
        metadata or sa.MetaData(),
        sa.Column("digest", exact_text(64), primary_key=True, comment="SHA-256 of the queue's name and the job's key"),
        sa.Column("queue", exact_text(LONGEST_NAME), nullable=False),
        sa.Column("job", exact_text(LONGEST_NAME), nullable=False, comment="the job's key as text, perhaps cut short"),
        sa.Column("done_at", Instant, nullable=False, server_default=database_now()),
        sa.Index(f"{LEDGER_TABLE}_age", "queue", "done_at"),
        **table_options(),
    )


class Ledger:
    """Tells the first attempt of a job from a second one, in any destination that has the table `ledger_table()`.

    `queue` names the queue there, and a key names the job. A second job with one key is not done: so give another name
    (`emails-2`) to a queue whose table is created again and begins with id 1, and keep entries for longer than any job
    may wait for its next attempt. A key is compared as text: all consumers of a queue should describe its table alike.
    """

    def __init__(self, queue: str) -> None:
        if not 0 < len(queue) <= LONGEST_NAME:
            raise ValueError(f"a queue's name in the ledger has 1 to {LONGEST_NAME} characters, not {len(queue)}")
        self.queue = queue
        self._table = ledger_table()

    def once(self, connection: CallersTransaction, job: Job | Key) -> bool:
        """Write an entry for a job in the transaction of this connection; return whether it is the first one.

        If another transaction has written the entry and is not committed, this waits for it, as for any lock; if that
        one is rolled back, this is the first. An error of the database is raised unchanged, such as a serialization
        failure of Postgres above READ COMMITTED: then the attempt fails, and the next one finds the entry. In asyncio:
        `await session.run_sync(lambda sync: ledger.once(sync, job))`, with any driver. Raises
        BadArgument for a connection in AUTOCOMMIT and for an object that is no Connection or Session, UnfitTable
        without the table, or UnknownDatabase.
        """
        used = connection_in(connection, self._table)
        require_known(used.dialect.name)
        parts = [same_text(part) for part in values_of(job.key if isinstance(job, Job) else job)]
        digest = hashlib.sha256(json.dumps([self.queue, *parts]).encode()).hexdigest()
        # A text that every database can store, cut short.
        text = ", ".join(parts).replace("\0", "\\0").encode(errors="backslashreplace").decode()
        text = text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
        entry = {"digest": digest, "queue": self.queue, "job": text}
        dialect = dialect_of(used)
        try:
            if dialect.skips_duplicates:
                insert = dialect.insert_unless_there(self._table, [self._table.c.digest])
                return used.execute(insert.returning(self._table.c.digest), entry).first() is not None
            with savepoint(used):
                used.execute(sa.insert(self._table), entry)
        except sa.exc.DBAPIError as error:
            code = dialect.errors.code(error)
            if code in dialect.errors.missing_table:
                step = "make it by claimjobs.make(engine, [claimjobs.contrib.ledger.ledger_table()])"
                raise UnfitTable(f"table {LEDGER_TABLE!r} is not in this database: {step}") from error
            if code not in dialect.errors.duplicate:
                raise
            return False
        return True

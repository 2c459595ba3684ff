"""A handler for a table with a key of two columns."""

from __future__ import annotations

import os

import sqlalchemy as sa

from claimjobs import Job
from tests.process.work import AUDIT


def note_number(job: Job) -> None:
    """Say which number was done."""
    engine = sa.create_engine(os.environ["CLAIMJOBS_TEST_AUDIT"], poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.insert(AUDIT), {"job": job.get("nr", job.key), "pid": os.getpid(), "what": "done"})


def do_nothing(job: Job) -> None:
    """All is done at once."""


def note_return(job: Job, connection: sa.Connection) -> None:
    """Make the queue's predicate false."""
    connection.execute(sa.text("UPDATE books SET returned = 1 WHERE id = :key"), {"key": job.key})


def forget_return(job: Job, connection: sa.Connection) -> None:
    """Make the queue's predicate false, for all rows but the first."""
    if job.key != 1:
        note_return(job, connection)

"""A process that pays, in another database than the queue's, and dies before it can say so."""

from __future__ import annotations

import os
import signal

import sqlalchemy as sa

from claimjobs import Batch, Queue
from claimjobs.contrib.ledger import Ledger

PAYMENTS = sa.Table(
    "payments",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("what", sa.String(20), nullable=False),
    mysql_engine="InnoDB",
)


def pay(batch: Batch, destination: sa.Engine, ledger: Ledger) -> None:
    """Pay for each job, once."""
    for job in batch:
        with destination.begin() as connection:
            if ledger.once(connection, job):
                connection.execute(sa.insert(PAYMENTS).values(what=job.d))


def pay_and_die(url: str, destination: str) -> None:
    """Pay for all jobs of a batch, and die with it in hand."""
    engine, queue = sa.create_engine(destination), Queue(url)
    batch = queue.claim()
    pay(batch, engine, Ledger("jobs"))
    os.kill(os.getpid(), signal.SIGKILL)

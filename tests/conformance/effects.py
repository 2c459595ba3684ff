"""Effects: rows that a handler writes through the transaction that holds its batch."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import registry

from claimjobs import Batch, Queue
from claimjobs.table.definitions import article_table
from tests.backends import Backend

JOBS = article_table()
EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("name", sa.String(20)), mysql_engine="InnoDB")


class Effect:
    """A row of `effects`, for a session."""

    def __init__(self, name: str) -> None:
        self.name = name


registry().map_imperatively(Effect, EFFECTS, primary_key=[EFFECTS.c.name])


def queue_with_effects(backend: Backend) -> Queue:
    """Jobs are held by transactions; their effects go into a table without any constraint."""
    EFFECTS.create(backend.engine)
    return backend.queue(JOBS, hold="transaction")


def write(batch: Batch, name: str) -> None:
    batch.connection.execute(sa.insert(EFFECTS), {"name": name})


def effects(backend: Backend) -> list[str]:
    with backend.engine.connect() as connection:
        return sorted(connection.scalars(sa.select(EFFECTS.c.name)))


def left(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


def raise_at(batch: Batch, name: str, column: str = "d") -> None:
    """Work through a batch up to this job."""
    with batch:
        for job in batch:
            write(batch, job[column])
            if job[column] == name:
                raise ZeroDivisionError


def raise_after_all(batch: Batch, error: BaseException) -> None:
    """Work on a batch as a whole, say that its first job is done, and go wrong."""
    with batch:
        batch.connection.execute(sa.insert(EFFECTS), [{"name": job.d} for job in batch.jobs])
        batch.done(batch[0])
        raise error

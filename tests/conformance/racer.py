"""A process of the race: drains a queue and notes each job that it handled. Imports no test, so it starts soon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from claimjobs import Queue

AUDIT = sa.Table(
    "audit",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("job", sa.Integer, nullable=False),
    sa.Column("owner_id", sa.Integer, nullable=False),
    mysql_engine="InnoDB",
)


def race(url: str, options: Mapping[str, Any], size: int, everyone_is_here: Any) -> None:
    """Note every job of every batch, then say it is done; once all racers are at the start."""
    with Queue(url, **options) as queue:
        me = queue.owner_id
        everyone_is_here.wait()
        for batch in queue.batches(size, drain=True):
            with batch:
                note(queue.engine, [{"job": job.id, "owner_id": me} for job in batch.jobs])
                batch.done()
            if batch.lost:
                raise RuntimeError(f"lost {batch.lost}")
    queue.engine.dispose()


def note(engine: sa.Engine, handled: list[dict[str, int]]) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(AUDIT), handled)

"""A process that enqueues the same keys as others at once. Imports no test, so it starts soon."""

from __future__ import annotations

import random
from typing import Any

import sqlalchemy as sa

from claimjobs import Queue, job_table

VISITS = job_table(
    "visits",
    sa.MetaData(),
    sa.Column("customer", sa.String(40), nullable=False),
    sa.Column("day", sa.Integer, nullable=False),
    sa.Column("note", sa.String(8), nullable=False, server_default=""),
    unique=("customer", "day"),
)


def send(url: str, rounds: list[list[dict[str, Any]]], everyone: Any) -> int:
    """Enqueue each round's rows, in an order of one's own, when everyone is there; how many came in."""
    came = 0
    with Queue(url, VISITS) as queue:
        queue.check()
        for rows in rounds:
            everyone.wait()
            came += queue.enqueue(random.sample(rows, len(rows)), unique=("customer", "day"))
    queue.engine.dispose()
    return came

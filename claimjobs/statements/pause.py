"""Pause: a row of the table of queues says that nobody claims from a table."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects.types import database_now
from claimjobs.table.definitions import queues_table

QUEUES = queues_table()


def read(claims: str) -> sa.Select[Any]:
    """Since when the queue is paused, why, and the database's time. No row: it is not paused."""
    return sa.select(QUEUES.c.paused, QUEUES.c.reason, database_now().label("now")).where(_paused(claims))


def resumed(claims: str) -> sa.ColumnElement[Any]:
    """NULL while the queue is paused."""
    return sa.select(sa.literal(1)).where(~sa.exists().where(_paused(claims))).scalar_subquery()


def insert(claims: str, reason: str | None) -> sa.Insert:
    """Pause a queue that has no row."""
    return sa.insert(QUEUES).values(claims=claims, paused=database_now(), reason=reason)


def update(claims: str, reason: str | None) -> sa.Update:
    """Pause a queue that has a row. If it is paused already, only the reason changes."""
    since = sa.func.coalesce(QUEUES.c.paused, database_now())
    return sa.update(QUEUES).where(QUEUES.c.claims == claims).values(paused=since, reason=reason)


def delete(claims: str) -> sa.Delete:
    """Resume a queue."""
    return sa.delete(QUEUES).where(QUEUES.c.claims == claims)


def _paused(claims: str) -> sa.ColumnElement[bool]:
    return sa.and_(QUEUES.c.claims == claims, QUEUES.c.paused.is_not(None))

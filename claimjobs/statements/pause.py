"""Pause: a row of the table of queues says that nobody claims from a table."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects.types import database_now


def read(queues: sa.Table, claims: str) -> sa.Select[Any]:
    """Since when the queue is paused, why, and the database's time. No row: it is not paused."""
    return sa.select(queues.c.paused, queues.c.reason, database_now().label("now")).where(_paused(queues, claims))


def resumed(queues: sa.Table, claims: str) -> sa.ColumnElement[Any]:
    """NULL while the queue is paused."""
    return sa.select(sa.literal(1)).where(~sa.exists().where(_paused(queues, claims))).scalar_subquery()


def insert(queues: sa.Table, claims: str, reason: str | None) -> sa.Insert:
    """Pause a queue that has no row."""
    return sa.insert(queues).values(claims=claims, paused=database_now(), reason=reason)


def update(queues: sa.Table, claims: str, reason: str | None) -> sa.Update:
    """Pause a queue that has a row. If it is paused already, only the reason changes."""
    since = sa.func.coalesce(queues.c.paused, database_now())
    return sa.update(queues).where(queues.c.claims == claims).values(paused=since, reason=reason)


def delete(queues: sa.Table, claims: str) -> sa.Delete:
    """Resume a queue."""
    return sa.delete(queues).where(queues.c.claims == claims)


def _paused(queues: sa.Table, claims: str) -> sa.ColumnElement[bool]:
    return sa.and_(queues.c.claims == claims, queues.c.paused.is_not(None))

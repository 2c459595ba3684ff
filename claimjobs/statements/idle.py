"""Idle owners: they mark themselves as asleep, check for work now and then, and are woken."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.statements.find import Selection
from claimjobs.statements.owners import me, silent
from claimjobs.table.roles import ColumnRoles


def mark_asleep(owners: sa.Table) -> sa.Update:
    """Write a heartbeat of `me`, which sleeps until its next one. It writes no row if `me` was declared dead."""
    now = database_now()
    return (
        sa.update(owners)
        .where(me(owners), owners.c.died.is_(None))
        .values(beat=now, asleep=sa.func.coalesce(owners.c.asleep, now))
    )


def check(
    owners: sa.Table, work: sa.ColumnElement[Any] | None, dialect: Dialect, unknown: sa.Select[Any] | None = None
) -> sa.Select[Any]:
    """What an idle owner checks: whether there is work, how many other owners sleep, and how many are awake.

    `work`: an expression that is NULL if there is no work. None: this check is not about work. `unknown`: the ids of
    owners that hold jobs and have no row in `owners.alias("known")`, which are not the rows that are counted. With it
    the check is also whether there is something to reclaim: owners that seem dead, and jobs of unknown owners. Session
    locks are checked only for owners that are awake: an owner that sleeps holds no job.
    """
    columns = [
        (sa.literal(0) if work is None else sa.case((work.is_not(None), 1), else_=0)).label("work"),
        _others(owners, owners.c.asleep.is_not(None)).label("asleep"),
        _others(owners, owners.c.asleep.is_(None)).label("awake"),
    ]
    if unknown is not None:
        holder = dialect.sessions.lock_holder(owners, owners.c.id)
        lock_lost = sa.and_(owners.c.asleep.is_(None), owners.c.server_since.is_not(None), holder.is_(None))
        dead = sa.or_(owners.c.died.is_not(None), silent(owners, dialect, database_now()), lock_lost)
        columns.append((_others(owners, dead) + sa.case((sa.exists(unknown), 1), else_=0)).label("unwell"))
    claims = sa.bindparam("claimjobs_claims", type_=sa.String)
    return sa.select(*columns).select_from(owners).where(owners.c.claims == claims)


def work(source: ColumnRoles, selection: Selection) -> sa.ColumnElement[Any]:
    """NULL if no job is ready.

    It has the order of a claim, so that the planner uses the claim index. Without an order the planner may read the
    whole table, which can be long and hold only done jobs.
    """
    first = sa.select(sa.literal(1)).select_from(source.table).where(selection.found).order_by(*selection.order)
    return first.limit(1).scalar_subquery()


def wake(owners: sa.Table, dialect: Dialect, inserted: str | None = None) -> sa.Select[Any]:
    """Wake up to `number` idle owners, chosen at random: the sessions to interrupt then (see `Waking.wake`).

    `inserted`: the table of jobs; nobody is woken if its trigger does that.
    """
    claims = sa.bindparam("claimjobs_claims", type_=sa.String)
    asleep = sa.select(owners.c.id).where(owners.c.claims == claims, owners.c.asleep.is_not(None))
    if inserted is not None and dialect.wake_trigger is not None:
        asleep = asleep.where(sa.not_(dialect.wake_trigger.is_there(inserted)))
    # A subquery of its own: the planner must not call the function for rows that the LIMIT leaves out.
    chosen = (
        asleep.order_by(sa.func.random()).limit(sa.bindparam("claimjobs_number", type_=sa.Integer)).subquery("chosen")
    )
    return sa.select(dialect.waking.wake(owners, chosen.c.id))


def _others(owners: sa.Table, predicate: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    other = owners.c.id != sa.bindparam("claimjobs_me", type_=sa.Integer)
    return sa.func.count(sa.case((sa.and_(other, predicate), 1)))

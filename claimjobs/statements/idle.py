"""Sleepers: owners that wait to be woken, what one of them looks at now and then, and how it is called."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.statements.find import Selection
from claimjobs.statements.owners import me, unknown
from claimjobs.table.roles import Roles


def lie_down(owners: sa.Table) -> sa.Update:
    """A sign of life of `me`, which sleeps until its next beat; reaches no row when `me` was declared dead."""
    now = database_now()
    return (
        sa.update(owners)
        .where(me(owners), owners.c.died.is_(None))
        .values(beat=now, asleep=sa.func.coalesce(owners.c.asleep, now))
    )


def glance(owners: sa.Table, work: sa.ColumnElement[Any] | None) -> sa.Select[Any]:
    """What a sleeper looks at: is there work, how many others sleep, and how many stir.

    `work`: an expression that is NULL where there is none; None: this is no look for work.
    """
    columns = [
        (sa.literal(0) if work is None else sa.case((work.is_not(None), 1), else_=0)).label("work"),
        _others(owners, owners.c.asleep.is_not(None)).label("asleep"),
        _others(owners, owners.c.asleep.is_(None)).label("stirring"),
    ]
    claims = sa.bindparam("claimjobs_claims", type_=sa.String)
    return sa.select(*columns).select_from(owners).where(owners.c.claims == claims)


def careful(owners: sa.Table, work: sa.ColumnElement[Any] | None, *, dialect: Dialect, roles: Roles) -> sa.Select[Any]:
    """The same, and what there is for a janitor: others that seem dead, jobs in the hand of an unknown owner.

    Only of those that are awake the session locks are asked for: a sleeper holds no job.
    """
    now = database_now()
    # A sign of life from the future: the clock was set back. Whoever watches knows more (`census.Watch`).
    ahead = owners.c.beat > dialect.later(now, owners.c.lease)
    silent = sa.or_(dialect.later(owners.c.beat, owners.c.lease) < now, ahead)
    locked = owners.c.server_since.is_not(None)
    let_go = sa.and_(owners.c.asleep.is_(None), locked, dialect.lock_holder(owners.c.id).is_(None))
    unwell = _others(owners, sa.or_(owners.c.died.is_not(None), silent, let_go))
    # By another name: these owners are not the ones that are counted.
    strays = sa.case((sa.exists(unknown(roles, owners.alias("known"))), 1), else_=0)
    return glance(owners, work).add_columns((unwell + strays).label("unwell"))


def work(source: Roles, selection: Selection) -> sa.ColumnElement[Any]:
    """NULL where nothing is ready.

    In the order of a claim, so that it is found in the same way: a planner that is asked only whether there is a row
    may read the table, which can be long and hold nothing but what is done.
    """
    first = sa.select(sa.literal(1)).select_from(source.table).where(selection.ready).order_by(*selection.order)
    return first.limit(1).scalar_subquery()


def call(owners: sa.Table, dialect: Dialect) -> sa.Select[Any]:
    """Call up to `number` of those that sleep, whichever; what must still be interrupted (see `Dialect.call`)."""
    claims = sa.bindparam("claimjobs_claims", type_=sa.String)
    asleep = sa.select(owners.c.id).where(owners.c.claims == claims, owners.c.asleep.is_not(None))
    # The choice is a table of its own, so that nobody is called who was not chosen.
    chosen = (
        asleep.order_by(sa.func.random()).limit(sa.bindparam("claimjobs_number", type_=sa.Integer)).subquery("chosen")
    )
    return sa.select(dialect.call(chosen.c.id))


def _others(owners: sa.Table, predicate: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    other = owners.c.id != sa.bindparam("claimjobs_me", type_=sa.Integer)
    return sa.func.count(sa.case((sa.and_(other, predicate), 1)))

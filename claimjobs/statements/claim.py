"""Both phases in one statement, for a database that can return what it updates from within a CTE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.column_encoding import Parts, flat, lean
from claimjobs.statements.find import (
    KEY,
    PLACE,
    SUSPECT,
    Selection,
    in_order,
    keyset_order_of,
    same_key,
    suspicion,
)
from claimjobs.statements.lock import free_ones
from claimjobs.statements.mark import ownership
from claimjobs.statements.owners import alive
from claimjobs.table.roles import Roles

SETTLED: Final = "claimjobs_settled"
"""The first column of every row, also of the only one of an empty claim, in which those of a job are NULL: how many
jobs of the batch before were ours; less than 0, by `settled_by_the_dead`, if `me` was declared dead."""
REACHED: Final = "claimjobs_reached_{}"
"""Then, where a batch is settled, for each column of the key: which these were, as arrays, if not all were."""

_SIZE: Final = sa.bindparam("claimjobs_size", type_=sa.Integer)


def claim(
    roles: Roles,
    dialect: Dialect,
    selection: Selection,
    *,
    now: sa.ColumnElement[Any],
    owners: sa.Table,
    read: Parts,
    settled: sa.CTE | None = None,
) -> sa.Select[Any]:
    """Find and lock the first `size` jobs that are free, make them claimed by `me`, return them in order: these parts
    of them.

    If the first job is a suspect only its like are taken, half as many at most as they were (see claimjobs.phases); the
    others are locked for nothing until the statement ends. If `me` was declared dead nothing is taken.

    `settled`: what settles the batch before, of `meant` jobs, and returns their keys. It is made to run first: left to
    the planner it runs last, and consumers wait for each other.

    What is asked more than once, and what is locked, is MATERIALIZED: inlined, a planner may run it more than once, and
    a second run of a lock finds other rows. How suspect all have to be is told by the first of those that are locked:
    to ask the index reads a page of it.
    """
    told = _told(roles, dialect, alive(owners), settled)
    taken = _alike(roles, _locked(roles, selection, told))
    claimed, order = _claimed(roles, dialect, taken, selection=selection, now=now, columns=flat(read))
    jobs = lean(read, dialect, claimed)
    return sa.select(*told.c, *jobs).select_from(told.outerjoin(claimed, sa.true())).order_by(*order)


def settled_by_the_dead(count: int) -> int:
    """How many jobs were settled in the name of an owner that was declared dead, by what a row tells."""
    return -1 - count


def _told(roles: Roles, dialect: Dialect, lives: sa.ColumnElement[bool], settled: sa.CTE | None) -> sa.CTE:
    """Whether the owner lives, and what became of the batch before: known before anything is locked."""
    if settled is None:
        return _once(sa.select(sa.case((lives, 0), else_=-1).label(SETTLED)), "claimjobs_told")
    count = sa.select(sa.func.count().label(SETTLED)).select_from(settled).subquery("count").c[SETTLED]
    is_short = count < sa.bindparam("claimjobs_meant", type_=sa.Integer)
    keys = [settled.c[column.key] for column in roles.key]
    arrays = [sa.case((is_short, dialect.array(key))).label(REACHED.format(i)) for i, key in enumerate(keys)]
    return _once(sa.select(sa.case((lives, count), else_=-1 - count).label(SETTLED), *arrays), "claimjobs_told")


def _locked(roles: Roles, selection: Selection, told: sa.CTE) -> sa.CTE:
    """The first jobs that are free, and how suspect each is."""
    jobs = sa.select(*(column.label(KEY.format(i)) for i, column in enumerate(roles.key)))
    if roles.suspect is not None:
        jobs = jobs.add_columns(suspicion(roles).label(SUSPECT))
    is_to_be = sa.select(told.c[SETTLED] >= sa.literal_column("0")).scalar_subquery()
    return _once(free_ones(in_order(jobs.where(is_to_be), selection).limit(_SIZE), roles), "claimjobs_locked")


def _alike(roles: Roles, locked: sa.CTE) -> sa.CTE:
    """Those of them that are as suspect as the first."""
    if roles.suspect is None:
        return locked
    kind = _once(sa.select(locked.c[SUSPECT]).limit(sa.literal_column("1")), "claimjobs_kind").c[SUSPECT]
    keys = [locked.c[KEY.format(i)] for i in range(len(roles.key))]
    alike = sa.select(*keys).where(locked.c[SUSPECT] == sa.select(kind).scalar_subquery())
    return alike.limit(sa.select(_at_most(kind, _SIZE)).scalar_subquery()).cte("claimjobs_alike")


def _at_most(kind: sa.ColumnElement[Any], size: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """How many to take of those that are as suspect as `kind`."""
    return sa.case((kind > 0, sa.func.least(size, sa.func.greatest(kind // 2, 1))), else_=size)


def _claimed(
    roles: Roles,
    dialect: Dialect,
    taken: sa.CTE,
    *,
    selection: Selection,
    now: sa.ColumnElement[Any],
    columns: Sequence[sa.Column[Any]],
) -> tuple[sa.CTE, Sequence[sa.ColumnElement[Any]]]:
    """What marks the jobs that are taken and returns them, and what puts these in order.

    An UPDATE returns rows in any order. Where the columns that order them are returned, and were not written, they
    tell it, and the jobs can be reached by an array of keys: a tenth less work than to join them with their places.
    """
    written = ownership(roles, now)
    update = sa.update(roles.table).values(written)
    walk = keyset_order_of(selection)
    if walk is None or len(roles.key) > 1 or not set(columns) - set(written) >= set(walk.columns):
        places = dialect.numbered(taken, PLACE)
        claimed = update.where(same_key(roles, places)).returning(*columns, places.c[PLACE]).cte("claimjobs_claimed")
        return claimed, [claimed.c[PLACE]]
    claimed = update.where(dialect.is_one_of(roles.key[0], taken)).returning(*columns).cte("claimjobs_claimed")
    return claimed, walk.order_of(claimed)


def _once(rows: sa.Select[Any], name: str) -> sa.CTE:
    return rows.cte(name).prefix_with("MATERIALIZED")

"""Both phases in one statement, for a database that can return what it updates from within a CTE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.roles import Roles
from claimjobs.statements.find import KEY, PLACE, Selection, begun, head, lean, same_key, suspicion
from claimjobs.statements.lock import free_ones
from claimjobs.statements.mark import ownership
from claimjobs.statements.owners import alive

ALIVE: Final = "claimjobs_alive"
"""Whether `me` was not declared dead: the first column of every row, also of the only one of an empty claim. The last
column is a job's place; NULL in the only row of an empty claim."""
SETTLED: Final = "claimjobs_settled"
"""The second column, where a batch is settled before: how many jobs of it were ours."""
REACHED: Final = "claimjobs_reached_{}"
"""Then, for each column of the key: which these were, as arrays, if they are not as many as were meant."""


def claim(
    roles: Roles,
    dialect: Dialect,
    selection: Selection,
    *,
    now: sa.ColumnElement[Any],
    owners: sa.Table,
    columns: Sequence[sa.Column[Any]],
    settled: sa.CTE | None = None,
) -> sa.Select[Any]:
    """Find and lock the first `size` jobs that are free, make them claimed by `me`, return them in order: these columns
    of them, and the number of each.

    If the first job is a suspect only its like are taken, half as many at most as they were (see claimjobs.phases). If
    `me` was declared dead nothing is taken.

    `settled`: what settles the batch before, of `meant` jobs, and returns their keys. It is made to run first: left to
    the planner it runs last, and consumers wait for each other.

    What is locked is MATERIALIZED: inlined, a planner may run it more than once, and a second run finds other rows.
    """
    locked = _locked(roles, _after(settled, selection), alive(owners))
    claimed = _claimed(roles, dialect, locked, now=now, columns=columns)
    told = sa.select(alive(owners).label(ALIVE), *_reached(roles, settled)).subquery("told")
    jobs = (*lean(columns, dialect, claimed), claimed.c[PLACE])
    return sa.select(*told.c, *jobs).select_from(told.outerjoin(claimed, sa.true())).order_by(claimed.c[PLACE])


def _after(settled: sa.CTE | None, selection: Selection) -> Selection:
    if settled is None:
        return selection
    return replace(selection, ready=sa.and_(selection.ready, _count(settled) >= 0))


def _count(rows: sa.CTE) -> sa.ScalarSelect[Any]:
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()


def _reached(roles: Roles, settled: sa.CTE | None) -> list[sa.ColumnElement[Any]]:
    if settled is None:
        return []
    is_short = _count(settled) < sa.bindparam("claimjobs_meant", type_=sa.Integer)
    arrays = [
        sa.func.array(sa.select(settled.c[column.key]).scalar_subquery(), type_=sa.ARRAY(column.type))
        for column in roles.key
    ]
    named = [sa.case((is_short, array)).label(REACHED.format(i)) for i, array in enumerate(arrays)]
    return [_count(settled).label(SETTLED), *named]


def _locked(roles: Roles, selection: Selection, lives: sa.ColumnElement[bool]) -> sa.CTE:
    kind = head(roles, selection).scalar_subquery()
    keys = [column.label(KEY.format(i)) for i, column in enumerate(roles.key)]
    jobs = begun(sa.select(*keys).where(lives, suspicion(roles) == kind), selection)
    locked = free_ones(jobs.limit(_at_most(kind)), roles).cte("locked").prefix_with("MATERIALIZED")
    numbered = sa.select(*locked.c, sa.func.row_number().over().label(PLACE))
    return numbered.cte("numbered").prefix_with("MATERIALIZED")


def _at_most(kind: sa.ScalarSelect[Any]) -> sa.ColumnElement[Any]:
    """How many to take of those that are as suspect as `kind`."""
    size = sa.bindparam("claimjobs_size", type_=sa.Integer)
    return sa.case((kind > 0, sa.func.least(size, sa.func.greatest(kind // 2, 1))), else_=size)


def _claimed(roles: Roles, dialect: Dialect, locked: sa.CTE, *, now: Any, columns: Sequence[Any]) -> sa.CTE:
    rows = dialect.few(locked, locked.c[PLACE])
    update = sa.update(roles.table).values(ownership(roles, now)).where(same_key(roles, rows))
    return update.returning(*columns, rows.c[PLACE]).cte("claimed")

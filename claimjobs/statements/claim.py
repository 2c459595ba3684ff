"""Both phases in one statement, for a database that can return what it updates from within a CTE."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.roles import Roles
from claimjobs.statements.find import SUSPECT, Selection, find
from claimjobs.statements.mark import ownership
from claimjobs.statements.owners import alive

FOUND: Final = "claimjobs_found"
ALIVE: Final = "claimjobs_alive"
"""How many candidates phase 1 found, and whether `me` was not declared dead: the first two columns of every row,
also of the only one of an empty claim."""
PLACE: Final = "claimjobs_place"
"""Where a job stood among the candidates, from 1: the last column; NULL in the only row of an empty claim."""

KEY: Final = "claimjobs_k{}"
"""A key column among the candidates. No user's table has these names: a predicate, which stands in the same
WHERE, may name its columns plainly."""


def claim(
    roles: Roles,
    dialect: Dialect,
    selection: Selection,
    *,
    now: sa.ColumnElement[Any],
    owners: sa.Table,
) -> sa.Select[Any]:
    """Find `limit` candidates, lock the first `size` that are free, make them claimed by `me`, return them in order.

    If the first candidate is a suspect only its like are taken, half as many at most as they were (see
    claimjobs.claim). If `me` was declared dead nothing is taken.

    The CTEs are MATERIALIZED: inlined, a planner may run a subquery with a LIMIT more than once, and a second run
    finds other rows.
    """
    candidate = _candidates(roles, selection)
    locked = _locked(roles, dialect, candidate, ready=sa.and_(selection.ready, alive(owners)))
    claimed = _claimed(roles, dialect, locked, now)
    told = sa.select(sa.func.count().label(FOUND), alive(owners).label(ALIVE)).select_from(candidate).subquery("told")
    return sa.select(*told.c, *claimed.c).select_from(told.outerjoin(claimed, sa.true())).order_by(claimed.c[PLACE])


def _candidates(roles: Roles, selection: Selection) -> sa.CTE:
    first = find(roles, selection).subquery("first")
    keys = [first.c[column.key].label(KEY.format(i)) for i, column in enumerate(roles.key)]
    numbered = sa.select(*keys, first.c[SUSPECT], sa.func.row_number().over().label(PLACE))
    return numbered.cte("candidate").prefix_with("MATERIALIZED")


def _locked(roles: Roles, dialect: Dialect, candidate: sa.CTE, *, ready: Any) -> sa.CTE:
    # The sort runs below the locking: the LIMIT ends both, so `size` rows are locked, not `limit`.
    kind = sa.select(candidate.c[SUSPECT]).where(candidate.c[PLACE] == 1).scalar_subquery()
    walk = dialect.few(candidate, candidate.c[PLACE])
    return (
        sa.select(*(column for column in walk.c if column.name != SUSPECT))
        .select_from(walk.join(roles.table, _same_key(roles, walk)))
        .where(ready, walk.c[SUSPECT] == kind)
        .order_by(walk.c[PLACE])
        .limit(_at_most(kind))
        .with_for_update(skip_locked=True, key_share=True, of=roles.table)
        .cte("locked")
        .prefix_with("MATERIALIZED")
    )


def _at_most(kind: sa.ScalarSelect[Any]) -> sa.ColumnElement[Any]:
    """How many to take of those that are as suspect as `kind`."""
    size = sa.bindparam("claimjobs_size", type_=sa.Integer)
    return sa.case((kind > 0, sa.func.least(size, sa.func.greatest(kind // 2, 1))), else_=size)


def _claimed(roles: Roles, dialect: Dialect, locked: sa.CTE, now: Any) -> sa.CTE:
    walk = dialect.few(locked, locked.c[PLACE])
    update = sa.update(roles.table).values(ownership(roles, now)).where(_same_key(roles, walk))
    return update.returning(*roles.table.columns, walk.c[PLACE]).cte("claimed")


def _same_key(roles: Roles, other: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(column == other.c[KEY.format(i)] for i, column in enumerate(roles.key)))

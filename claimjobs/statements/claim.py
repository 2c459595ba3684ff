"""The claim in one statement, for a database that can return what it writes from within a CTE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.claim_rows import record_found
from claimjobs.statements.find import (
    KEY,
    PLACE,
    SIZE,
    SUSPECT,
    KeysetOrder,
    Selection,
    group_size,
    keyset_order_of,
    same_key,
)
from claimjobs.statements.lock import Parts, encoded, first_free, ownership
from claimjobs.statements.owners import alive
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.roles import ColumnRoles

SETTLED: Final = "claimjobs_settled_count"
"""The first column of every row: how many jobs of the batch before were settled. If `me` was declared dead, it is less
than 0 (see `settled_by_the_dead`). A claim of nothing returns one row, in which the columns of the job are NULL."""
SETTLED_KEY: Final = "claimjobs_reached_{}"
"""If a batch is settled, then these columns follow, one for each column of the key: the keys of the jobs that were
settled, as arrays. They are NULL if all jobs of the batch were."""


def claim(
    roles: ColumnRoles,
    dialect: Dialect,
    selection: Selection,
    *,
    now: sa.ColumnElement[Any],
    owners: sa.Table,
    read: Parts,
    settled: sa.CTE | None = None,
) -> sa.Select[Any]:
    """Find and lock the first `size` free jobs, make `me` their owner, and return the columns `read` in order.

    If the first job is a suspect, only suspects of a group of the same size are claimed, and at most half as many as
    that group. The other rows stay locked until the statement ends. If `me` was declared dead, nothing is claimed.

    `settled` is the DELETE or UPDATE that settles the previous batch; `meant` is how many jobs that has. The statement
    forces it to run before the claim. If the planner may choose, it runs last, and consumers wait for each other.

    What is read twice, and what locks, is MATERIALIZED. Without that a planner may run it twice, and the second run
    locks other rows. The size of the group is read from the first locked row: a query of its own reads a page more.
    """
    owner_alive = _alive(roles, dialect, owners, settled)
    keys = [column.label(KEY.format(i)) for i, column in enumerate(roles.key)]
    chosen = _chosen(roles, selection, owner_alive, keys)
    columns, written, in_order = [*read.plain, *read.joined], ownership(roles, now), keyset_order_of(selection)
    update = sa.update(roles.table).values(written)
    # An UPDATE returns rows in any order. If the columns of the order are returned, and the UPDATE does not write them,
    # they sort the rows, and the UPDATE finds its jobs by an array of keys. That is a tenth less work than a join with
    # the numbered jobs.
    if in_order is None or len(roles.key) > 1 or not set(columns) - set(written) >= set(in_order.columns):
        places = dialect.numbered(chosen, PLACE)
        claimed = update.where(same_key(roles, places)).returning(*columns, places.c[PLACE]).cte("claimjobs_claimed")
        order: list[sa.ColumnElement[Any]] = [claimed.c[PLACE]]
    else:
        [values] = chosen.c
        is_chosen = roles.key[0] == sa.any_(dialect.array(values))
        claimed = update.where(is_chosen).returning(*columns).cte("claimjobs_claimed")
        order = in_order.order_of(claimed)
    jobs = encoded(read, dialect, claimed)
    return sa.select(*owner_alive.c, *jobs).select_from(owner_alive.outerjoin(claimed, sa.true())).order_by(*order)


def claim_batch(
    roles: ColumnRoles,
    dialect: Dialect,
    selection: Selection,
    order: KeysetOrder,
    *,
    claim_rows: ClaimRows,
    owners: sa.Table,
    read: Parts,
) -> sa.Select[Any]:
    """As `claim`, but no job is written: `me` gets the batch `number` with their keys.

    The next statement of the transaction must look at the claim rows again: see `claim_rows.settle_and_check`.
    """
    owner_alive = _alive(roles, dialect, owners, None)
    columns = [*read.plain, *read.joined]
    chosen = _chosen(roles, selection, owner_alive, columns)
    recorded = record_found(claim_rows, chosen).cte("claimjobs_recorded")
    jobs = sa.select(*owner_alive.c, *encoded(read, dialect, chosen)).add_cte(recorded)
    return jobs.select_from(owner_alive.outerjoin(chosen, sa.true())).order_by(*order.order_of(chosen))


def settled_by_the_dead(count: int) -> int:
    """How many jobs were settled for an owner that was declared dead, from a count less than 0."""
    return -1 - count


def _alive(roles: ColumnRoles, dialect: Dialect, owners: sa.Table, settled: sa.CTE | None) -> sa.CTE:
    """Whether the owner is alive, and what was settled. It runs before anything is locked."""
    is_alive = alive(owners)
    if settled is None:
        return _once(sa.select(sa.case((is_alive, 0), else_=-1).label(SETTLED)), "claimjobs_alive")
    count = sa.select(sa.func.count().label(SETTLED)).select_from(settled).subquery("count").c[SETTLED]
    is_short = count < sa.bindparam("claimjobs_meant", type_=sa.Integer)
    keys = [settled.c[column.key] for column in roles.key]
    arrays = [sa.case((is_short, dialect.array(key))).label(SETTLED_KEY.format(i)) for i, key in enumerate(keys)]
    return _once(sa.select(sa.case((is_alive, count), else_=-1 - count).label(SETTLED), *arrays), "claimjobs_alive")


def _chosen(
    roles: ColumnRoles, selection: Selection, owner_alive: sa.CTE, columns: Sequence[sa.ColumnElement[Any]]
) -> sa.CTE:
    """The first free jobs, locked: these columns of those whose group of suspects is as large as that of the first."""
    jobs = sa.select(*columns)
    if roles.suspect is not None:
        jobs = jobs.add_columns(group_size(roles).label(SUSPECT))
    is_alive = sa.select(owner_alive.c[SETTLED] >= sa.literal_column("0")).scalar_subquery()
    locked = _once(first_free(jobs.where(is_alive), selection, roles), "claimjobs_locked")
    if roles.suspect is None:
        return locked
    first = _once(sa.select(locked.c[SUSPECT]).limit(sa.literal_column("1")), "claimjobs_first_suspect").c[SUSPECT]
    wanted = [locked.c[str(column.key)] for column in columns]
    group = sa.select(*wanted).where(locked.c[SUSPECT] == sa.select(first).scalar_subquery())
    # In Python: `claimjobs.claim.candidates.at_most`.
    at_most = sa.case((first > 0, sa.func.least(SIZE, sa.func.greatest(first // 2, 1))), else_=SIZE)
    return group.limit(sa.select(at_most).scalar_subquery()).cte("claimjobs_same_group")


def _once(rows: sa.Select[Any], name: str) -> sa.CTE:
    return rows.cte(name).prefix_with("MATERIALIZED")

"""Claims: lock the candidates that are still due, and mark them. Some databases find and lock in one statement, or do
all of it in one.

The columns of a job are returned as they are, in another form, or several as one text, if the driver reads that faster
(docs/decisions/0065). `claimjobs.claim.row_reader` reads each form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.claim_rows import MEANT, record_found
from claimjobs.statements.find import (
    KEY,
    ROW_NUMBER,
    SIZE,
    SUSPECT,
    KeysetOrder,
    Selection,
    find,
    group_size,
    in_order,
    keyset_order_of,
    same_key,
    skip_locked,
)
from claimjobs.statements.owners import alive
from claimjobs.table.claim_rows import ME, ClaimRows
from claimjobs.table.columns import CLAIMED
from claimjobs.table.roles import ColumnRoles

SETTLED: Final = "claimjobs_settled_count"
"""The first column of every row: how many jobs of the batch before were settled. If `me` was declared dead, it is less
than 0: -1 minus their number. A claim of nothing returns one row, in which the columns of the job are NULL."""
SETTLED_KEY: Final = "claimjobs_reached_{}"
"""If a batch is settled, then these columns follow, one for each column of the key: the keys of the jobs that were
settled, as arrays. They are NULL if all jobs of the batch were."""

SENT: Final = "claimjobs_sent_{}"
"""The label of a column that is returned in another form."""


class Parts(NamedTuple):
    """The columns of a table that a statement returns."""

    plain: Sequence[sa.Column[Any]]
    joined: Sequence[sa.Column[Any]]
    """These are one text, behind the plain ones. `suspect` is the first of them."""


def parts_of(columns: Sequence[sa.Column[Any]], dialect: Dialect, roles: ColumnRoles) -> Parts:
    """How to return these columns. The key is not joined."""
    joined = [column for column in columns if dialect.from_text(column) and column not in set(roles.key)]
    joined.sort(key=lambda column: column is not roles.suspect)
    return Parts([column for column in columns if column not in set(joined)], joined)


def encoded(
    read: Parts, dialect: Dialect, of: sa.FromClause | None = None, *, last: sa.ColumnElement[int] | None = None
) -> list[sa.ColumnElement[Any]]:
    """The columns to SELECT or to return. `of`: from this subquery, which has the columns of the table.

    `last`: a number at the end, which `last_of` reads.
    """
    plain, joined = ([column if of is None else of.c[column.key] for column in part] for part in read)
    columns: list[sa.ColumnElement[Any]] = []
    for i, column in enumerate(plain):
        sent = dialect.encoded(column)
        # An ORDER BY of the user's that names a column must not find its other form.
        label = column.name if sent is column else SENT.format(i)
        columns.append(sa.type_coerce(sent, sa.types.NullType()).label(label))
    end = [] if last is None else [last]
    if not joined:
        return [*columns, *end]
    text = sa.type_coerce(dialect.joined([*joined, *end]), sa.types.NullType())
    return [*columns, text.label("claimjobs_joined")]


def last_of(row: Sequence[Any]) -> int:
    """The number at the end of a row."""
    return int(str(row[-1]).rpartition(",")[2])


def lock(roles: ColumnRoles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Lock the first `size` of the `candidates` that nobody else has locked and that are still due.

    The recheck is needed: between the phases another consumer may have claimed a candidate and committed.
    """
    jobs = sa.select(*encoded(read, dialect)).where(selection.due)
    return skip_locked(dialect.only_candidates(jobs, roles.key, selection.order, roles.key_index).limit(SIZE), roles)


def find_and_lock(roles: ColumnRoles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Find and lock in one statement, for a database that can lock one of two joined tables in the order of the other.

    It returns the columns `read`, and at the end the number of each job among the `limit` candidates.
    """
    found = find(roles, selection).subquery("first")
    keys = [found.c[column.key].label(KEY.format(i)) for i, column in enumerate(roles.key)]
    number = sa.func.row_number().over().label(ROW_NUMBER)
    candidate = sa.select(*keys, found.c[SUSPECT], number).subquery("candidate")
    wanted = sa.select(*encoded(read, dialect, last=candidate.c[ROW_NUMBER])).where(selection.due)
    joined = candidate.join(roles.table, same_key(roles, candidate))
    return skip_locked(dialect.join_in_order(wanted, joined, roles.key_index).limit(SIZE), roles)


def lock_first(roles: ColumnRoles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Find and lock in one statement, for a database that `locks_in_order`: it locks each row before it reads the next.

    Rows that it skips because others have locked them are not counted: the number of each job is 0.
    """
    columns = encoded(read, dialect, last=sa.literal(0).label(ROW_NUMBER))
    return in_order(sa.select(*columns), selection, SIZE, locks=roles)


def mark(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any], owners: sa.Table) -> sa.Update:
    """Mark the jobs `keys`, which this transaction has locked, as claimed by `me`; none if `me` was declared dead."""
    update = sa.update(roles.table).where(alive(owners)).values(ownership(roles, now))
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


def ownership(roles: ColumnRoles, now: sa.ColumnElement[Any]) -> dict[Any, Any]:
    """The values that a claim writes into a job."""
    return roles.state.becomes(CLAIMED, ME) | ({} if roles.owner_date is None else {roles.owner_date: now})


# --- all in one statement: for a database that can return what it writes from within a CTE --------------------


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
    """Find and lock the first `size` jobs, make `me` their owner, and return the columns `read` in order.

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
    columns, written, keyset_order = [*read.plain, *read.joined], ownership(roles, now), keyset_order_of(selection)
    update = sa.update(roles.table).values(written)
    # An UPDATE returns rows in any order. If the columns of the order are returned, and the UPDATE does not write them,
    # they sort the rows, and the UPDATE finds its jobs by an array of keys. That is a tenth less work than a join with
    # the numbered jobs.
    if keyset_order is None or len(roles.key) > 1 or not set(columns) - set(written) >= set(keyset_order.columns):
        few = dialect.numbered(chosen, ROW_NUMBER)
        claimed = update.where(same_key(roles, few)).returning(*columns, few.c[ROW_NUMBER]).cte("claimjobs_claimed")
        order: list[sa.ColumnElement[Any]] = [claimed.c[ROW_NUMBER]]
    else:
        [values] = chosen.c
        is_chosen = roles.key[0] == sa.any_(dialect.array(values))
        claimed = update.where(is_chosen).returning(*columns).cte("claimjobs_claimed")
        order = keyset_order.order_of(claimed)
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
    """As `claim`, but no job is written: `me` gets the claim row `number` with their keys.

    The next statement of the transaction must look at the claim rows again: see `claim_rows.settle_and_check`.
    """
    owner_alive = _alive(roles, dialect, owners, None)
    chosen = _chosen(roles, selection, owner_alive, [*read.plain, *read.joined])
    recorded = record_found(claim_rows, chosen).cte("claimjobs_recorded")
    jobs = sa.select(*owner_alive.c, *encoded(read, dialect, chosen)).add_cte(recorded)
    return jobs.select_from(owner_alive.outerjoin(chosen, sa.true())).order_by(*order.order_of(chosen))


def _alive(roles: ColumnRoles, dialect: Dialect, owners: sa.Table, settled: sa.CTE | None) -> sa.CTE:
    """Whether the owner is alive, and what was settled. It runs before anything is locked."""
    is_alive = alive(owners)
    if settled is None:
        return _once(sa.select(sa.case((is_alive, 0), else_=-1).label(SETTLED)), "claimjobs_alive")
    count = sa.select(sa.func.count().label(SETTLED)).select_from(settled).subquery("count").c[SETTLED]
    is_short = count < MEANT
    keys = [settled.c[column.key] for column in roles.key]
    # Of a domain the array is one, too, and no driver knows the type of its values.
    plain = [sa.cast(dialect.array(key), dialect.array_type(key)) for key in keys]
    arrays = [sa.case((is_short, array)).label(SETTLED_KEY.format(i)) for i, array in enumerate(plain)]
    return _once(sa.select(sa.case((is_alive, count), else_=-1 - count).label(SETTLED), *arrays), "claimjobs_alive")


def _chosen(
    roles: ColumnRoles, selection: Selection, owner_alive: sa.CTE, columns: Sequence[sa.ColumnElement[Any]]
) -> sa.CTE:
    """Lock the first jobs: these columns of those whose group of suspects is as large as that of the first."""
    jobs = sa.select(*columns)
    if roles.suspect is not None:
        jobs = jobs.add_columns(group_size(roles).label(SUSPECT))
    is_alive = sa.select(owner_alive.c[SETTLED] >= sa.literal_column("0")).scalar_subquery()
    locked = _once(in_order(jobs.where(is_alive), selection, SIZE, locks=roles), "claimjobs_locked")
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

"""Claims per batch: record a claim row, take jobs out of it, and find whose claim rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.types import database_now
from claimjobs.statements.owners import alive
from claimjobs.table.claim_rows import ME, ClaimRows
from claimjobs.table.columns import CLAIMED

NUMBER: Final = sa.bindparam("claimjobs_number", type_=sa.BigInteger)
"""The number of a claim row among those of its owner."""
MEANT: Final = sa.bindparam("claimjobs_meant", type_=sa.Integer)
"""How many jobs a claim row has, or a batch to settle."""
NEW_ME: Final = sa.bindparam("claimjobs_new_me", type_=sa.Integer)
NEW_NUMBER: Final = sa.bindparam("claimjobs_new_number", type_=sa.BigInteger)
"""The claim row that was recorded by the statement before."""
FIRST: Final = sa.bindparam("claimjobs_first", type_=sa.BigInteger)
LAST: Final = sa.bindparam("claimjobs_last", type_=sa.BigInteger)
"""The smallest and the largest of `keys`, if these are single whole numbers."""
NOT_ALL_SETTLED: Final[sa.ColumnElement[str]] = sa.literal_column(
    "'claimjobs: not all jobs of a batch could be settled, each is looked at now'"
)
"""The server says that this is no number. So it is in the error, and in the server's log."""


def record(claim_rows: ClaimRows, owners: sa.Table) -> sa.Insert:
    """Insert a claim row of `me` with the jobs `keys`, which this transaction has locked.

    It writes no row if `me` was declared dead, or if a job is in a claim row now. Locks do not show that: a row that
    another claim had locked is not changed by it. But that claim was committed before this transaction got the lock, so
    a statement that begins after that sees its claim row.
    """
    now_open = claim_rows.keys(claim_rows.overlap(FIRST, LAST)).subquery("claimjobs_open")
    taken = sa.exists().where(claim_rows.dialect.among_some([*now_open.c], "claimjobs_keys"))
    keys = claim_rows.dialect.json_of_keys(claim_rows.key, "claimjobs_json")
    which: sa.Select[Any] = sa.select().where(alive(owners), ~taken)
    return _insert(claim_rows, which, MEANT, keys, ends=(FIRST, LAST)).execution_options(preserve_rowcount=True)


def record_found(claim_rows: ClaimRows, found: sa.FromClause) -> sa.Insert:
    """Insert a claim row of `me` with all jobs in `found`, which has the columns of the table, if there is one."""
    columns = [found.c[column.key] for column in claim_rows.key]
    ends = (sa.func.min(columns[0]), sa.func.max(columns[0]))
    some: sa.Select[Any] = sa.select().select_from(found).having(sa.func.count() > sa.literal_column("0"))
    keys = claim_rows.dialect.json_of_rows(columns)
    return _insert(claim_rows, some, sa.func.count(), keys, ends=ends).returning(claim_rows.table.c.number)


def settle_and_check(settle: sa.Delete | sa.Update, claim_rows: ClaimRows) -> sa.Select[int, int]:
    """Settle the `meant` jobs of the claim row `number`. Delete the claim row `new_number` of `new_me` if another claim
    row has some of its jobs. Two columns: 0; and how many claim rows were deleted.

    `settle`: the statement that closes the claim row and writes its jobs. If it reaches fewer, this one raises an
    error, so that the transaction is rolled back.
    """
    settled = settle.cte("claimjobs_settled")
    checked = sa.case((_count(settled) == MEANT, sa.literal_column("'0'")), else_=NOT_ALL_SETTLED)
    table = claim_rows.table
    new = sa.and_(claim_rows.of(NEW_ME), table.c.number == NEW_NUMBER)
    mine = claim_rows.keys(new).cte("claimjobs_new")
    ends = [
        sa.select(end).where(new).correlate(None).scalar_subquery() for end in (table.c.first_key, table.c.last_key)
    ]
    others = claim_rows.keys(sa.and_(claim_rows.overlap(*ends), ~new))
    columns: tuple[Any, ...] = tuple(mine.c)
    taken = sa.exists().select_from(mine).where((columns[0] if len(columns) == 1 else sa.tuple_(*columns)).in_(others))
    deleted = sa.delete(table).where(new, taken).returning(table.c.number).cte("claimjobs_deleted")
    return sa.select(sa.cast(checked, sa.Integer), _count(deleted))


def _count(rows: sa.CTE) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()


def _insert(
    claim_rows: ClaimRows,
    which: sa.Select[Any],
    jobs: sa.ColumnElement[int],
    keys: sa.ColumnElement[Any],
    *,
    ends: Sequence[sa.ColumnElement[Any]],
) -> sa.Insert:
    values = {"owner_id": ME, "number": NUMBER, "claims": sa.literal(claim_rows.recorded_as, sa.String), "jobs": jobs}
    ranges = dict(zip(("first_key", "last_key"), ends, strict=True)) if claim_rows.have_ranges else {}
    row: dict[str, Any] = {**values, "keys": keys, **ranges, "since": database_now()}
    return sa.insert(claim_rows.table).from_select([*row], which.add_columns(*row.values()), include_defaults=False)


def open_now(claim_rows: ClaimRows) -> sa.Select[Any]:
    """Those of `keys` that are in a claim row now."""
    now_open = claim_rows.keys(claim_rows.overlap(FIRST, LAST)).subquery("claimjobs_open")
    return sa.select(*now_open.c).where(claim_rows.dialect.among_some([*now_open.c], "claimjobs_keys"))


def close(claim_rows: ClaimRows) -> sa.Delete:
    """Delete the claim row `number` of `me`, if it has `meant` jobs: it is settled as a whole."""
    table = claim_rows.table
    return sa.delete(table).where(claim_rows.of(ME), table.c.number == NUMBER, table.c.jobs == MEANT)


def locked(claim_rows: ClaimRows, *, skip_locked: bool = False) -> sa.Select[Any]:
    """Lock the claim rows of `me`: their numbers. `skip_locked`: those that no other session has locked."""
    return sa.select(claim_rows.table.c.number).where(claim_rows.of(ME)).with_for_update(skip_locked=skip_locked)


def count(claim_rows: ClaimRows) -> sa.Select[Any]:
    """How many claim rows `me` has."""
    return sa.select(sa.func.count()).select_from(claim_rows.table).where(claim_rows.of(ME))


def held(claim_rows: ClaimRows) -> sa.Select[Any]:
    """The keys in the claim rows of `me`."""
    return claim_rows.keys(claim_rows.of(ME))


def numbered(claim_rows: ClaimRows) -> sa.Select[Any]:
    """The keys in the claim rows of `me`, each after the number of its claim row."""
    return claim_rows.keys(claim_rows.of(ME), claim_rows.table.c.number)


def unknown(claim_rows: ClaimRows, owners: sa.FromClause) -> sa.Select[Any]:
    """The ids of owners that have claim rows and no row: as `owners.unknown`."""
    owner_id = claim_rows.table.c.owner_id
    return sa.select(owner_id).where(claim_rows.ours, ~sa.exists().where(owners.c.id == owner_id)).distinct()


def shorten(claim_rows: ClaimRows) -> sa.Update:
    """Let the claim row `number` of `me` have only the jobs `keys`."""
    table = claim_rows.table
    keys = claim_rows.dialect.json_of_keys(claim_rows.key, "claimjobs_json")
    return sa.update(table).where(claim_rows.of(ME), table.c.number == NUMBER).values(keys=keys, jobs=MEANT)


def close_all(claim_rows: ClaimRows) -> sa.Delete:
    """Delete all claim rows of `me`."""
    return sa.delete(claim_rows.table).where(claim_rows.of(ME))


def by_owner(claim_rows: ClaimRows) -> sa.Select[Any]:
    """One row for each owner with claim rows: `owner_id`, `jobs`."""
    owner, jobs = claim_rows.table.c.owner_id, sa.func.sum(claim_rows.table.c.jobs)
    columns: tuple[Any, ...] = (owner, sa.cast(jobs, sa.BigInteger).label("jobs"))
    return sa.select(*columns).where(claim_rows.ours).group_by(owner)


def how_many_jobs(claim_rows: ClaimRows) -> sa.Select[Any]:
    """How many `jobs` are in claim rows, and the name of their state, as `stored_jobs.by_state` has them."""
    jobs = sa.cast(sa.func.coalesce(sa.func.sum(claim_rows.table.c.jobs), 0), sa.BigInteger).label("jobs")
    columns: tuple[Any, ...] = (jobs, sa.literal(CLAIMED, sa.String).label("claimjobs_state"))
    return sa.select(*columns).where(claim_rows.ours)

"""Claims per batch: record a batch, take jobs out of it, and find whose batches are open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.types import database_now
from claimjobs.statements.owners import alive
from claimjobs.table.claim_rows import ClaimRows

_ME: Final = sa.bindparam("claimjobs_me", type_=sa.Integer)
NUMBER: Final = sa.bindparam("claimjobs_number", type_=sa.BigInteger)
"""The number of a batch among those of its owner."""
JOBS: Final = sa.bindparam("claimjobs_meant", type_=sa.Integer)
"""How many jobs a batch has."""
NEW_ME: Final = sa.bindparam("claimjobs_new_me", type_=sa.Integer)
NEW_NUMBER: Final = sa.bindparam("claimjobs_new_number", type_=sa.BigInteger)
"""The batch that was recorded by the statement before."""
FIRST: Final = sa.bindparam("claimjobs_first", type_=sa.BigInteger)
LAST: Final = sa.bindparam("claimjobs_last", type_=sa.BigInteger)
"""The smallest and the largest of `keys`, if these are single whole numbers."""
NOT_WHOLE: Final[sa.ColumnElement[str]] = sa.literal_column(
    "'claimjobs: not all jobs of a batch could be settled, each is looked at now'"
)
"""The server says that this is no number. So it is in the error, and in the server's log."""


def record(batches: ClaimRows, owners: sa.Table) -> sa.Insert:
    """Insert a batch of `me` with the jobs `keys`, which this transaction has locked.

    It writes no row if `me` was declared dead, or if a job is in a claim row now. Locks do not show that: a row that
    another claim had locked is not changed by it. But that claim was committed before this transaction got the lock, so
    a statement that begins after that sees its batch.
    """
    now_open = batches.keys(batches.overlap(FIRST, LAST)).subquery("claimjobs_open")
    taken = sa.exists().where(batches.dialect.among_some([*now_open.c], "claimjobs_keys"))
    keys = batches.dialect.json_of_keys(batches.key, "claimjobs_json")
    ends = (FIRST, LAST) if batches.have_ranges else ()
    row = _row(batches, JOBS, keys, ends).where(alive(owners), ~taken)
    return _inserted(batches, row).execution_options(preserve_rowcount=True)


def record_found(batches: ClaimRows, found: sa.FromClause) -> sa.Insert:
    """Insert a batch of `me` with all jobs in `found`, which has the columns of the table, if there is one."""
    columns = [found.c[column.key] for column in batches.key]
    keys = batches.dialect.json_of_rows(columns)
    ends = (sa.func.min(columns[0]), sa.func.max(columns[0])) if batches.have_ranges else ()
    row = _row(batches, sa.func.count(), keys, ends).select_from(found).having(sa.func.count() > sa.literal_column("0"))
    return _inserted(batches, row).returning(batches.table.c.number)


def settle_and_check(settle: sa.Delete | sa.Update, batches: ClaimRows) -> sa.Select[int, int]:
    """Settle the `meant` jobs of the batch `number`, and take those jobs out of the batch `new_number` of `new_me` that
    another claim row has, too. Two columns: 0; and how many jobs were taken out.

    `settle`: the statement that closes the batch and writes its jobs. If it reaches fewer, this one raises an error, so
    that the transaction is rolled back.
    """
    settled = settle.cte("claimjobs_settled")
    checked = sa.case((_count(settled) == JOBS, sa.literal_column("'0'")), else_=NOT_WHOLE)
    taken, *changes = _without_taken(batches, _new(batches))
    return sa.select(sa.cast(checked, sa.Integer), _count(taken)).add_cte(*changes)


def _without_taken(batches: ClaimRows, new: sa.ColumnElement[bool]) -> tuple[sa.CTE, sa.CTE, sa.CTE]:
    """The jobs of the new batch that another one has, too; and two changes: only one of them finds a row."""
    mine = batches.keys(new).cte("claimjobs_new")
    first, last = batches.table.c.first_key, batches.table.c.last_key
    ends = [sa.select(end).where(new).correlate(None).scalar_subquery() for end in (first, last)]
    others = batches.keys(sa.and_(batches.overlap(*ends), ~new))
    taken = sa.select(*mine.c).where(_one_of(mine, others)).cte("claimjobs_taken")
    rest = sa.select(*mine.c).where(~_one_of(mine, sa.select(*taken.c))).cte("claimjobs_rest")
    any_taken, any_left = sa.exists().select_from(taken), sa.exists().select_from(rest)
    keys = sa.select(batches.dialect.json_of_rows([*rest.c])).scalar_subquery()
    table, number = batches.table, batches.table.c.number
    shorten = sa.update(table).where(new, any_taken, any_left).values(keys=keys, jobs=_count(rest)).returning(number)
    delete = sa.delete(table).where(new, any_taken, ~any_left).returning(number)
    return taken, shorten.cte("claimjobs_shortened"), delete.cte("claimjobs_deleted")


def new_keys(batches: ClaimRows) -> sa.Select[Any]:
    """The keys in the batch `new_number` of `new_me`."""
    return batches.keys(_new(batches))


def _new(batches: ClaimRows) -> sa.ColumnElement[bool]:
    return sa.and_(batches.of(NEW_ME), batches.table.c.number == NEW_NUMBER)


def _one_of(keys: sa.CTE, some: sa.Select[Any]) -> sa.ColumnElement[bool]:
    """Whether a row of keys is one of these."""
    columns: tuple[Any, ...] = tuple(keys.c)
    return (columns[0] if len(columns) == 1 else sa.tuple_(*columns)).in_(some)


def _count(rows: sa.CTE) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()


def _row(
    batches: ClaimRows,
    jobs: sa.ColumnElement[int],
    keys: sa.ColumnElement[Any],
    ends: Sequence[sa.ColumnElement[Any]],
) -> sa.Select[Any]:
    claims = sa.literal(batches.claims, sa.String)
    return sa.select(_ME, NUMBER, claims, jobs, keys, *ends, database_now())


def _inserted(batches: ClaimRows, row: sa.Select[Any]) -> sa.Insert:
    ends = ("first_key", "last_key") if batches.have_ranges else ()
    columns = ("owner_id", "number", "claims", "jobs", "keys", *ends, "since")
    return sa.insert(batches.table).from_select(columns, row, include_defaults=False)


def open_now(batches: ClaimRows) -> sa.Select[Any]:
    """Those of `keys` that are in a claim row now."""
    now_open = batches.keys(batches.overlap(FIRST, LAST)).subquery("claimjobs_open")
    return sa.select(*now_open.c).where(batches.dialect.among_some([*now_open.c], "claimjobs_keys"))


def close(batches: ClaimRows) -> sa.Delete:
    """Delete the batch `number` of `me`, if it has `meant` jobs: it is settled as a whole."""
    table = batches.table
    return sa.delete(table).where(batches.of(_ME), table.c.number == NUMBER, table.c.jobs == JOBS)


def locked(batches: ClaimRows) -> sa.Select[Any]:
    """Lock the batches of `me`: their numbers."""
    return sa.select(batches.table.c.number).where(batches.of(_ME)).with_for_update()


def seized(batches: ClaimRows) -> sa.Select[Any]:
    """Lock the batches of `me` that no other session has locked: their numbers."""
    return sa.select(batches.table.c.number).where(batches.of(_ME)).with_for_update(skip_locked=True)


def count(batches: ClaimRows) -> sa.Select[Any]:
    """How many batches `me` has."""
    return sa.select(sa.func.count()).select_from(batches.table).where(batches.of(_ME))


def held(batches: ClaimRows) -> sa.Select[Any]:
    """The keys in the batches of `me`."""
    return batches.keys(batches.of(_ME))


def unknown(batches: ClaimRows, owners: sa.FromClause) -> sa.Select[Any]:
    """The ids of owners that have batches and no row: as `owners.unknown`."""
    owner_id = batches.table.c.owner_id
    return sa.select(owner_id).where(batches.ours, ~sa.exists().where(owners.c.id == owner_id)).distinct()


def numbered(batches: ClaimRows) -> sa.Select[Any]:
    """The keys in the batches of `me`, each after the number of its batch."""
    return batches.keys(batches.of(_ME), batches.table.c.number)


def shorten(batches: ClaimRows) -> sa.Update:
    """Let the batch `number` of `me` have only the jobs `keys`."""
    table = batches.table
    keys = batches.dialect.json_of_keys(batches.key, "claimjobs_json")
    return sa.update(table).where(batches.of(_ME), table.c.number == NUMBER).values(keys=keys, jobs=JOBS)


def close_all(batches: ClaimRows) -> sa.Delete:
    """Delete all batches of `me`."""
    return sa.delete(batches.table).where(batches.of(_ME))


def by_owner(batches: ClaimRows) -> sa.Select[Any]:
    """One row for each owner with claim rows: `owner_id`, `jobs`."""
    owner, jobs = batches.table.c.owner_id, sa.func.sum(batches.table.c.jobs)
    columns: tuple[Any, ...] = (owner, sa.cast(jobs, sa.BigInteger).label("jobs"))
    return sa.select(*columns).where(batches.ours).group_by(owner)


def how_many_jobs(batches: ClaimRows) -> sa.Select[Any]:
    """How many jobs are in claim rows; NULL: there is none."""
    return sa.select(sa.func.sum(batches.table.c.jobs)).where(batches.ours)

"""Claims per batch: record a batch, take jobs out of it, and find whose batches are open."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects.types import database_now
from claimjobs.statements.owners import alive
from claimjobs.table.batches import OpenBatches

_ME: Final = sa.bindparam("claimjobs_me", type_=sa.Integer)
NUMBER: Final = sa.bindparam("claimjobs_number", type_=sa.BigInteger)
"""The number of a batch among those of its owner."""
JOBS: Final = sa.bindparam("claimjobs_meant", type_=sa.Integer)
"""How many jobs a batch has."""


def record(batches: OpenBatches, owners: sa.Table) -> sa.Insert:
    """Insert a batch of `me` with the jobs `keys`, which this transaction has locked.

    It writes no row if `me` was declared dead, or if a job is in an open batch now. Locks do not show that: a row that
    another claim had locked is not changed by it. But that claim was committed before this transaction got the lock, so
    a statement that begins after that sees its batch.
    """
    now_open = batches.keys().subquery("claimjobs_open")
    taken = sa.exists().where(batches.dialect.among_some([*now_open.c], "claimjobs_keys"))
    row = sa.select(
        _ME,
        NUMBER,
        sa.literal(batches.claims, sa.String),
        JOBS,
        batches.dialect.json_of_keys(batches.key, "claimjobs_json"),
        database_now(),
    ).where(alive(owners), ~taken)
    columns = ("owner_id", "number", "claims", "jobs", "keys", "since")
    insert = sa.insert(batches.table).from_select(columns, row, include_defaults=False)
    return insert.execution_options(preserve_rowcount=True)


def open_now(batches: OpenBatches) -> sa.Select[Any]:
    """Those of `keys` that are in an open batch now."""
    now_open = batches.keys().subquery("claimjobs_open")
    return sa.select(*now_open.c).where(batches.dialect.among_some([*now_open.c], "claimjobs_keys"))


def close(batches: OpenBatches) -> sa.Delete:
    """Delete the batch `number` of `me`, if it has `meant` jobs: it is settled as a whole."""
    table = batches.table
    return sa.delete(table).where(batches.of(_ME), table.c.number == NUMBER, table.c.jobs == JOBS)


def locked(batches: OpenBatches) -> sa.Select[Any]:
    """Lock the batches of `me`: their numbers."""
    return sa.select(batches.table.c.number).where(batches.of(_ME)).with_for_update()


def seized(batches: OpenBatches) -> sa.Select[Any]:
    """Lock the batches of `me` that no other session has locked: their numbers."""
    return sa.select(batches.table.c.number).where(batches.of(_ME)).with_for_update(skip_locked=True)


def count(batches: OpenBatches) -> sa.Select[Any]:
    """How many batches `me` has."""
    return sa.select(sa.func.count()).select_from(batches.table).where(batches.of(_ME))


def numbered(batches: OpenBatches) -> sa.Select[Any]:
    """The keys in the batches of `me`, each after the number of its batch."""
    return batches.keys(batches.of(_ME), batches.table.c.number)


def shorten(batches: OpenBatches) -> sa.Update:
    """Let the batch `number` of `me` have only the jobs `keys`."""
    table = batches.table
    keys = batches.dialect.json_of_keys(batches.key, "claimjobs_json")
    return sa.update(table).where(batches.of(_ME), table.c.number == NUMBER).values(keys=keys, jobs=JOBS)


def close_all(batches: OpenBatches) -> sa.Delete:
    """Delete all batches of `me`."""
    return sa.delete(batches.table).where(batches.of(_ME))


def by_owner(batches: OpenBatches) -> sa.Select[Any]:
    """One row for each owner with open batches: `owner_id`, `jobs`."""
    owner, jobs = batches.table.c.owner_id, sa.func.sum(batches.table.c.jobs)
    columns: tuple[Any, ...] = (owner, sa.cast(jobs, sa.BigInteger).label("jobs"))
    return sa.select(*columns).where(batches.ours).group_by(owner)


def begin(batches: OpenBatches) -> sa.Insert:
    """Insert a batch of `me` that has no jobs: it shows that this owner records its claims per batch."""
    given = {"number": 0, "claims": batches.claims, "jobs": 0, "keys": [], "since": database_now()}
    return sa.insert(batches.table).values(owner_id=_ME, **given)


def owners_by_row(batches: OpenBatches, owners: sa.Table) -> sa.Select[Any]:
    """How many owners of the queue record their claims in the rows of the jobs."""
    by_batch = sa.exists().where(batches.of(owners.c.id))
    return sa.select(sa.func.count()).select_from(owners).where(owners.c.claims == batches.claims, ~by_batch)


def owners_by_batch(table: sa.Table, claims: str) -> sa.Select[Any]:
    """How many owners of a queue record their claims in this table of batches."""
    owners = sa.func.count(table.c.owner_id.distinct())
    return sa.select(owners).select_from(table).where(table.c.claims == claims)

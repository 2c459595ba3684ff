"""The ledger of a destination: which jobs had their effect there."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect


def note(ledger: sa.Table, dialect: Dialect) -> sa.Insert:
    """Note a job (`digest`, `queue`, `job`).

    One that is noted already is an error, or with `skips_duplicates` left out: the digest comes back for others only.
    """
    if not dialect.skips_duplicates:
        return sa.insert(ledger)
    return dialect.insert_unless_there(ledger, [ledger.c.digest]).returning(ledger.c.digest)


def old(ledger: sa.Table) -> sa.Select[Any]:
    """The digests of `limit` jobs of a `queue` that were noted at the instant `until` or before, oldest first."""
    limit = sa.bindparam("limit", type_=sa.Integer)
    return sa.select(ledger.c.digest).where(_old(ledger)).order_by(ledger.c.done_at).limit(limit)


def how_many(ledger: sa.Table) -> sa.Select[Any]:
    """How many those are."""
    return sa.select(sa.func.count()).select_from(ledger).where(_old(ledger))


def forget(ledger: sa.Table, dialect: Dialect) -> sa.Delete:
    """The jobs with the digests `keys` were never done."""
    return dialect.reach(dialect.delete(ledger), [ledger.c.digest], None)


def _old(ledger: sa.Table) -> sa.ColumnElement[bool]:
    ours = ledger.c.queue == sa.bindparam("queue", type_=ledger.c.queue.type)
    return sa.and_(ours, ledger.c.done_at <= sa.bindparam("until", type_=ledger.c.done_at.type))

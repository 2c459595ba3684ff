"""The ledger of a destination: it notes which jobs were done there."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect


def note_entry(ledger: sa.Table, dialect: Dialect) -> sa.Insert:
    """Note a job (`digest`, `queue`, `job`).

    A job that is noted already is an error. With `skips_duplicates` it is skipped, and its digest is not returned.
    """
    if not dialect.skips_duplicates:
        return sa.insert(ledger)
    return dialect.insert_unless_there(ledger, [ledger.c.digest]).returning(ledger.c.digest)


def old_entries(ledger: sa.Table) -> sa.Select[Any]:
    """The digests of `limit` jobs of a `queue` that were noted at the instant `until` or before, oldest first."""
    limit = sa.bindparam("limit", type_=sa.Integer)
    return sa.select(ledger.c.digest).where(_old(ledger)).order_by(ledger.c.done_at).limit(limit)


def count_old_entries(ledger: sa.Table) -> sa.Select[Any]:
    """How many jobs `old_entries` finds without its limit."""
    return sa.select(sa.func.count()).select_from(ledger).where(_old(ledger))


def forget(ledger: sa.Table, dialect: Dialect) -> sa.Delete:
    """Delete the notes with the digests `keys`."""
    return dialect.restrict_to_keys(dialect.delete(ledger), [ledger.c.digest], None)


def _old(ledger: sa.Table) -> sa.ColumnElement[bool]:
    ours = ledger.c.queue == sa.bindparam("queue", type_=ledger.c.queue.type)
    return sa.and_(ours, ledger.c.done_at <= sa.bindparam("until", type_=ledger.c.done_at.type))

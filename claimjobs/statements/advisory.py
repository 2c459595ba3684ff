"""Phase 2 of a claim by advisory locks: try the locks, then check the rows again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.find import Selection
from claimjobs.statements.mark import mark
from claimjobs.statements.owners import alive
from claimjobs.table.roles import ColumnRoles


def try_locks(dialect: Dialect) -> sa.Select[Any]:
    """Try each of `locks`: it returns the lock, and whether this session has it now.

    This statement reads no jobs. In the WHERE of a statement that reads jobs, a lock would be taken for every row that
    the plan reads before the LIMIT.
    """
    lock = dialect.key_locks.each_lock()
    return sa.select(lock, dialect.key_locks.try_lock(lock))


def unlock(dialect: Dialect) -> sa.Select[Any]:
    """Release each of `locks` once."""
    return sa.select(dialect.key_locks.unlock(dialect.key_locks.each_lock()))


def recheck(roles: ColumnRoles, dialect: Dialect, selection: Selection, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of those of the jobs `keys` that are still ready. It runs after they were locked, and so reads what
    was committed between phase 1 and the locks."""
    jobs = sa.select(*columns).where(dialect.among(roles.key, "claimjobs_keys"), selection.ready)
    return dialect.by_key(jobs, roles.key_index)


def mark_ready(
    roles: ColumnRoles, dialect: Dialect, selection: Selection, *, now: sa.ColumnElement[Any], owners: sa.Table
) -> sa.Update:
    """Mark those of the jobs `keys` that are still ready as claimed by `me`; none if `me` was declared dead."""
    return mark(roles, dialect, now, owners).where(selection.ready)


def marked(roles: ColumnRoles, dialect: Dialect, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of those of the jobs `keys` that `me` holds."""
    jobs = sa.select(*columns).where(dialect.among(roles.key, "claimjobs_keys"), roles.mine)
    return dialect.by_key(jobs, roles.key_index)


def is_alive(owners: sa.Table) -> sa.Select[Any]:
    """Whether `me` is alive: it was not declared dead."""
    return sa.select(alive(owners))

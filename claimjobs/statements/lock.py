"""Phase 2, first half: lock what is still free of the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.column_encoding import Parts, lean, with_last
from claimjobs.statements.find import PLACE, Selection, in_order, numbered, same_key
from claimjobs.table.roles import Roles


def lock(roles: Roles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Lock the first `size` of the `candidates` that nobody else holds and that are still ready.

    The recheck is needed: between the phases another consumer may have claimed a candidate and let go of its lock.
    """
    jobs = sa.select(*lean(read, dialect)).where(selection.ready)
    picked = dialect.only_candidates(jobs, roles.key, selection.order, roles.key_index).limit(
        sa.bindparam("claimjobs_size", type_=sa.Integer)
    )
    return free_ones(picked, roles)


def find_and_lock(roles: Roles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """Both in one statement, for a database that can lock the rows of one table of several, in the order of another.

    These parts of the jobs, and last the place of each among the `limit` candidates.
    """
    candidate = numbered(roles, selection).subquery("candidate")
    wanted = sa.select(*with_last(read, dialect, candidate.c[PLACE])).where(selection.ready)
    walk = candidate.join(roles.table, same_key(roles, candidate))
    return dialect.lock_in_order(wanted, walk, sa.bindparam("claimjobs_size", type_=sa.Integer), roles.key_index)


def lock_first(roles: Roles, dialect: Dialect, selection: Selection, read: Parts) -> sa.Select[Any]:
    """The same for a database that `locks_in_order`: each job is found and locked before the next one is looked for.

    What it passes over, because others have it, is not counted: the place of each is 0.
    """
    rows = in_order(sa.select(*with_last(read, dialect, sa.literal(0).label(PLACE))), selection)
    return free_ones(rows.limit(sa.bindparam("claimjobs_size", type_=sa.Integer)), roles)


def lock_those(roles: Roles, dialect: Dialect, predicates: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """The keys, of `keys`, of the rows for which a user's predicates hold; locked, so that they do until the end of the
    transaction. What is then written is guarded by a statement of our own, in which nothing of the user's stands.
    """
    rows = dialect.reach(sa.select(*roles.key).where(*predicates), roles.key, roles.key_index)
    return rows.order_by(*roles.key).with_for_update(of=roles.table)


def free_ones(rows: sa.Select[Any], roles: Roles) -> sa.Select[Any]:
    """Those that nobody else has locked, locked."""
    return rows.with_for_update(skip_locked=True, key_share=True, of=roles.table)

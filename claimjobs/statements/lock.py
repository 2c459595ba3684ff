"""Phase 2, first half: lock what is still free of the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.roles import Roles
from claimjobs.statements.find import PLACE, Selection, lean, numbered, same_key

Columns = Sequence[sa.Column[Any]]


def lock(roles: Roles, dialect: Dialect, selection: Selection, columns: Columns) -> sa.Select[Any]:
    """Lock the first `size` of the `candidates` that nobody else holds and that are still ready.

    The recheck is needed: between the phases another consumer may have claimed a candidate and let go of its lock.
    """
    jobs = sa.select(*lean(columns, dialect)).where(selection.ready)
    picked = dialect.pick(jobs, roles.key, selection.order, roles.key_index).limit(
        sa.bindparam("claimjobs_size", type_=sa.Integer)
    )
    return picked.with_for_update(skip_locked=True, key_share=True, of=roles.table)


def find_and_lock(roles: Roles, dialect: Dialect, selection: Selection, columns: Columns) -> sa.Select[Any]:
    """Both in one statement, for a database that can lock the rows of one table of several, in the order of another.

    These columns of the jobs, and the place of each among the `limit` candidates.
    """
    candidate = dialect.stored(numbered(roles, selection), "candidate")
    rows = dialect.few(candidate, candidate.c[PLACE])
    jobs = sa.select(*lean(columns, dialect), rows.c[PLACE]).where(selection.ready)
    found = dialect.look_up(jobs, rows, same_key(roles, rows), roles.table, index=roles.key_index)
    size = sa.bindparam("claimjobs_size", type_=sa.Integer)
    return found.limit(size).with_for_update(skip_locked=True, key_share=True, of=roles.table)

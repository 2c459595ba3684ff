"""Phase 2, first half: lock what is still free of the candidates."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.roles import Roles
from claimjobs.statements.find import Selection


def lock(roles: Roles, dialect: Dialect, selection: Selection) -> sa.Select[Any]:
    """Lock the first `size` of the `candidates` that nobody else holds and that are still ready.

    The recheck is needed: between the phases another consumer may have claimed a candidate and let go of its lock.
    """
    jobs = sa.select(*roles.table.columns).where(selection.ready)
    picked = dialect.pick(jobs, roles.key, selection.order, roles.key_index).limit(
        sa.bindparam("claimjobs_size", type_=sa.Integer)
    )
    return picked.with_for_update(skip_locked=True, key_share=True, of=roles.table)

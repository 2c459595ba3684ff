"""Phase 1: which jobs could be claimed. Locks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.roles import Roles

SUSPECT: Final = "claimjobs_suspect"
"""The last column of a candidate: 0, or how many jobs it was in hand with when something went wrong."""


def find(roles: Roles, ready: sa.ColumnElement[bool], order: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    """The first `limit` jobs that are ready, in order: their keys, then how suspect each is."""
    suspect = sa.literal(0, sa.Integer) if roles.suspect is None else roles.suspect
    return (
        sa.select(*roles.key, suspect.label(SUSPECT))
        .where(ready)
        .order_by(*order)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )

"""Phase 1: which jobs could be claimed. Locks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.roles import Roles


def find(roles: Roles, ready: sa.ColumnElement[bool], order: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    """The keys of the first `limit` jobs that are ready, in order."""
    return sa.select(*roles.key).where(ready).order_by(*order).limit(sa.bindparam("limit", type_=sa.Integer))

"""Phase 1: which jobs could be claimed. Locks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.roles import Roles

SUSPECT: Final = "claimjobs_suspect"
"""The last column of a candidate: 0, or how many jobs it was in hand with when something went wrong."""


@dataclass(frozen=True)
class Selection:
    """What may be claimed, and in which order."""

    ready: sa.ColumnElement[bool]
    order: Sequence[sa.ColumnElement[Any]]


def find(roles: Roles, selection: Selection) -> sa.Select[Any]:
    """The first `limit` jobs that are ready, in order: their keys, then how suspect each is."""
    suspect = sa.literal(0, sa.Integer) if roles.suspect is None else counted(roles.suspect)
    return (
        sa.select(*roles.key, suspect.label(SUSPECT))
        .where(selection.ready)
        .order_by(*selection.order)
        .limit(sa.bindparam("claimjobs_limit", type_=sa.Integer))
    )


def counted(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """A number that counts from 0, also where a user's column holds NULL."""
    return sa.func.coalesce(column, 0) if column.nullable else column

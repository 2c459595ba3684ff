"""Clean-up: find and delete old jobs that were kept, done or dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.find import LIMIT
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles

Predicates = Sequence[sa.ColumnElement[bool]]


def old(roles: ColumnRoles, status: str, until: Any) -> Predicates:
    """The predicates of an old job: it has had this status since the instant `until` or longer."""
    roles.need_state(status, f"keeping jobs that are {status}")
    since = roles.need("owner_date", f"telling since when a job is {status}")
    return (roles.state.is_(status), since <= until)


def purge_order(roles: ColumnRoles) -> tuple[Column, ...]:
    """The columns to page through: those of the claim index, which holds the jobs of one status side by side.

    It is the key if one of them may be NULL: no row is after a NULL.
    """
    order = roles.default_order
    return roles.key if any(column.nullable for column in order) else order


def purge_page(roles: ColumnRoles, dialect: Dialect, chosen: Predicates, after: Sequence[Any] | None) -> sa.Select[Any]:
    """The next `limit` of the jobs in the order of `purge_order`, after the values `after` of these columns."""
    columns = purge_order(roles)
    is_after = () if after is None else (dialect.after_values(columns, after),)
    return sa.select(*columns).where(*chosen, *is_after).order_by(*columns).limit(LIMIT)


def delete_old(roles: ColumnRoles, dialect: Dialect, guard: Predicates) -> sa.Delete:
    """Delete those of the jobs `keys` that are still old. `guard` is `old`: it holds no text of the user's."""
    return dialect.restrict_to_keys(dialect.delete(roles.table).where(*guard), roles.key, roles.key_index)

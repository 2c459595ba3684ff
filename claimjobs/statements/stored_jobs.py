"""Jobs in any state: list them, and cancel those that wait or are claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect, Key
from claimjobs.statements.find import LIMIT
from claimjobs.table.columns import DEAD
from claimjobs.table.roles import LONGEST_ERROR, TEXTS_IN_BYTES, ColumnRoles

Predicates = Sequence[sa.ColumnElement[bool]]


def page(
    roles: ColumnRoles, dialect: Dialect, columns: Sequence[Any], where: Predicates, *, after: Key | None = None
) -> sa.Select[Any]:
    """These columns of the next `limit` rows that meet all predicates, in the order of their keys, after `after`."""
    is_after = () if after is None else (dialect.after_values(roles.key, after if len(roles.key) > 1 else (after,)),)
    return sa.select(*columns).where(*where, *is_after).order_by(*roles.key).limit(LIMIT)


def last_keys(
    roles: ColumnRoles, is_in_state: sa.ColumnElement[bool], order: Sequence[sa.ColumnElement[Any]]
) -> sa.Select[Any]:
    """The keys of the last `limit` rows in a state, the last of this order first: the claim index has them. An order
    that is a text cannot be reversed: then they are the first ones.
    """
    backwards = [_reversed(part) for part in order]
    by_order = order if any(part is None for part in backwards) else backwards
    return sa.select(*roles.key).select_from(roles.table).where(is_in_state).order_by(*by_order).limit(LIMIT)


def count_failed(roles: ColumnRoles, unclaimed: Predicates, order: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    """How many of the first `limit` unclaimed rows have failed before, or are suspects."""
    first, failed = _first_failed(roles, unclaimed, order)
    return sa.select(sa.func.count()).select_from(first).where(failed)


def worst_failed(
    roles: ColumnRoles, unclaimed: Predicates, order: Sequence[sa.ColumnElement[Any]], most: int
) -> sa.Select[Any]:
    """The keys of at most so many of these rows, those with the most failures first."""
    first, failed = _first_failed(roles, unclaimed, order)
    keys = [first.c[column.key] for column in roles.key]
    failures = [first.c[column.key].desc() for column in roles.failure_counts]
    return sa.select(*keys).where(failed).order_by(*failures, *keys).limit(most)


def _first_failed(
    roles: ColumnRoles, unclaimed: Predicates, order: Sequence[sa.ColumnElement[Any]]
) -> tuple[sa.Subquery, sa.ColumnElement[bool]]:
    """The first `limit` unclaimed rows, and which of them have failed before, or are suspects."""
    columns: list[Any] = [*roles.key, *roles.failure_counts]
    rows = sa.select(*columns).select_from(roles.table).where(*unclaimed).order_by(*order).limit(LIMIT)
    first = rows.subquery("claimjobs_first")
    return first, sa.or_(sa.false(), *(first.c[column.key] > 0 for column in roles.failure_counts))


def _reversed(part: sa.ColumnElement[Any]) -> sa.ColumnElement[Any] | None:
    """None: it is no column, and none that descends."""
    is_descending = isinstance(part, sa.UnaryExpression) and part.modifier is sa.sql.operators.desc_op
    column = part.element if is_descending else part
    found: sa.ColumnElement[Any] = column if is_descending else sa.desc(part)
    return found if isinstance(column, sa.Column) else None


def count(roles: ColumnRoles, where: Predicates, most: int | None = None) -> sa.Select[Any]:
    """How many rows meet all predicates; not more than `most` are counted."""
    rows: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(roles.table).where(*where).limit(most)
    return sa.select(sa.func.count()).select_from(rows.subquery())


def chosen(roles: ColumnRoles, dialect: Dialect, columns: Sequence[Any], where: Predicates) -> sa.Select[Any]:
    """These columns of those of the rows `keys` that meet all predicates, in the order of their keys."""
    rows = sa.select(*columns).where(*where).order_by(*roles.key)
    return dialect.restrict_to_keys(rows, roles.key, roles.key_index)


def lock_unfinished(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """Lock those of the jobs `keys` that are neither done nor dead, without those that another session has locked:
    their keys.
    """
    rows = chosen(roles, dialect, roles.key, (roles.state.unfinished,))
    return rows.with_for_update(of=roles.table, skip_locked=True)


def unfinished(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """The same, without locks."""
    return chosen(roles, dialect, roles.key, (roles.state.unfinished,))


def cancel(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any], text: str) -> sa.Update:
    """Make the jobs `keys`, which this transaction has locked, dead, with a text before their last error. An owner that
    has claimed one does not hold it any more, so its outcome is refused.
    """
    given = {roles.owner_id: None, roles.owner_date: now, roles.suspect: 0, roles.last_error: _and_before(text, roles)}
    values = {column: value for column, value in given.items() if column is not None}
    update = sa.update(roles.table).values({**roles.state.becomes(DEAD), **values})
    return dialect.restrict_to_keys(update.where(roles.state.unfinished), roles.key, roles.key_index)


def _and_before(text: str, roles: ColumnRoles) -> Any:
    """A text, and after it the error that the job has, as far as its column holds both."""
    column = roles.last_error
    if column is None or not isinstance(column.type, sa.String) or column.type.__visit_name__ in TEXTS_IN_BYTES:
        return text
    both = sa.literal(f"{text}; before: ", sa.String) + column
    longest = min(column.type.length or LONGEST_ERROR, LONGEST_ERROR)
    return sa.func.coalesce(sa.func.substr(both, 1, longest), text, type_=sa.String)

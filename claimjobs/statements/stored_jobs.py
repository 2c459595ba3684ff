"""Jobs as they are stored, in any state: count, list and cancel them; retry, drop or purge those that are kept.

A write changes only jobs that are still in the state for which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.dialects.types import Instant
from claimjobs.statements.enqueue import disowned
from claimjobs.statements.find import LIMIT, skip_locked
from claimjobs.table.columns import DEAD, UNCLAIMED
from claimjobs.table.job_state import Column
from claimjobs.table.predicates import column_of
from claimjobs.table.roles import ColumnRoles

Predicates = Sequence[sa.ColumnElement[bool]]
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""Python holds all instants between these in every time zone."""

# --- count them ----------------------------------------------------------------------------------------------


def by_state(
    roles: ColumnRoles, now: sa.ColumnElement[Any], of_queue: Predicates, *where: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """One row for each state: the columns that distinguish it, those of `counts`, and its name, `claimjobs_state`.

    All rows of a group have the same state, so the aggregate only lets SQL accept it beside the groups.
    """
    state, name = roles.state.distinguishing_columns, sa.func.min(roles.state.name).label("claimjobs_state")
    counted = counts(roles, now, of_queue, roles.run_at_passed(now))
    return sa.select(*state, *counted, name).select_from(roles.table).where(*where).group_by(*state)


def held_by_python(run_at: Column | None) -> sa.ColumnElement[Any]:
    """A run_at; NULL in place of one that Python cannot hold, such as `-infinity` or a zero date."""
    if run_at is None:
        return sa.null()
    return sa.case((run_at.between(sa.literal(EARLIEST, Instant()), sa.literal(LATEST, Instant())), run_at))


def counts(
    roles: ColumnRoles, now: sa.ColumnElement[Any], of_queue: Predicates, is_due: sa.ColumnElement[bool]
) -> tuple[Any, ...]:
    """How many `jobs` there are; how many of these are in the queue (`mine`), because they meet all these predicates;
    how many of those are `due`; the first run_at of those that are due, if any (`oldest`); `now`.
    """
    is_unclaimed = roles.state.row_says(UNCLAIMED)

    def where_mine(value: Any) -> Any:
        # The state first: a predicate may end in an error for rows that no claim reads.
        return sa.case((is_unclaimed, sa.case((sa.and_(*of_queue), value)))) if of_queue else value

    mine = sa.func.count(where_mine(sa.literal_column("1")))
    oldest = sa.func.min(where_mine(sa.case((is_due, held_by_python(roles.run_at)))))
    due = sa.func.count(where_mine(sa.case((is_due, 1))))
    labels = {"jobs": sa.func.count(), "mine": mine, "due": due, "oldest": oldest, "now": now}
    return tuple(expression.label(label) for label, expression in labels.items())


def retries(roles: ColumnRoles, now: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """One row: `jobs` (that failed, or are suspects, and wait for their next attempt), `next` (their earliest run_at),
    `due` (such jobs that do not wait any more), `now`.
    """
    run_at = roles.need("run_at", "waiting for a retry")
    waits, due = sa.case((run_at > now, 1)), sa.case((roles.run_at_passed(now), 1))
    first = sa.func.min(sa.case((run_at > now, held_by_python(run_at)))).label("next")
    columns = (sa.func.count(waits).label("jobs"), first, sa.func.count(due).label("due"), now.label("now"))
    return sa.select(*columns).where(roles.state.job_is(UNCLAIMED), roles.has_failed, *where)


def first_waiting(
    source: ColumnRoles,
    unclaimed: sa.ColumnElement[bool],
    order: Sequence[sa.ColumnElement[Any]],
    now: sa.ColumnElement[Any],
    *,
    due: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    """One row: `jobs` (unclaimed rows, at most `limit`); how many of these are `due`; `oldest` (the first
    run_at of those that are due, if any), `now`.

    The order is that of a claim, so that the claim index finds these rows, and the other rows are not read.
    """
    run_at = held_by_python(source.run_at)
    first = sa.select(run_at.label("run_at"), sa.case((due, 1)).label("due")).select_from(source.table).where(unclaimed)
    found = first.order_by(*order).limit(LIMIT).subquery("claimjobs_first")
    columns = (sa.func.count().label("jobs"), sa.func.count(found.c.due).label("due"))
    oldest = sa.func.min(sa.case((found.c.due == 1, found.c.run_at)))
    return sa.select(*columns, oldest.label("oldest"), now.label("now")).select_from(found)


# --- find them -----------------------------------------------------------------------------------------------


def page(
    roles: ColumnRoles,
    dialect: Dialect,
    columns: Sequence[Any],
    where: Predicates,
    *,
    after: Sequence[Any] | None = None,
    order: Sequence[Column] = (),
) -> sa.Select[Any]:
    """These columns of the next `limit` rows that have a key and meet all predicates, in this order (empty: of their
    keys), after a row with the values `after` in it.
    """
    by = [dialect.as_compared(column) for column in order or roles.key]
    is_after = () if after is None else (dialect.after_values(by, after),)
    return sa.select(*columns).where(*roles.has_key, *where, *is_after).order_by(*by).limit(LIMIT)


def chosen(roles: ColumnRoles, dialect: Dialect, columns: Sequence[Any], where: Predicates) -> sa.Select[Any]:
    """These columns of those of the rows `keys` that meet all predicates, in the order of their keys."""
    rows = sa.select(*columns).where(*where).order_by(*roles.key)
    return dialect.restrict_to_keys(rows, roles.key, roles.key_index)


def lock_chosen(roles: ColumnRoles, dialect: Dialect, where: Predicates) -> sa.Select[Any]:
    """Lock those of the rows `keys` that meet a user's predicates, and return their keys. The predicates hold until the
    transaction ends. So the statement that writes needs no text of the user's.
    """
    return chosen(roles, dialect, roles.key, where).with_for_update(of=roles.table)


def unfinished(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """The keys of those of the jobs `keys` that are neither done nor dead."""
    return chosen(roles, dialect, roles.key, (roles.state.unfinished,))


def lock_unfinished(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """The same, and lock them, without those that another session has locked."""
    return unfinished(roles, dialect).with_for_update(of=roles.table, skip_locked=True)


def some_keys(roles: ColumnRoles, dialect: Dialect, limit: int) -> sa.Select[Any]:
    """The keys of so many rows, as far as the driver can read them."""
    return sa.select(*roles.key).where(*dialect.readable(roles.key)).limit(limit)


def lock_none(roles: ColumnRoles) -> sa.Select[Any]:
    """Lock no row, which needs the right to lock rows."""
    return sa.select(*roles.key).where(sa.false()).with_for_update()


def count(roles: ColumnRoles, where: Predicates, most: int | None = None) -> sa.Select[Any]:
    """How many rows have a key and meet all predicates; not more than `most` are counted."""
    rows: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(roles.table)
    return sa.select(sa.func.count()).select_from(rows.where(*roles.has_key, *where).limit(most).subquery())


def last_keys(
    roles: ColumnRoles, is_in_state: sa.ColumnElement[bool], order: Sequence[sa.ColumnElement[Any]]
) -> sa.Select[Any]:
    """The keys of the last `limit` rows in a state, the last of this order first: the claim index has them. An order
    that is a text cannot be reversed: then they are the first ones.
    """
    parts = [column_of(part) for part in order]
    backwards = [column if falls else column.desc() for column, falls in parts if column is not None]
    by = backwards if len(backwards) == len(parts) else order
    return sa.select(*roles.key).select_from(roles.table).where(is_in_state).order_by(*by).limit(LIMIT)


def worst_failed(roles: ColumnRoles, unclaimed: Predicates, order: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    """The keys of those of the first `limit` unclaimed rows that failed before, or are suspects; those with the most
    failures first.
    """
    columns: list[Any] = [*roles.key, *roles.failure_counts]
    rows = sa.select(*columns).select_from(roles.table).where(*unclaimed).order_by(*order).limit(LIMIT)
    first = rows.subquery("claimjobs_first")
    keys, failures = ([first.c[column.key] for column in some] for some in (roles.key, roles.failure_counts))
    failed = sa.or_(sa.false(), *(count > 0 for count in failures))
    return sa.select(*keys).where(failed).order_by(*(count.desc() for count in failures), *keys)


# --- cancel them ---------------------------------------------------------------------------------------------


def lock_free(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """Lock those of the rows `keys` that nobody else has locked, as a claim does: their keys."""
    return skip_locked(dialect.restrict_to_keys(sa.select(*roles.key), roles.key, roles.key_index), roles)


def cancel(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any], text: str) -> sa.Update:
    """Make the jobs `keys`, which this transaction has locked, dead. An owner that has claimed one does not hold it any
    more, so its outcome is refused.
    """
    values = disowned(roles, DEAD, now) | {roles.suspect: 0, roles.last_error: text}
    values.pop(None, None)
    update = sa.update(roles.table).values(values).where(roles.state.unfinished)
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


# --- dead jobs -----------------------------------------------------------------------------------------------


def retry_dead(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any]) -> sa.Update:
    """Make those of the jobs `keys` that are dead unclaimed, as if they had never failed. Their last error stays."""
    values = disowned(roles, UNCLAIMED) | {roles.run_at: now, roles.attempts: 0, roles.suspect: 0}
    values.pop(None, None)
    update = sa.update(roles.table).values(values).where(roles.state.job_is(DEAD))
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


def delete(roles: ColumnRoles, dialect: Dialect, guard: Predicates) -> sa.Delete:
    """Delete those of the jobs `keys` that still meet a guard, which holds no text of the user's."""
    return dialect.restrict_to_keys(dialect.delete(roles.table).where(*guard), roles.key, roles.key_index)


# --- old jobs ------------------------------------------------------------------------------------------------


def old(roles: ColumnRoles, state: str, until: Any) -> Predicates:
    """The predicates of an old job: it has had this state since the instant `until` or longer."""
    roles.need_state(state, f"keeping jobs that are {state}")
    since = roles.need("owner_date", f"telling since when a job is {state}")
    return (roles.state.job_is(state), since <= until)


def purge_order(roles: ColumnRoles) -> tuple[Column, ...]:
    """The columns to page through: those of the claim index, which holds the jobs of one state side by side.

    It is the key if one of them may be NULL: no row is after a NULL.
    """
    order = roles.default_order
    return roles.key if any(column.nullable for column in order) else order

"""Counts of jobs by state and by owner, and how long they have waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.statements.owners import claimed_by_nobody
from claimjobs.table.columns import CLAIMED, UNCLAIMED
from claimjobs.table.roles import ColumnRoles

Predicates = Sequence[sa.ColumnElement[bool]]

_LIMIT: Final = sa.bindparam("claimjobs_limit", type_=sa.Integer)


def by_state(
    roles: ColumnRoles, now: sa.ColumnElement[Any], of_queue: Predicates, *where: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """One row for each state: the columns that distinguish it, those of `counts`, and its name, `claimjobs_state`.

    All rows of a group have the same state, so the aggregate only lets SQL accept it beside the groups.
    """
    state, name = roles.state.distinguishing_columns, sa.func.min(roles.state.name).label("claimjobs_state")
    counted = counts(roles, now, of_queue)
    return sa.select(*state, *counted, name).select_from(roles.table).where(*where).group_by(*state)


def counts(roles: ColumnRoles, now: sa.ColumnElement[Any], of_queue: Predicates) -> tuple[Any, ...]:
    """How many `jobs` there are; how many of these are in the queue (`mine`), because they meet all these predicates;
    how many of those are `due` by their run_at; their first run_at, if any (`oldest`); `now`.
    """
    is_unclaimed = roles.state.columns_say(UNCLAIMED)

    def where_mine(value: Any) -> Any:
        # The state first: a predicate may end in an error for rows that no claim reads.
        return sa.case((is_unclaimed, sa.case((sa.and_(*of_queue), value)))) if of_queue else value

    mine = sa.func.count(where_mine(sa.literal_column("1")))
    oldest = sa.null() if roles.run_at is None else sa.func.min(where_mine(roles.run_at))
    due = sa.func.count(where_mine(sa.case((roles.ripe(now), 1))))
    labels = {"jobs": sa.func.count(), "mine": mine, "due": due, "oldest": oldest, "now": now}
    return tuple(expression.label(label) for label, expression in labels.items())


def retries(roles: ColumnRoles, now: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """One row: `jobs` (that failed, or are suspects, and wait for their next attempt), `next` (their earliest run_at),
    `due` (such jobs that do not wait any more), `now`.
    """
    run_at = roles.need("run_at", "waiting for a retry")
    failed = [column > 0 for column in roles.failure_counts]
    waits = sa.case((run_at > now, run_at))
    due = sa.func.count(sa.case((roles.ripe(now), 1)))
    columns = (sa.func.count(waits).label("jobs"), sa.func.min(waits).label("next"), due.label("due"), now.label("now"))
    return sa.select(*columns).where(roles.state.is_(UNCLAIMED), sa.or_(sa.false(), *failed), *where)


def by_owner(roles: ColumnRoles) -> sa.Select[Any]:
    """One row for each owner whose jobs say that it holds them: `owner_id`, `jobs`."""
    owner = roles.need("owner_id", "counting what owners hold")
    columns: tuple[Any, ...] = (owner.label("owner_id"), sa.func.count().label("jobs"))
    return sa.select(*columns).where(roles.state.is_(CLAIMED)).group_by(owner)


def ownerless(roles: ColumnRoles) -> sa.Select[Any]:
    """How many rows are claimed without an owner."""
    return sa.select(sa.func.count()).select_from(roles.table).where(claimed_by_nobody(roles))


def first_waiting(
    source: ColumnRoles,
    unclaimed: sa.ColumnElement[bool],
    order: Sequence[sa.ColumnElement[Any]],
    now: sa.ColumnElement[Any],
    *,
    ripe: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    """One row: `jobs` (unclaimed rows, at most `limit`); how many of these are `due`, because they are `ripe`; `oldest`
    (their first run_at, if any), `now`.

    The order is that of a claim, so that the claim index finds these rows, and the other rows are not read.
    """
    run_at = sa.null() if source.run_at is None else source.run_at
    due = sa.case((ripe, 1))
    first = sa.select(run_at.label("run_at"), due.label("due")).select_from(source.table).where(unclaimed)
    found = first.order_by(*order).limit(_LIMIT).subquery("claimjobs_first")
    columns = (sa.func.count().label("jobs"), sa.func.count(found.c.due).label("due"))
    return sa.select(*columns, sa.func.min(found.c.run_at).label("oldest"), now.label("now")).select_from(found)


def up_to(
    roles: ColumnRoles, state: str, order: Sequence[sa.ColumnElement[Any]], *where: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """How many rows are in this state, counted up to `limit`. The order is for the claim index, as above."""
    rows = sa.select(sa.literal(1).label("one")).select_from(roles.table).where(roles.state.is_(state), *where)
    return sa.select(sa.func.count()).select_from(rows.order_by(*order).limit(_LIMIT).subquery("claimjobs_first"))

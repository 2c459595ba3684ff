"""Exclusive assignment: a unique column of a row holds the worker that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.statements.find import Selection
from claimjobs.table.roles import ColumnRoles

OUTCOME: Final = "claimjobs_outcome"
ASSIGNED: Final = "assigned"
ALREADY: Final = "already assigned"
NOTHING: Final = "nothing free"
BUSY: Final = "busy"


def of_worker(roles: ColumnRoles) -> sa.Select[Any]:
    """The row that `worker` has."""
    return sa.select(*roles.table.columns).where(_column(roles) == _worker(roles))


def of_either(roles: ColumnRoles, values: Mapping[str, Any]) -> sa.Select[Any]:
    """The rows with the worker, or the key, of these values."""
    same = [column == values[column.name] for column in roles.key if column.name in values]
    key = sa.and_(*same) if len(same) == len(roles.key) else sa.false()
    return sa.select(*roles.table.columns).where(sa.or_(_column(roles) == values[_column(roles).name], key))


def free_rows(roles: ColumnRoles, selection: Selection) -> sa.ColumnElement[bool]:
    """The predicate of a row that no worker has."""
    return sa.and_(_column(roles).is_(None), selection.ready)


def lock_free(roles: ColumnRoles, dialect: Dialect, selection: Selection, index: str | None) -> sa.Select[Any]:
    """A free row that nobody else has locked, in any order: through the unique column's index."""
    rows = dialect.through(_free(roles, selection, roles.table.columns), _column(roles), index)
    return _first(rows, roles)


def is_any_free(roles: ColumnRoles, selection: Selection) -> sa.Select[Any]:
    """Whether there is a free row, locked or not."""
    return sa.select(_any_free(roles, selection))


def give(roles: ColumnRoles, dialect: Dialect) -> sa.Update:
    """Give the locked row, whose key is in `keys`, to the worker."""
    update = sa.update(roles.table).values({_column(roles): _worker(roles)})
    return dialect.by_key(update.where(dialect.among(roles.key, "claimjobs_keys")), roles.key_index)


def unassign(roles: ColumnRoles, dialect: Dialect, index: str | None) -> sa.Update:
    """Make the row that `worker` has free."""
    update = sa.update(roles.table).values({_column(roles): None}).where(_column(roles) == _worker(roles))
    return dialect.by_key(update, index)


def assign(roles: ColumnRoles, dialect: Dialect, selection: Selection) -> sa.Select[Any]:
    """Assign in one statement: it returns the outcome, then the row, if there is one.

    The database evaluates the last branch of the CASE only if no branch before it applies.
    """
    mine = of_worker(roles).cte("mine").prefix_with("MATERIALIZED")
    given = _given(roles, dialect, selection, mine=mine)
    outcome = sa.case(
        (sa.exists(sa.select(given.c[0])), ASSIGNED),
        (sa.exists(sa.select(mine.c[0])), ALREADY),
        (_any_free(roles, selection), BUSY),
        else_=NOTHING,
    )
    result = sa.select(outcome.label(OUTCOME)).subquery("result")
    row = sa.union_all(sa.select(given), sa.select(mine)).subquery("had")
    return sa.select(*result.c, *row.c).select_from(result.outerjoin(row, sa.true()))


def _given(roles: ColumnRoles, dialect: Dialect, selection: Selection, *, mine: sa.CTE) -> sa.CTE:
    keys = [column.label(f"claimjobs_k{i}") for i, column in enumerate(roles.key)]
    rows = _free(roles, selection, keys).where(~sa.exists(sa.select(mine.c[0])))
    rows = rows.order_by(*selection.order) if selection.order else dialect.through(rows, _column(roles), None)
    locked = _first(rows, roles).cte("locked").prefix_with("MATERIALIZED")
    same = sa.and_(*(column == locked.c[i] for i, column in enumerate(roles.key)))
    update = sa.update(roles.table).values({_column(roles): _worker(roles)}).where(same)
    return update.returning(*roles.table.columns).cte("given")


def _free(roles: ColumnRoles, selection: Selection, columns: Iterable[Any]) -> sa.Select[Any]:
    return sa.select(*columns).where(free_rows(roles, selection))


def _first(rows: sa.Select[Any], roles: ColumnRoles) -> sa.Select[Any]:
    """Lock the first row that nobody else has locked.

    FOR UPDATE, not FOR NO KEY UPDATE: a column of a unique index is about to change.
    """
    return rows.limit(sa.literal(1, literal_execute=True)).with_for_update(skip_locked=True, of=roles.table)


def _any_free(roles: ColumnRoles, selection: Selection) -> sa.ColumnElement[bool]:
    return sa.exists(sa.select(sa.literal(1)).select_from(roles.table).where(free_rows(roles, selection)))


def _column(roles: ColumnRoles) -> sa.Column[Any]:
    assert roles.assignee is not None  # noqa: S101 - the caller has checked
    return roles.assignee


def _worker(roles: ColumnRoles) -> sa.BindParameter[Any]:
    return sa.bindparam("claimjobs_worker", type_=_column(roles).type)

"""Enqueue: insert jobs, and change those that the table has already, by a unique key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.job import values_of
from claimjobs.statements.find import columns_of
from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.job_state import Column
from claimjobs.table.roles import ColumnRoles


def insert_rows(table: sa.Table) -> sa.Insert:
    """Insert jobs. Run it with a list of mappings with equal keys; other columns have their defaults.

    It is inline: the new key of a single row is not read back.
    """
    return sa.insert(table).inline()


def there(roles: ColumnRoles, dialect: Dialect, columns: Sequence[Column]) -> sa.Select[Any]:
    """The values of these columns in jobs that have one of the `values`."""
    return sa.select(*columns).select_from(roles.table).where(dialect.among(columns, "values"))


def lock_there(roles: ColumnRoles, dialect: Dialect, columns: Sequence[Column]) -> sa.Select[Any]:
    """Lock the jobs that have one of the `values` in these columns, in the order of their keys: key, then values."""
    rows = sa.select(*roles.key, *columns).where(dialect.among(columns, "values")).order_by(*roles.key)
    return rows.with_for_update(of=roles.table)


def states(roles: ColumnRoles, dialect: Dialect, state: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The states of the jobs `keys`, which are locked, each before its key. It locks them again, so that it does not
    read an older snapshot.
    """
    return columns_of(roles, dialect, [state.label("claimjobs_state"), *roles.key]).with_for_update(of=roles.table)


def set_run_again(roles: ColumnRoles, dialect: Dialect) -> sa.Update:
    """Mark the claimed jobs `keys`, so that they run once more after their settle."""
    column = roles.need("run_again", "running a job once more")
    update = sa.update(roles.table).values({column: _flag(column, True)})
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


def to_run_again(roles: ColumnRoles, dialect: Dialect) -> sa.Select[Any]:
    """Those of the jobs `keys` that are marked to run once more."""
    column = roles.need("run_again", "settling a job")
    marked = sa.select(*roles.key).where(column == _flag(column, True))
    return dialect.restrict_to_keys(marked, roles.key, roles.key_index)


def disowned(roles: ColumnRoles, state: str, since: sa.ColumnElement[Any] | None = None) -> dict[Any, Any]:
    """The values of a job in this state that nobody holds."""
    values = roles.state.becomes(state) | (_clear_run_again(roles) if state == UNCLAIMED else {})
    if roles.owner_id is not None:
        values[roles.owner_id] = None
    # Without a new time a NOT NULL one keeps that of the last change.
    if roles.owner_date is not None and (since is not None or roles.owner_date.nullable):
        values[roles.owner_date] = since
    return values


def renew(roles: ColumnRoles, dialect: Dialect, now: sa.ColumnElement[Any]) -> sa.Update:
    """Make the jobs `keys` unclaimed and due, as if they had never run."""
    update = sa.update(roles.table).values({**_new(roles, now), **disowned(roles, UNCLAIMED)})
    return dialect.restrict_to_keys(update, roles.key, roles.key_index)


def overwrite(
    roles: ColumnRoles, now: sa.ColumnElement[Any], names: Iterable[str], *, renews: bool
) -> sa.Update | None:
    """Write these columns of a waiting job; None: nothing is to be written. For many: run it with the parameters of
    `overwriting` for each.
    """
    values: dict[Any, Any] = _new(roles, now) if renews else {}
    for number, column in enumerate(roles.table.c[name] for name in names):
        values[column] = sa.bindparam(f"claimjobs_new_{number}", type_=column.type)
    if not values:
        return None
    is_key = (column == sa.bindparam(f"claimjobs_key_{i}", type_=column.type) for i, column in enumerate(roles.key))
    return sa.update(roles.table).where(*is_key).values(values)


def overwriting(key: Any, values: Iterable[Any]) -> dict[str, Any]:
    """The parameters of `overwrite`."""
    by_key = {f"claimjobs_key_{number}": part for number, part in enumerate(values_of(key))}
    return by_key | {f"claimjobs_new_{number}": value for number, value in enumerate(values)}


def _new(roles: ColumnRoles, now: sa.ColumnElement[Any]) -> dict[Any, Any]:
    """The values of a job that has not run yet."""
    fresh = {roles.attempts: 0, roles.suspect: 0, roles.run_at: now, roles.last_error: None}
    return {column: value for column, value in fresh.items() if column is not None} | _clear_run_again(roles)


def _clear_run_again(roles: ColumnRoles) -> dict[Any, Any]:
    return {} if roles.run_again is None else {roles.run_again: _flag(roles.run_again, False)}


def _flag(column: Column, is_set: bool) -> bool | int:
    """The value of `run_again`, which may be a number."""
    return is_set if isinstance(column.type, sa.Boolean) else int(is_set)

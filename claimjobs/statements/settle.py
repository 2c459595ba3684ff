"""Settle: one statement for each outcome. It writes only those of the jobs `keys` for which the guard holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from claimjobs.dialects import Dialect, Key
from claimjobs.statements.claim_rows import close
from claimjobs.statements.enqueue import disowned
from claimjobs.statements.find import counted
from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.columns import DEAD, DONE, UNCLAIMED
from claimjobs.table.roles import ColumnRoles

Write = TypeVar("Write", sa.Update, sa.Delete)
Failures = Mapping[Key, "Failure"]


@dataclass
class Failure:
    """The failure of a job, or that it is a suspect."""

    error: str | None
    """None: it is not written, because its column refuses every text."""
    wait: float = 0.0
    """Seconds until it runs again."""
    group: int = 0
    """The size of the group of suspects in which it is claimed again; 1: alone; 0: with any other job."""
    raised: BaseException | None = None
    """The exception of the job, if there is one."""


@dataclass(frozen=True)
class SettleGuard:
    """Which jobs a settle may write: those that the owner still holds."""

    roles: ColumnRoles
    dialect: Dialect
    guard: sa.ColumnElement[bool]
    """`ColumnRoles.mine`; or, where the claim row is deleted before, that the columns say `unclaimed`; or true, where
    the locks of the open transaction are enough.
    """

    @property
    def is_lock(self) -> bool:
        return isinstance(self.guard, sa.True_)

    @property
    def filter(self) -> sa.ColumnElement[bool]:
        """The guard as a condition on rows that are found by their keys."""
        return self.guard if self.is_lock else self.dialect.as_filter(self.guard)


def delete(target: SettleGuard) -> sa.Delete:
    """Done: delete the jobs."""
    return _guarded(target.dialect.delete(target.roles.table), target)


def keep(
    target: SettleGuard, now: sa.ColumnElement[Any], columns: Mapping[Key, Mapping[str, Any]] | None = None
) -> sa.Update:
    """Done: keep the jobs as done, with their owner and the time.

    In the transaction that holds the jobs the handler may have written a status of its own: that stays. `columns`:
    values of other columns by key, of the same columns for each.
    """
    roles = target.roles
    values = roles.state.becomes(DONE) | ({} if roles.owner_date is None else {roles.owner_date: now})
    if target.is_lock and (status := roles.status) is not None:
        is_as_claimed = roles.state.job_is(UNCLAIMED)
        values[status] = sa.case((is_as_claimed, sa.literal(values[status], status.type)), else_=status)
    return _guarded(sa.update(roles.table).values(values | values_by_key(roles, columns or {})), target)


def values_by_key(roles: ColumnRoles, columns: Mapping[Key, Mapping[str, Any]]) -> dict[Any, Any]:
    """The values of columns, of the same ones for each key."""
    names = next(iter(columns.values()), {})
    named = [column for column in roles.table.columns if column.name in names]
    given = {column: {key: each[column.name] for key, each in columns.items()} for column in named}
    # The column itself as the last value tells Postgres the type.
    return {column: _by_key(roles, values, column.type, otherwise=column) for column, values in given.items()}


def and_close(write: Write, claim_rows: ClaimRows) -> Write:
    """The write, which also closes the claim row of these jobs: it writes none if `me` does not have that claim row.

    That is done first, because the write asks for it. It needs a database that `returns_what_it_writes`.
    """
    closed = close(claim_rows).returning(claim_rows.table.c.number).cte("claimjobs_closed")
    return write.where(sa.exists().select_from(closed))


def release(target: SettleGuard) -> sa.Update:
    """Release the jobs as they were."""
    return _guarded(sa.update(target.roles.table).values(disowned(target.roles, UNCLAIMED)), target)


def retry(target: SettleGuard, now: sa.ColumnElement[Any], failures: Failures) -> sa.Update:
    """Failed with attempts left: unclaimed, and due again after a while."""
    roles = target.roles
    run_at = roles.need("run_at", "retrying a failed job")
    wait = target.dialect.later(now, _by_key(roles, {key: each.wait for key, each in failures.items()}, sa.Float()))
    values = {**disowned(roles, UNCLAIMED), run_at: wait, **_failure(roles, failures)}
    groups = {key: each.group for key, each in failures.items()}
    if roles.suspect is not None and any(groups.values()):
        values[roles.suspect] = _by_key(roles, groups, sa.Integer())
    return _guarded(sa.update(roles.table).values(values), target)


def suspect(target: SettleGuard, now: sa.ColumnElement[Any], failures: Failures) -> sa.Update:
    """An error that names no job: all are unclaimed, due again after a while, and are claimed in smaller groups.

    They are marked with the size of their group, which is the same for all. No attempt is counted.
    """
    roles, group = target.roles, next(iter(failures.values())).group
    mark = roles.need("suspect", "finding the job that spoils its batch")
    values = {**disowned(roles, UNCLAIMED), mark: sa.bindparam("claimjobs_group_size", group, type_=sa.Integer)}
    if roles.run_at is not None:
        waits = {key: each.wait for key, each in failures.items()}
        values[roles.run_at] = target.dialect.later(now, _by_key(roles, waits, sa.Float()))
    return _guarded(sa.update(roles.table).values(values | _texts(roles, failures)), target)


def mark_dead(target: SettleGuard, now: sa.ColumnElement[Any], failures: Failures) -> sa.Update:
    """Failed for the last time: the jobs are dead from now on, and kept until a person decides."""
    roles = target.roles
    roles.need_state(DEAD, "keeping a job that failed for the last time")
    return _guarded(sa.update(roles.table).values({**disowned(roles, DEAD, now), **_failure(roles, failures)}), target)


def still_mine(target: SettleGuard) -> sa.Select[Any]:
    """Those of the jobs `keys` that `me` still holds: their keys."""
    roles = target.roles
    held = sa.select(*roles.key).where(target.filter).order_by(*roles.key)
    return target.dialect.restrict_to_keys(held, roles.key, roles.key_index)


def lock_mine(target: SettleGuard) -> sa.Select[Any]:
    """The same, and lock them until the settle is committed."""
    return still_mine(target).with_for_update(of=target.roles.table)


def those(target: SettleGuard, predicate: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Those of the jobs `keys` for whose row this holds: their keys."""
    roles, dialect = target.roles, target.dialect
    said = sa.select(*roles.key).where(dialect.as_filter(predicate))
    return dialect.restrict_to_keys(said, roles.key, roles.key_index)


def _guarded(write: Write, target: SettleGuard) -> Write:
    roles, dialect = target.roles, target.dialect
    return dialect.restrict_to_keys(write.where(target.filter), roles.key, roles.key_index)


def _failure(roles: ColumnRoles, failures: Failures) -> dict[Any, Any]:
    values: dict[Any, Any] = {} if roles.attempts is None else {roles.attempts: counted(roles.attempts) + 1}
    if roles.suspect is not None:
        values[roles.suspect] = 0
    return values | _texts(roles, failures)


def _texts(roles: ColumnRoles, failures: Failures) -> dict[Any, Any]:
    """The texts of the errors. Without any the column stays as it is."""
    errors = {key: each.error for key, each in failures.items() if each.error is not None}
    return {roles.last_error: _by_key(roles, errors, sa.Text())} if roles.last_error is not None and errors else {}


def _by_key(
    roles: ColumnRoles,
    values: Mapping[Key, Any],
    type_: sa.types.TypeEngine[Any],
    otherwise: sa.ColumnElement[Any] | None = None,
) -> sa.ColumnElement[Any]:
    """A CASE with one value for each key."""
    cases = []
    for key, value in values.items():
        parts = key if len(roles.key) > 1 else (key,)
        is_key = (column == part for column, part in zip(roles.key, parts, strict=True))
        cases.append((sa.and_(*is_key), sa.literal(value, type_)))
    return sa.case(*cases, else_=otherwise)

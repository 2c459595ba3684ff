"""Which column of a table plays which role for a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.inspector import inspector_of
from claimjobs.dialects import dialect_of
from claimjobs.errors import (
    ColumnMissing,
    ColumnUnfit,
    KeyUnfit,
    Quote,
    StateMissing,
    unique_index,
)
from claimjobs.table.batches import OpenBatches
from claimjobs.table.columns import CLAIMED, DEAD, DONE, STATES, UNCLAIMED, Columns
from claimjobs.table.job_state import Column, State
from claimjobs.table.value_ranges import cut

REQUIRED: Final = ("status", "owner_id")
"""Columns that a table without a map of its columns must have."""
OPTIONAL: Final = ("owner_date", "priority", "run_at", "attempts", "last_error", "suspect", "assignee", "traceparent")
ALL: Final = (*REQUIRED, *OPTIONAL)
LONGEST_ERROR: Final = 2_000
"""Characters of an error that are stored."""


@dataclass(frozen=True)
class ColumnRoles:
    """A table as a queue: its key, its state, its owner and its optional columns."""

    table: sa.Table
    key: tuple[Column, ...]
    state: State
    status: Column | None
    owner_id: Column | None
    owner_date: Column | None
    priority: Column | None
    run_at: Column | None
    attempts: Column | None
    last_error: Column | None
    suspect: Column | None
    assignee: Column | None
    traceparent: Column | None
    states_named: bool = False
    """Whether a map names the values of the states."""
    key_index: str | None = None
    """The index through which a row is found by its key; None: the primary key."""
    depend_on_zone: bool = False
    """Whether a statement on the table depends on the time zone of the session."""
    batches: OpenBatches | None = None
    """The open batches, if these are the claims (`claims="batches"`)."""
    quote: Quote = str
    """Writes a name as the database needs it in a statement."""
    recorded_as: str | None = None
    """The table's name as the server has it, if that was asked."""

    @cached_property
    def name(self) -> str:
        """The table's name, with its schema if it has one."""
        return str(self.table.fullname)  # not the subclass of str that SQLAlchemy uses for some names

    @cached_property
    def claims(self) -> str:
        """The table's name in the records of claims, which are in its own schema: without that, and as the server
        spells it. So each program has the same name for it.
        """
        return self.recorded_as or str(self.table.name)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in the table's order."""
        return tuple(column.name for column in self.table.columns)

    @cached_property
    def payload(self) -> tuple[Column, ...]:
        """The user's columns: those without a role."""
        ours = {getattr(self, role) for role in ALL} | set(self.key)
        return tuple(column for column in self.table.columns if column not in ours)

    @cached_property
    def default_order(self) -> tuple[Column, ...]:
        """Lower priority numbers first, then the key: the order of the claim index."""
        return tuple(dict.fromkeys((*(() if self.priority is None else (self.priority,)), *self.key)))

    def due(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate of a row whose job may be claimed at the instant `now`, if it is `free`."""
        named = [column.is_not(None) for column in self.key if column.nullable]
        ripe = [] if self.run_at is None else [self.ripe(now)]
        return sa.and_(self.state.columns_say(UNCLAIMED), *ripe, *named)

    @property
    def free(self) -> sa.ColumnElement[bool]:
        """The predicate of a job that is in no open batch. True if the columns of a job say whether it is claimed."""
        return sa.true() if self.batches is None else self.batches.without()

    @property
    def guard(self) -> sa.ColumnElement[bool]:
        """The predicate of a row that a settle may write, after it has made sure that the owner holds the job."""
        return self.mine if self.batches is None else self.state.columns_say(UNCLAIMED)

    def ripe(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate that `run_at` is not in the future. Without the column that is always so."""
        run_at = self.run_at
        if run_at is None:
            return sa.true()
        return sa.or_(run_at.is_(None), run_at <= now) if run_at.nullable else run_at <= now

    @cached_property
    def mine(self) -> sa.ColumnElement[bool]:
        """The guard of every settle: the job is still claimed by the owner of the parameter `me`."""
        return self.state.is_claimed_by(sa.bindparam("claimjobs_me", type_=sa.Integer))

    def value_of(self, role: str, row: Mapping[str, Any], otherwise: Any = None) -> Any:
        """The value of a role in a row; `otherwise` if no column plays it, or it is NULL."""
        column: Column | None = getattr(self, role)
        value = None if column is None else row.get(column.name)
        return otherwise if value is None else value

    def key_in(self, row: Mapping[Any, Any]) -> Any:
        """The key of a row, from a mapping of columns: a value, or a tuple where the key has several columns."""
        parts = tuple(row[column] for column in self.key)
        return parts if len(parts) > 1 else parts[0]

    def need(self, role: str, purpose: str) -> Column:
        """The column of an optional role. Raises ColumnMissing, with the purpose, if there is none."""
        column: Column | None = getattr(self, role)
        if column is None:
            raise ColumnMissing(self.name, role, purpose, self.quote)
        return column

    def need_state(self, state: str, purpose: str) -> None:
        """Raise ColumnMissing or StateMissing if a row cannot express this state."""
        if state not in self.state.can:
            if self.status is None:
                raise ColumnMissing(self.name, "status", purpose, self.quote)
            raise StateMissing(self.name, self.status.name, state, purpose)

    def kept_of(self, error: str) -> str:
        """An error, cut to what its column holds, as far as its type says it."""
        return error if self.last_error is None else cut(error, LONGEST_ERROR, self.last_error.type)

    @property
    def can_retry(self) -> bool:
        """Whether a failed job can wait and run again."""
        return self.attempts is not None and self.run_at is not None

    @property
    def can_be_dead(self) -> bool:
        """Whether a job can be dead."""
        return DEAD in self.state.can

    @property
    def can_suspect(self) -> bool:
        """Whether a job can be a suspect and wait."""
        return self.suspect is not None and self.run_at is not None


def roles_of(table: sa.Table, columns: Columns | None = None, key_index: str | None = None) -> ColumnRoles:
    """The roles of a table's columns: by the map, or by their own names.

    Raises ColumnMissing for a column that the map names and the table does not have, KeyUnfit for a table without
    a key, and StateMissing or ColumnUnfit where the values do not distinguish the states.
    """
    given = columns or Columns()
    found: dict[str, Any] = {role: _column(table, role, given.names.get(role)) for role in ALL}
    key = _key(table, given)
    state = State(found["status"], _values(table, found["status"], given.states), found["owner_id"])
    _check(table, state)
    named = given.states is not None
    return ColumnRoles(table=table, key=key, state=state, states_named=named, key_index=key_index, **found)


def check_lease(roles: ColumnRoles, *, mapped: bool) -> None:
    """Check that the table has the columns for a claim by lease. Raises ColumnMissing.

    A table without a map must have the columns under their own names.
    """
    for role in REQUIRED if not mapped else ("owner_id",):
        roles.need(role, "claiming")


def _column(table: sa.Table, role: str, name: str | None) -> Column | None:
    if name is None or (name == role and name not in {column.name for column in table.columns}):
        return None
    return _named(table, name, role)


def _named(table: sa.Table, name: str, role: str) -> Column:
    """The column with this name in the database; in Python it may have another one (`Column(..., key=...)`)."""
    found = [column for column in table.columns if column.name == name]
    if not found:
        raise ColumnMissing(table.fullname, name, "its column map", mapped_as=role)
    return found[0]


def _key(table: sa.Table, columns: Columns) -> tuple[Column, ...]:
    names = columns.key_names or tuple(column.name for column in table.primary_key)
    if not names:
        raise KeyUnfit(
            f"table {table.fullname!r} has no primary key to name a job by: add one, or choose another table"
        )
    return tuple(_named(table, name, "key") for name in names)


def _values(table: sa.Table, status: Column | None, states: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The value of each state that the status column can express."""
    if status is None:
        return {}
    values = dict(states) if states is not None else _words(status)
    if UNCLAIMED not in values:
        raise StateMissing(table.fullname, status.name, UNCLAIMED, "claiming")
    return values


def _words(status: Column) -> dict[str, Any]:
    if _is_boolean(status):
        return {UNCLAIMED: True, CLAIMED: False, DONE: False}
    if not isinstance(status.type, sa.String):  # an Enum is a String, too
        return {}
    allowed = status.type.enums if isinstance(status.type, sa.Enum) else STATES
    return {state: state for state in STATES if state in allowed}


def _is_boolean(column: Column) -> bool:
    """Whether a column is boolean, also in a database that stores booleans as numbers of one digit."""
    return isinstance(column.type, sa.Boolean) or getattr(column.type, "display_width", None) == 1


def _check(table: sa.Table, state: State) -> None:
    """Check that no two states have the same value. Raises ColumnUnfit.

    A claimed job may have the value of another state, because its owner distinguishes it.
    """
    distinct = [one for one in (UNCLAIMED, DONE, DEAD) if one in state.values]
    for first, second in combinations(distinct, 2):
        if state.column is not None and state.values[first] == state.values[second]:
            raise ColumnUnfit(
                f"{first!r} and {second!r} are both {state.values[first]!r} in column {state.column.name!r} of table "
                f"{table.fullname!r}, so nothing distinguishes them: choose another value for one of them, or leave "
                f"{second!r} out of the states"
            )


def key_index(connection: sa.Connection, roles: ColumnRoles, *, unique: bool = False) -> str | None:
    """The index that begins with the key's columns; None: it is the primary key. Raises KeyUnfit.

    `unique`: it must be a unique index over the key.
    """
    names = {column.name for column in roles.key}
    table, inspector = roles.table, inspector_of(connection)
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    if set(primary[: None if unique else len(names)]) == names:
        return None
    fit: list[str] = []
    for index in inspector.get_indexes(table.name, schema=table.schema):
        columns = index["column_names"] if unique else index["column_names"][: len(names)]
        if set(columns) == names and index["name"] and is_whole(index) and (index["unique"] or not unique):
            fit.append(index["name"])
    unused = dialect_of(connection).table_rules.unused_indexes(connection, table)
    used = [name for name in fit if name not in unused]
    if not used:
        key = [column.name for column in roles.key]
        which = (
            f" that statements can use (not {', '.join(fit)}, which is invisible, ignored or invalid)" if fit else ""
        )
        step = unique_index(table.fullname, key, quote_of(connection))
        raise KeyUnfit(f"no index of table {table.fullname!r}{which} begins with its key, {', '.join(key)}: {step}")
    return used[0]


def quote_of(connection: sa.Connection) -> Quote:
    """The function that quotes names for this connection's database."""
    quote: Quote = connection.dialect.identifier_preparer.quote
    return quote


def is_whole(index: Any) -> bool:
    """Whether a reflected index contains every row: one with a WHERE does not."""
    return not any(option.endswith("_where") for option in index.get("dialect_options", ()))

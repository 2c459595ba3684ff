"""Which column of a table plays which role for a queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import inspector_of
from claimjobs.dialects import dialect_of
from claimjobs.errors import ColumnMissing, ColumnUnfit, KeyUnfit, Quote, StateMissing, UnfitTable, unique_index
from claimjobs.table.claim_rows import ME, ClaimRows
from claimjobs.table.columns import CLAIMED, DEAD, DONE, ENDED, ROLES, STATES, UNCLAIMED, Columns
from claimjobs.table.ddl import undoubled
from claimjobs.table.job_state import Column, State, StateByClaimRows

REQUIRED: Final = ("status", "owner_id")
"""Columns that a table without a map of its columns must have, for claims in the rows of jobs."""
IS_CLAIMED_AGAIN: Final = "is released and claimed again without end (a run with --drain gives up)"
"""What happens to a job whose failure cannot be stored."""
LONGEST_ERROR: Final = 2_000
"""Characters of an error that are stored."""
TEXTS_IN_BYTES: Final = {"TINYTEXT": 255, "TINYBLOB": 255}
"""How much types hold whose length is part of their name."""


@dataclass(frozen=True)
class ColumnRoles:
    """A table as a queue: its key, its state, its owner and its optional columns."""

    table: sa.Table
    name: str
    """The table's name, with its schema if it has one."""
    key: tuple[Column, ...]
    key_names: tuple[str, ...]
    columns: tuple[str, ...]
    """The names of all columns, in the table's order."""
    payload: tuple[Column, ...]
    """The user's columns: those without a role."""
    default_order: tuple[Column, ...]
    """Lower priority numbers first, then the key: the order of the claim index."""
    state: State
    status: Column | None
    owner_id: Column | None
    owner_date: Column | None
    priority: Column | None
    run_at: Column | None
    attempts: Column | None
    last_error: Column | None
    suspect: Column | None
    run_again: Column | None
    traceparent: Column | None

    failure_counts: Sequence[Column]
    """The columns that are above 0 if a job failed before, or is a suspect."""
    can_be_dead: bool
    can_retry: bool
    """Whether a failed job can wait and run again."""
    can_suspect: bool
    """Whether a job can be a suspect and wait."""
    can_isolate: bool
    """Whether a job that ends its processes is found, and is dead in the end."""

    recorded_as: str
    """The table's name in the rows of owners, pauses and claims, which are in its own schema: without that, and as the
    server spells it. So each program has the same name for it.
    """
    states_named: bool = False
    """Whether a map names the values of the states."""
    key_index: str | None = None
    """The index through which a row is found by its key; None: the primary key."""
    depend_on_zone: bool = False
    """Whether a statement on the table depends on the time zone of the session."""
    claim_rows: ClaimRows | None = None
    """The claim rows, if these are the claims (`claims="batches"`)."""
    quote: Quote = str
    """Writes a name as the database needs it in a statement."""

    def due(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate of a row whose job may be claimed at the instant `now`, if it is `in_no_claim_row`."""
        return sa.and_(self.state.row_says(UNCLAIMED), self.run_at_passed(now), *self.has_key)

    @property
    def has_key(self) -> Sequence[sa.ColumnElement[bool]]:
        """The predicates of a row that no column of its key leaves out, as one may that can be NULL."""
        return [column.is_not(None) for column in self.key if column.nullable]

    @property
    def has_failed(self) -> sa.ColumnElement[bool]:
        """The predicate of a row whose job failed before, or is a suspect."""
        return sa.or_(sa.false(), *(column > 0 for column in self.failure_counts))

    @property
    def in_no_claim_row(self) -> sa.ColumnElement[bool]:
        """The predicate of a job that is in no claim row. True if the columns of a job say whether it is claimed."""
        return self.state.in_no_claim_row()

    def claimed_in(self, claim_rows: ClaimRows) -> ColumnRoles:
        """The same table, with its claims in these rows."""
        rows, state = replace(claim_rows, key=self.key), self.state
        by_rows = StateByClaimRows(state.column, state.values, state.owner, claim_rows=rows)
        return replace(self, state=by_rows, claim_rows=rows)

    def run_at_passed(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate that `run_at` is not in the future. Without the column that is always so."""
        run_at = self.run_at
        if run_at is None:
            return sa.true()
        return sa.or_(run_at.is_(None), run_at <= now) if run_at.nullable else run_at <= now

    @cached_property
    def mine(self) -> sa.ColumnElement[bool]:
        """The guard of every settle: the job is still claimed by the owner of the parameter `me`."""
        return self.state.is_claimed_by(ME)

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

    def lacking(self, *roles: str) -> Iterator[UnfitTable]:
        """What the table lacks to store a failure in these columns, and that a job is dead: each as an error."""
        for role in (*roles, DEAD):
            try:
                (self.need_state if role == DEAD else self.need)(role, "storing a failure")
            except UnfitTable as lack:
                yield lack


def cut(text: str, longest: int, type_: sa.types.TypeEngine[Any]) -> str:
    """A text of at most so many characters, and no longer than a column of this type holds."""
    length = getattr(type_, "length", None)
    if isinstance(type_, sa.types._Binary):
        most_bytes = length
    else:
        most_bytes, longest = TEXTS_IN_BYTES.get(type_.__visit_name__), min(longest, length or longest)
    kept = text if len(text) <= longest else text[: longest - 1] + "…"
    if most_bytes is None or len(kept.encode()) <= most_bytes:
        return kept
    return kept.encode()[: max(0, most_bytes - len("…".encode()))].decode(errors="ignore") + "…"


def roles_of(table: sa.Table, columns: Columns | None = None) -> ColumnRoles:
    """The roles of a table's columns: by the map, or by their own names.

    Raises ColumnMissing for a column that the map names and the table does not have, KeyUnfit for a table without
    a key, and StateMissing or ColumnUnfit where the values do not distinguish the states.
    """
    given = columns or Columns()
    there = table.columns
    names = {role: name for role, name in given.names.items() if name != role or name in there}
    key_names = given.key_names or tuple(column.name for column in table.primary_key)
    named = (*names.items(), *(("key", name) for name in key_names))
    if missing := [(role, name) for role, name in named if name not in there]:
        (role, first), *others = missing
        role += "".join(f", and no column {name!r}, named as {other}" for other, name in others)
        raise ColumnMissing(table.fullname, first, "its column map", mapped_as=role)
    if not key_names:
        raise KeyUnfit(
            f"table {table.fullname!r} has no primary key to name a job by: add one, or choose another table"
        )
    found: dict[str, Any] = {role: there[names[role]] if role in names else None for role in ROLES}
    key, priority, can_wait = tuple(there[name] for name in key_names), found["priority"], found["run_at"] is not None
    state = State(found["status"], _values(table, found["status"], given.states), found["owner_id"])
    can_retry, can_suspect = can_wait and found["attempts"] is not None, can_wait and found["suspect"] is not None
    return ColumnRoles(
        table=table,
        name=str(table.fullname),  # not the subclass of str that SQLAlchemy uses for some names
        key=key,
        key_names=tuple(key_names),
        columns=tuple(there.keys()),
        payload=tuple(column for column in table.columns if column not in {*found.values(), *key}),
        default_order=key if priority is None else tuple(dict.fromkeys((priority, *key))),
        state=state,
        failure_counts=[found[role] for role in ("attempts", "suspect") if found[role] is not None],
        can_be_dead=DEAD in state.can,
        can_retry=can_retry,
        can_suspect=can_suspect,
        can_isolate=can_retry and can_suspect and DEAD in state.can,
        recorded_as=str(table.name),
        states_named=given.states is not None,
        **found,
    )


def _values(table: sa.Table, status: Column | None, states: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The value of each state that the status column can express: those of the map, or the words themselves.

    No two states have the same value, but a claimed job may have that of another state: its owner distinguishes it.
    """
    if status is None:
        return {}
    values = dict(states or {})
    # A database may store booleans as numbers of one digit.
    if states is None and (isinstance(status.type, sa.Boolean) or getattr(status.type, "display_width", None) == 1):
        values = {UNCLAIMED: True, CLAIMED: False, DONE: False}
    elif states is None and isinstance(status.type, sa.String):  # an Enum is a String, too
        allowed = status.type.enums if isinstance(status.type, sa.Enum) else STATES
        values = {state: state for state in STATES if state in allowed}
    if UNCLAIMED not in values:
        raise StateMissing(table.fullname, status.name, UNCLAIMED, "claiming")
    for first, second in combinations([state for state in (UNCLAIMED, *ENDED) if state in values], 2):
        if values[first] == values[second]:
            raise ColumnUnfit(
                f"{first!r} and {second!r} are both {values[first]!r} in column {status.name!r} of table "
                f"{table.fullname!r}, so nothing distinguishes them: choose another value for one of them, or leave "
                f"{second!r} out of the states"
            )
    return values


def key_index(connection: sa.Connection, roles: ColumnRoles, *, unique: bool = False) -> str | None:
    """The index that begins with the key's columns; None: it is the primary key. Raises KeyUnfit.

    `unique`: it must be a unique index over the key.
    """
    names, table, inspector = {*roles.key_names}, roles.table, inspector_of(connection)
    size = None if unique else len(names)
    if set(inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"][:size]) == names:
        return None
    unused = dialect_of(connection).table_rules.unused_indexes(connection, table)
    for index in inspector.get_indexes(table.name, schema=table.schema):
        fits = set(index["column_names"][:size]) == names and not is_partial(index) and (index["unique"] or not unique)
        if fits and index["name"] and index["name"] not in unused:
            return index["name"]
    raise KeyUnfit(
        f"no index of table {table.fullname!r} that statements can use begins with its key, "
        f"{', '.join(roles.key_names)}: {unique_index(table.fullname, roles.key_names, quote_of(connection))}"
    )


def quote_of(connection: sa.Connection) -> Quote:
    """The function that quotes names for this connection's database, in text for a person."""
    dialect = connection.dialect
    return lambda name: undoubled(dialect.identifier_preparer.quote(name), dialect)


def is_partial(index: Any) -> bool:
    """Whether a reflected index has a WHERE, so that it does not contain every row."""
    return any(option.endswith("_where") for option in index.get("dialect_options", ()))

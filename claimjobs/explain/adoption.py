"""Adoption: how a table that is there already can become a queue, looked at and proposed; nothing is changed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.error_translation import predicate_errors
from claimjobs.database.inspector import inspector_of
from claimjobs.dialects import dialect_named_by
from claimjobs.statements import samples
from claimjobs.table.acceptance import check_no_own, check_table, integer_range
from claimjobs.table.columns import Columns
from claimjobs.table.ddl import add_value
from claimjobs.table.definitions import LAST_OWNER, shared_tables
from claimjobs.table.predicates import Whole
from claimjobs.table.reflection import columns_in_database, resolve
from claimjobs.table.tables_beside import side_car_tables

KINDS: Final = ("rows", "batches", "transaction", "side-car")
NAMES: Final[Mapping[str, Sequence[str]]] = {
    "status": ("status", "state"),
    "owner_id": ("owner_id", "worker_id", "worker", "locked_by", "claimed_by"),
    "owner_date": ("owner_date", "locked_at", "claimed_at"),
    "priority": ("priority", "prio"),
    "run_at": ("run_at", "due_at", "scheduled_at", "scheduled_for", "available_at", "not_before"),
    "attempts": ("attempts", "tries", "retries", "failures"),
    "last_error": ("last_error", "error", "error_message"),
    "suspect": ("suspect",),
    "run_again": ("run_again",),
}
"""Names by which a column is proposed for a role, if it fits."""
TYPES: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "status": (sa.String, sa.Integer, sa.Numeric, sa.Boolean),
    "owner_id": (sa.Integer,),
    "owner_date": (sa.DateTime,),
    "priority": (sa.Integer, sa.Numeric, sa.Float),
    "run_at": (sa.DateTime,),
    "attempts": (sa.Integer,),
    "last_error": (sa.String,),
    "suspect": (sa.Integer,),
    "run_again": (sa.Boolean, sa.Integer),
}
"""The types of a column that fits a role."""
UNUSED: Final[Mapping[str, Any]] = {
    "owner_id": None,
    "owner_date": None,
    "attempts": 0,
    "last_error": None,
    "suspect": 0,
    "run_again": False,
}
"""The roles whose values are all written by claimjobs, and the value that is no user's data, beside NULL.

`run_at` is none of them: producers write it too, and without it jobs would run before their time.
"""
WRITTEN: Final = ("status", "owner_id", "owner_date")
"""The roles in which a claim in rows writes."""
RETRIED: Final = ("run_at", "attempts", "last_error", "suspect")
"""The roles in which a failure is stored."""
LOOKED_AT: Final = 10_000
"""Rows of which the values of a status are read, and up to which rows are counted."""
MOST_VALUES: Final = 12
"""A column with more values than that is no status."""


@dataclass(frozen=True)
class Adoption:
    """A table, as it was found."""

    engine: sa.Engine
    table: sa.Table
    rows: int
    """How many rows it has; LOOKED_AT or more, if it is that number."""
    key: tuple[str, ...]
    names: Mapping[str, str]
    """For each role a column that may play it, by its name."""
    values: Mapping[Any, int]
    """The values of the status column in the first rows, and how many rows have each."""

    def columns(self, kind: str) -> Columns:
        """The map for this kind, without the values of states.

        A column that has the name of a role, but does not fit, does not play it: another one does, or none.
        """
        primary = tuple(column.name for column in self.table.primary_key)
        key: Any = None if self.key == primary else self.key if len(self.key) > 1 else self.key[0]
        taken, lacking = {column.name.lower() for column in self.table.columns}, self.lacks(kind)
        others = {role: claim_name(role) if role in lacking else None for role in NAMES if role in taken}
        names: Any = {**others, **self.names}
        return Columns(key=key, **names)

    def lacks(self, kind: str) -> list[str]:
        """The roles without a column that this kind, or a failed job, needs one for."""
        wanted = {"side-car": (), "rows": (*WRITTEN, *RETRIED)}.get(kind, RETRIED)
        return [role for role in wanted if role not in self.names]

    def refused(self) -> Iterator[tuple[str, str]]:
        """The columns that have a name of a role, but do not fit it, each with that role."""
        others = [column.name for column in self.table.columns if column.name not in self.names.values()]
        for role in UNUSED:
            yield from ((name, role) for name in others if name.lower() in NAMES[role])

    def proposed(self) -> str:
        """The kind that alters least: the table's own columns, if it has those of a queue; else a side-car."""
        return "rows" if {"status", "owner_id", "attempts", "run_at"} <= self.names.keys() else "side-car"

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Each kind, and what speaks for it or against it."""
        count = len(self.lacks("rows"))
        has = "the table has what it needs" if not count else f"{count} columns must be added"
        yield "rows", f"{has}; each row says who holds it"
        fewer = len(self.lacks("batches"))
        needs = f"{fewer} columns must be added for retries" if fewer else "the table has what it needs"
        yield "batches", f"{needs}; one row is written for each batch, and no job's row says who holds it"
        yield "transaction", f"for work in this database: exactly once; a batch takes seconds at most; {needs}"
        yield "side-car", "nothing of the table is altered; outcomes are in a second table"


def inspect_for_adoption(engine: sa.Engine, name: str) -> Adoption:
    """Read what a table has, and what its columns may be.

    Raises TableMissing, and NotClaimable or KeyUnfit for one that can be no queue.
    """
    dialect = dialect_for(engine)
    with connected(engine) as connection:
        table = resolve(connection, name)
        check_no_own(table)
        check_table(connection, dialect, table)
        there = columns_in_database(connection, table)
        for column in table.columns:
            column.type = there[column.name]["type"]  # as the database has it, also of an instant
        names = dict(_names(connection, table, there))
        values = _values(connection, table, names)
        if len(values) > MOST_VALUES:
            names.pop("status", None)
            values = {}
        some: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(table).limit(LOOKED_AT)
        rows = connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0
        key = tuple(column.name for column in table.primary_key) or _unique(connection, table, there)
    return Adoption(engine, table, rows, key, names, values)


def flaw_of_value(found: Adoption, value: Any) -> str | None:
    """Why the status column cannot have a value, with the next step; None: it can."""
    column = found.table.c[found.names["status"]]
    flaw = f"column {column.name!r} of table {found.table.fullname!r} cannot have the value {value!r}"
    if isinstance(column.type, sa.Enum) and value not in column.type.enums:
        has, sql = ", ".join(map(repr, column.type.enums)), add_value(found.engine, column, value)
        return f"{flaw}, but only {has}: check the value, or extend the type first: {sql}"
    if isinstance(column.type, (sa.Integer, sa.Numeric)) and isinstance(value, str):
        return f"{flaw}, but only numbers: give a whole number"
    return None


def has_value(found: Adoption, value: Any) -> bool:
    """Whether one of the first rows has this value in the status column, as the database compares them."""
    first = samples.first_with(found.table.c[found.names["status"]], value, among=LOOKED_AT)
    with connected(found.engine) as connection:
        return connection.scalar(first) is not None


def check_where(found: Adoption, where: str) -> None:
    """Have the database read a predicate. Raises BadPredicate."""
    dialect = dialect_named_by(found.engine)
    whole = Whole(sa.literal_column(f"{where}\n", sa.Boolean), dialect.lexis, "predicate")  # it may end in a comment
    trial: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(found.table).where(whole).limit(0)
    with connected(found.engine) as connection, predicate_errors(dialect):
        connection.execute(trial)


def claim_name(role: str) -> str:
    """The name of a column that is added for a role whose own name is the user's."""
    return f"claim_{role}"


def _names(connection: sa.Connection, table: sa.Table, there: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """For each role the first column by its names that fits. Of a role in UNUSED no column with a user's data does."""
    lower = {name.lower(): name for name in there}
    used = {column.name for column in table.primary_key} | {name for name in there if "computed" in there[name]}
    used.update(dialect_named_by(connection).table_rules.partition_columns(connection, table))
    for reference in inspector_of(connection).get_foreign_keys(table.name, schema=table.schema):
        used.update(reference["constrained_columns"])
    for role, names in NAMES.items():
        for name in (lower[name] for name in (claim_name(role), *names) if name in lower):
            fits = _has_type(role, there[name])
            if fits and role in UNUSED and name.lower() != claim_name(role):  # that one is ours, from a run before
                fits = name not in used and _is_unused(connection, table.c[name], UNUSED[role])
            if fits:
                yield role, name
                break


def _has_type(role: str, found: Mapping[str, Any]) -> bool:
    type_ = found["type"]
    if not isinstance(type_, TYPES[role]) or (isinstance(type_, sa.Enum) and role != "status"):
        return False
    if role == "owner_id" and integer_range(type_)[1] < LAST_OWNER:
        return False
    return bool(found["nullable"]) or UNUSED.get(role, "") is not None


def _is_unused(connection: sa.Connection, column: sa.Column[Any], unused: Any) -> bool:
    """Whether the first rows have nothing in this column but NULL and this value."""
    first = sa.select(column.label("value")).limit(LOOKED_AT).subquery()
    has_value = first.c.value.is_not(None) if unused is None else first.c.value != unused
    return connection.scalar(sa.select(sa.literal_column("1")).select_from(first).where(has_value).limit(1)) is None


def _values(connection: sa.Connection, table: sa.Table, names: Mapping[str, str]) -> dict[Any, int]:
    if "status" not in names:
        return {}
    first = sa.select(table.c[names["status"]].label("value")).limit(LOOKED_AT).subquery()
    count = sa.func.count().label("rows")
    found = connection.execute(sa.select(first.c.value, count).group_by(first.c.value).order_by(count.desc()))
    return {row.value: row.rows for row in found if isinstance(row.value, Hashable)}  # a SET of MySQL is not


def _unique(connection: sa.Connection, table: sa.Table, there: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of a unique index without NULLs, for a table without a primary key."""
    for index in inspector_of(connection).get_indexes(table.name, schema=table.schema):
        columns = [name for name in index["column_names"] if name is not None]
        if index["unique"] and columns and not any(there[name]["nullable"] for name in columns):
            return tuple(columns)
    return ()


@dataclass(frozen=True)
class Plan:
    """What was chosen for a table."""

    found: Adoption
    kind: str
    states: Mapping[str, Any]
    """Which value of the status column means which state, as it was said."""
    where: str | None = None
    on_done: str | None = None

    def described(self) -> dict[str, Any]:
        """The parameters of the Queue."""
        kinds: dict[str, dict[str, Any]] = {
            "rows": {},
            "batches": {"claims": "batches"},
            "transaction": {"hold": "transaction"},
            "side-car": {"side_car": True},
        }
        given: dict[str, Any] = {"table": self.found.table.fullname, **kinds[self.kind]}
        columns = self.found.columns(self.kind)
        if self.kind == "side-car":
            given["columns"] = Columns(key=columns.key, priority=columns.priority, run_at=columns.run_at)
        else:
            given["columns"] = Columns(**{**vars(columns), "states": dict(self.states) or None})
        more = {"where": self.where, "on_done": self.on_done}
        return given | {name: value for name, value in more.items() if value is not None}

    def tables(self) -> list[sa.Table]:
        """The tables that this queue needs beside its own."""
        name, schema = self.found.table.fullname, self.found.table.schema
        if self.kind == "side-car":
            return side_car_tables(self.found.engine, name, columns=self.described()["columns"])
        return shared_tables(schema)


def with_locks(engine: sa.Engine, statement: str) -> str:
    """A statement of DDL, after a comment that says what it locks."""
    locks = dialect_named_by(engine).table_rules.locks
    note = next((note for words, note in locks.items() if statement.startswith(words)), None)
    return statement if note is None else f"-- {note}\n{statement}"

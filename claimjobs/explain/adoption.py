"""Adoption: how a table that is there already can become a queue, looked at and proposed; nothing is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for
from claimjobs.database.inspector import inspector_of
from claimjobs.dialects import dialect_named_by
from claimjobs.table.acceptance import check_no_own, check_table
from claimjobs.table.columns import Columns
from claimjobs.table.definitions import shared_tables
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
}
"""Names by which a column is proposed for a role."""
WRITTEN: Final = ("status", "owner_id", "owner_date")
"""The roles in which a claim in rows writes."""
RETRIED: Final = ("run_at", "attempts", "last_error", "suspect")
"""The roles in which a failure is stored."""
LOOKED_AT: Final = 10_000
"""Rows of which the values of a status are read, and up to which rows are counted."""
EQUAL: Final = re.compile(r"\b(\w+)[\"`]?\s*=\s*(?:'((?:[^']|'')*)'|(-?\d+(?:\.\d+)?))")
"""A comparison of a column in SQL: the column, and its text or its number."""
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

    @property
    def columns(self) -> Columns:
        """The map of what was found, without the values of states."""
        primary = tuple(column.name for column in self.table.primary_key)
        key: Any = None if self.key == primary else self.key if len(self.key) > 1 else self.key[0]
        names: Any = dict(self.names)
        return Columns(key=key, **names)

    def table_alone(self) -> sa.Table:
        """The same table for another database: without comments, and without what refers to other tables."""
        alone = sa.Table(self.table.name, sa.MetaData(schema=self.table.schema))
        for column in self.table.columns:
            copied = column._copy()
            copied.comment = None
            if column.autoincrement is True:
                copied.server_default = None  # it may name a sequence, which the new table gets by itself
            alone.append_column(copied)
        if not list(self.table.primary_key):
            sa.Index(f"{self.table.name}_key", *(alone.c[name] for name in self.key), unique=True)
        return alone

    def lacks(self, kind: str) -> list[str]:
        """The roles without a column that this kind, or a failed job, needs one for."""
        wanted = {"side-car": (), "rows": (*WRITTEN, *RETRIED)}.get(kind, RETRIED)
        return [role for role in wanted if role not in self.names and role not in self.table.c]

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
        names = dict(_names(there))
        values = _values(connection, table, names)
        if len(values) > MOST_VALUES:
            names.pop("status", None)
            values = {}
        some: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(table).limit(LOOKED_AT)
        rows = connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0
        key = tuple(column.name for column in table.primary_key) or _unique(connection, table, there)
    return Adoption(engine, table, rows, key, names, values)


def _names(there: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    lower = {name.lower(): name for name in there}
    for role, names in NAMES.items():
        found = next((lower[name] for name in names if name in lower), None)
        if found is not None and (role != "owner_id" or there[found]["nullable"]):
            yield role, found


def _values(connection: sa.Connection, table: sa.Table, names: Mapping[str, str]) -> dict[Any, int]:
    if "status" not in names:
        return {}
    first = sa.select(table.c[names["status"]].label("value")).limit(LOOKED_AT).subquery()
    count = sa.func.count().label("rows")
    found = connection.execute(sa.select(first.c.value, count).group_by(first.c.value).order_by(count.desc()))
    return {row.value: row.rows for row in found}


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
        columns = self.found.columns
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

    def waiting_row(self) -> dict[str, Any]:
        """A row that is a job that waits: values for the columns that have no default, or that `where` compares."""
        columns = self.found.table.columns
        row = {column.name: self._sample(column) for column in columns if self._must_be_given(column)}
        for name, text, number in EQUAL.findall(self.where or ""):
            if name in columns:
                row[name] = json.loads(number) if number else text.replace("''", "'")
        return row

    def _must_be_given(self, column: sa.Column[Any]) -> bool:
        is_status = column.name == self.found.names.get("status") and "unclaimed" in self.states
        is_counted = column.autoincrement is True or column.identity is not None or column.computed is not None
        return is_status or (not column.nullable and column.server_default is None and not is_counted)

    def _sample(self, column: sa.Column[Any]) -> Any:
        if column.name == self.found.names.get("status"):
            return self.states.get("unclaimed", next(iter(self.found.values), "new"))
        type_ = column.type
        if isinstance(type_, sa.Enum):
            return type_.enums[0]
        if isinstance(type_, sa.Boolean):
            return True
        if isinstance(type_, (sa.Integer, sa.Numeric)):
            return 1
        if isinstance(type_, sa.DateTime):
            return datetime(2026, 1, 1, tzinfo=UTC).isoformat()
        return date(2026, 1, 1).isoformat() if isinstance(type_, sa.Date) else "x"


def with_locks(engine: sa.Engine, statement: str) -> str:
    """A statement of DDL, after a comment that says what it locks."""
    locks = dialect_named_by(engine).table_rules.locks
    note = next((note for words, note in locks.items() if statement.startswith(words)), None)
    return statement if note is None else f"-- {note}\n{statement}"

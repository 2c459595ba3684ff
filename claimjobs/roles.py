"""Which column of a table plays which role for a queue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects.types import Instant, WholeSecond
from claimjobs.errors import ColumnMissing, NoPrimaryKey, TableMissing
from claimjobs.schema import CLAIMED, UNCLAIMED

Column = sa.Column[Any]

REQUIRED = ("status", "owner_id")
OPTIONAL = ("owner_date", "priority", "run_at", "attempts", "last_error", "suspect")
INSTANTS = {"owner_date": WholeSecond, "run_at": Instant}


@dataclass(frozen=True)
class Roles:
    """A table seen as a queue: its key, its state, its owner, and what else it has."""

    table: sa.Table
    key: tuple[Column, ...]
    status: Column
    owner_id: Column
    owner_date: Column | None
    priority: Column | None
    run_at: Column | None
    attempts: Column | None
    last_error: Column | None
    suspect: Column | None

    @cached_property
    def name(self) -> str:
        """The table's name with its schema, as a person would write it."""
        return self.table.fullname

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in the table's order."""
        return tuple(column.name for column in self.table.columns)

    @cached_property
    def payload(self) -> tuple[Column, ...]:
        """The columns that are the user's own."""
        ours = {*REQUIRED, *OPTIONAL, *(column.name for column in self.key)}
        return tuple(column for column in self.table.columns if column.name not in ours)

    @cached_property
    def default_order(self) -> tuple[Column, ...]:
        """Lower priority numbers first, then the key: the order of the claim index."""
        return (*(() if self.priority is None else (self.priority,)), *self.key)

    def due(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate of a job that may be claimed at the instant `now`."""
        waiting = self.status == UNCLAIMED
        return waiting if self.run_at is None else sa.and_(waiting, self.run_at <= now)

    @cached_property
    def mine(self) -> sa.ColumnElement[bool]:
        """The guard of every way out of `claimed`: still claimed, and by the parameter `me`."""
        return sa.and_(self.status == CLAIMED, self.owner_id == sa.bindparam("me", type_=sa.Integer))

    def need(self, role: str, purpose: str) -> Column:
        """The column of an optional role, or ColumnMissing that says what it is wanted for."""
        column: Column | None = getattr(self, role)
        if column is None:
            raise ColumnMissing(self.name, role, purpose)
        return column


def roles_of(table: sa.Table) -> Roles:
    """The roles of a table's columns, by their names.

    Raises ColumnMissing where a required column is not there, NoPrimaryKey where no key is.
    """
    for role in REQUIRED:
        if role not in table.c:
            raise ColumnMissing(table.fullname, role, "claiming")
    if not table.primary_key.columns:
        raise NoPrimaryKey(table.fullname)
    columns = {role: table.c.get(role) for role in (*REQUIRED, *OPTIONAL)}
    return Roles(table=table, key=tuple(table.primary_key), **columns)  # type: ignore[arg-type]


def resolve(connection: sa.Connection, table: str | sa.Table | type[Any]) -> sa.Table:
    """The table that a name, a `Table` or a mapped class stands for, found to be in the database as described.

    Raises TableMissing or ColumnMissing.
    """
    if isinstance(table, str):
        return _reflect(connection, table)
    described = table if isinstance(table, sa.Table) else _mapped_table(table)
    there = _columns(connection, described.fullname)
    missing = [column.name for column in described.columns if column.name not in there]
    if missing:
        raise ColumnMissing(described.fullname, missing[0], "its description in Python")
    return described


def _reflect(connection: sa.Connection, name: str) -> sa.Table:
    _columns(connection, name)
    schema, _, bare = name.rpartition(".")
    known = [("column_reflect", _as_instant)]
    return sa.Table(bare, sa.MetaData(), schema=schema or None, autoload_with=connection, listeners=known)


def _as_instant(_inspector: Any, _table: sa.Table, column: Any) -> None:
    """Columns that hold an instant come back aware, also from a type that knows no time zone."""
    if column["name"] in INSTANTS:
        column["type"] = INSTANTS[column["name"]]()


def _columns(connection: sa.Connection, name: str) -> set[str]:
    schema, _, bare = name.rpartition(".")
    try:
        return {column["name"] for column in sa.inspect(connection).get_columns(bare, schema=schema or None)}
    except sa.exc.NoSuchTableError:
        raise TableMissing(name) from None


def _mapped_table(mapped: type[Any]) -> sa.Table:
    table = sa.inspect(mapped).local_table
    if not isinstance(table, sa.Table):
        raise TypeError(f"{mapped!r} is mapped to {table!r}, which is no table: give a class mapped to one")
    return table

"""Adoption: how a table that is there already can become a queue, and the statements that add what it lacks for that.

It is looked at and proposed; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from claimjobs.database.connect import connected, dialect_for, inspector_of
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import ColumnUnfit, state_option
from claimjobs.settings import Settings
from claimjobs.table.acceptance import check_no_own, check_table, integer_range
from claimjobs.table.claim_index import indexes_of, missing_index
from claimjobs.table.columns import OURS, STATES, UNCLAIMED, Columns
from claimjobs.table.create import alter, side_car_tables, tables_for
from claimjobs.table.ddl import add_column, add_value
from claimjobs.table.definitions import LAST_OWNER, job_table, shared_tables
from claimjobs.table.predicates import order_of, predicates_of
from claimjobs.table.reflection import as_spelled, columns_in_database, resolve
from claimjobs.table.roles import roles_of

INDEX: Final = "claim-index"
ADDABLE: Final = (*OURS, INDEX)
"""What can be added to an existing table: columns by their roles, and the index that claims read."""

USERS: Final = object()
"""No value: the user's programs write the role, too."""


class Fit(NamedTuple):
    """Which columns fit a role."""

    names: Sequence[str]
    """A column is proposed by these names."""
    types: tuple[type[Any], ...]
    unused: Any = USERS
    """The value that is no user's data, beside NULL, of a role whose values are all written by claimjobs."""


FITS: Final[Mapping[str, Fit]] = {
    "status": Fit(("status", "state"), (sa.String, sa.Integer, sa.Numeric, sa.Boolean)),
    "owner_id": Fit(("owner_id", "worker_id", "worker", "locked_by", "claimed_by"), (sa.Integer,), None),
    "owner_date": Fit(("owner_date", "locked_at", "claimed_at"), (sa.DateTime,), None),
    "priority": Fit(("priority", "prio"), (sa.Integer, sa.Numeric, sa.Float)),
    # Producers write it, too, and without it jobs would run before their time.
    "run_at": Fit(("run_at", "due_at", "scheduled_at", "scheduled_for", "available_at", "not_before"), (sa.DateTime,)),
    "attempts": Fit(("attempts", "tries", "retries", "failures"), (sa.Integer,), 0),
    "last_error": Fit(("last_error", "error", "error_message"), (sa.String,), None),
    "suspect": Fit(("suspect",), (sa.Integer,), 0),
    "run_again": Fit(("run_again",), (sa.Boolean, sa.Integer), False),
}
ADDED: Final = "claim_{}"
"""The name of a column that is added for a role whose own name is the user's."""
WRITTEN: Final = ("status", "owner_id", "owner_date")
"""The roles in which a claim in rows writes."""
RETRIED: Final = ("run_at", "attempts", "last_error", "suspect")
"""The roles in which a failure is stored."""
ROWS_READ: Final = 10_000
"""Rows of which the values of a status are read, and up to which rows are counted."""
MOST_VALUES: Final = 12
"""A column with more values than that is no status."""


@dataclass(frozen=True)
class Adoption:
    """A table, as it was found."""

    engine: sa.Engine
    table: sa.Table
    rows: int
    """How many rows it has; ROWS_READ or more, if it is that number."""
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
        others = {role: ADDED.format(role) if role in lacking else None for role in FITS if role in taken}
        names: Any = {**others, **self.names}
        return Columns(key=key, **names)

    def lacks(self, kind: str) -> list[str]:
        """The roles without a column that this kind, or a failed job, needs one for."""
        wanted = {"side-car": (), "rows": (*WRITTEN, *RETRIED)}.get(kind, RETRIED)
        return [role for role in wanted if role not in self.names]

    def refused(self) -> Iterator[tuple[str, str]]:
        """The columns that have a name of a role, but do not fit it, each with that role. A role that programs of the
        user write, too, may have more than one such column, of which one plays it.
        """
        others = [column.name for column in self.table.columns if column.name not in self.names.values()]
        for role, fit in FITS.items():
            if fit.unused is not USERS or role not in self.names:
                yield from ((name, role) for name in others if name.lower() in fit.names)

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
        names, values = dict(_names(connection, table, there)), dict[Any, int]()
        if "status" in names:
            first = sa.select(table.c[names["status"]].label("value")).limit(ROWS_READ).subquery()
            count = sa.func.count().label("rows")
            found = connection.execute(sa.select(first.c.value, count).group_by(first.c.value).order_by(count.desc()))
            values = {row.value: row.rows for row in found if isinstance(row.value, Hashable)}  # a SET of MySQL is not
        if len(values) > MOST_VALUES:
            del names["status"]
            values = {}
        some: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(table).limit(ROWS_READ)
        rows = connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0
        key = tuple(column.name for column in table.primary_key)
        for index in () if key else indexes_of(connection, table):  # None: only a part of a value, or of the rows
            columns = index["column_names"]
            if index.get("unique") and not any(name is None or there[name]["nullable"] for name in columns):
                key = key or tuple(columns)
    return Adoption(engine, table, rows, key, names, values)


def _names(connection: sa.Connection, table: sa.Table, there: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """For each role the first column by its names that fits. Of a role that claimjobs alone writes no column with a
    user's data does.
    """
    lower = {name.lower(): name for name in there}
    used = {column.name for column in table.primary_key} | {name for name in there if "computed" in there[name]}
    used.update(dialect_named_by(connection).table_rules.partition_columns(connection, table))
    for reference in inspector_of(connection).get_foreign_keys(table.name, schema=table.schema):
        used.update(reference["constrained_columns"])
    for role, fit in FITS.items():
        ours = lower.get(ADDED.format(role))  # from a run before
        for name in (ours, *(lower.get(name) for name in fit.names)):
            if name is None or not _has_type(role, fit, there[name]):
                continue
            if name == ours or fit.unused is USERS or (name not in used and _is_unused(connection, table, name, fit)):
                yield role, name
                break


def _has_type(role: str, fit: Fit, found: Mapping[str, Any]) -> bool:
    type_ = found["type"]
    if not isinstance(type_, fit.types) or (isinstance(type_, sa.Enum) and role != "status"):
        return False
    if role == "owner_id" and integer_range(type_)[1] < LAST_OWNER:
        return False
    return bool(found["nullable"]) or fit.unused is not None


def _is_unused(connection: sa.Connection, table: sa.Table, name: str, fit: Fit) -> bool:
    """Whether the first rows have nothing in this column but NULL and the value that is no user's data."""
    first = sa.select(table.c[name].label("value")).limit(ROWS_READ).subquery()
    has_value = first.c.value.is_not(None) if fit.unused is None else first.c.value != fit.unused
    return connection.scalar(sa.select(sa.literal_column("1")).select_from(first).where(has_value).limit(1)) is None


def flaw_of_value(found: Adoption, value: Any) -> str | None:
    """Why the status column cannot have a value, with the next step; None: it can."""
    column = found.table.c[found.names["status"]]
    if not isinstance(column.type, sa.Enum) or value in column.type.enums:
        return None
    has, sql = ", ".join(map(repr, column.type.enums)), add_value(found.engine, column, value)
    flaw = f"column {column.name!r} of table {found.table.fullname!r} cannot have the value {value!r}, but only {has}"
    return f"{flaw}: check the value, or extend the type first: {sql}"


def has_value(found: Adoption, value: Any) -> bool:
    """Whether one of the first rows has this value in the status column, as the database compares them."""
    first = sa.select(found.table.c[found.names["status"]].label("value")).limit(ROWS_READ).subquery()
    one: sa.Select[Any] = sa.select(sa.literal_column("1")).where(first.c.value == value).limit(1)
    with connected(found.engine) as connection:
        return connection.scalar(one) is not None


def check_where(found: Adoption, where: str) -> None:
    """Have the database read a predicate. Raises BadPredicate."""
    dialect = dialect_named_by(found.engine)
    trial: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(found.table).limit(0)
    with connected(found.engine) as connection, predicate_errors(dialect):
        connection.execute(trial.where(*predicates_of(where, found.table, dialect.lexis)))


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
        columns = replace(self.found.columns(self.kind), states=dict(self.states) or None)
        given: dict[str, Any] = {"table": self.found.table.fullname}
        match self.kind:
            case "batches":
                given["claims"] = "batches"
            case "transaction":
                given["hold"] = "transaction"
            case "side-car":
                given["side_car"] = True
                columns = Columns(key=columns.key, priority=columns.priority, run_at=columns.run_at)
        more = {"columns": columns, "where": self.where, "on_done": self.on_done}
        return given | {name: value for name, value in more.items() if value is not None}

    def tables(self) -> list[sa.Table]:
        """The tables that this queue needs beside its own."""
        if self.kind == "side-car":
            found = self.found
            return side_car_tables(found.engine, found.table.fullname, columns=self.described()["columns"])
        return shared_tables(self.found.table.schema)


def with_locks(engine: sa.Engine, statement: str) -> str:
    """A statement of DDL, after a comment that says what it locks."""
    locks = dialect_named_by(engine).table_rules.locks
    note = next((note for words, note in locks.items() if statement.startswith(words)), None)
    return statement if note is None else f"-- {note}\n{statement}"


# --- what is added -----------------------------------------------------------------------------------------------


def additions(engine: sa.Engine, settings: Settings, wanted: Iterable[str]) -> list[str]:
    """The statements that add what the table lacks of `ADDABLE`. Raises UnfitTable."""
    wanted = list(dict.fromkeys(wanted))
    with connected(engine) as connection:
        there = resolve(connection, tables_for(settings.table)[0].fullname)
        given = as_spelled(connection, settings.map, there.columns.keys())
        check_no_own(there)
        check_table(connection, dialect_for(engine), there)
        columns = [_column_for(role, there, given) for role in wanted if role != INDEX]
        new = [column for column in columns if column.name not in there.c]
        statements = [statement for column in new for statement in add_column(connection, there, column)]
    if INDEX in wanted:
        for column in new:
            there.append_column(column)
        roles, keys = roles_of(there, given), () if settings.per_key is None else settings.per_key.names
        # If any order will do, the index is for the default one.
        order = order_of(settings.order_by, roles, dialect_named_by(engine).lexis) or roles.default_order
        with connected(engine) as connection:
            lack = missing_index(connection, roles, (*(there.c[name] for name in keys), *order))
        if lack is not None and not lack.statements:
            raise ColumnUnfit(f"table {there.fullname!r}: {lack.effect}, or choose a side-car (--side-car)")
        statements += [] if lack is None else lack.statements
    return statements


def add(engine: sa.Engine, settings: Settings, wanted: Iterable[str], statements: Sequence[str]) -> None:
    """Run these statements of `additions`; what another program adds meanwhile is left out. Raises as `alter`."""
    while statements:
        try:
            alter(engine, tables_for(settings.table)[0], statements)
        except sa.exc.DBAPIError:
            lacking, statements = len(statements), additions(engine, settings, wanted)
            if len(statements) >= lacking:
                raise
        else:
            return


def _column_for(role: str, table: sa.Table, given: Columns) -> sa.Column[Any]:
    """The column for a role, under its name in the map, to be added to a table that may have rows."""
    ours = job_table(table.name, sa.MetaData()).c[role]
    type_: sa.types.TypeEngine[Any] = ours.type
    default: Any = ours.server_default
    nullable = ours.nullable
    if role == "status":
        values = {UNCLAIMED: UNCLAIMED, **(given.states or {state: state for state in STATES})}
        first: Any = values[UNCLAIMED]
        type_ = _type_for(table, [value for value in values.values() if value is not None])
        nullable = None in values.values()
        default = None if first is None else first if isinstance(first, str) else sa.text(str(first).lower())
    return sa.Column(given.names.get(role, role), type_, nullable=nullable, server_default=default)


def _type_for(table: sa.Table, values: Sequence[Any]) -> sa.types.TypeEngine[Any]:
    """The smallest type that holds these values of states. No enum: its type would have to be created first. Raises
    ColumnUnfit.
    """
    match {type(value) for value in values}:
        case kinds if kinds <= {str}:
            return sa.String(max(16, *map(len, values)))
        case kinds if kinds == {bool}:
            return sa.Boolean()
        case kinds if kinds == {int}:
            for type_ in (sa.SmallInteger(), sa.Integer(), sa.BigInteger()):
                least, most = integer_range(type_)
                if least <= min(values) and max(values) <= most:
                    return type_
    raise ColumnUnfit(
        f"no column of table {table.fullname!r} can hold all values of its states ({', '.join(map(repr, values))}): "
        f"let all be texts, truths, or whole numbers of 64 bits, as in {state_option('done')}"
    )

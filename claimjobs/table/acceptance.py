"""Acceptance: checks whether a table can be claimed from, before anything is claimed.

A claim needs row locks, a key that finds its row again, and columns that may change and hold what is written. On a
table that lacks one of these, jobs would be done twice, or again and again, or the queue would seem empty, without an
error. So such a table is refused. The types of the database count, not those of a description in Python.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.database.connect import inspector_of
from claimjobs.dialects import Dialect
from claimjobs.errors import ColumnUnfit, KeyUnfit, NotClaimable, UnfitTable, column_option, state_option
from claimjobs.options import SIDE_CAR
from claimjobs.table.columns import ROLES
from claimjobs.table.ddl import add_column
from claimjobs.table.definitions import LAST_OWNER, MADE_BY, SHARED_TABLES, job_table, reserved_name
from claimjobs.table.job_state import Column
from claimjobs.table.reflection import columns_in_database, is_made_by_us, resolve, types_with_collations
from claimjobs.table.roles import ColumnRoles

Type = sa.types.TypeEngine[Any]

ONLY_READ: Final = ("priority", "traceparent")
"""The roles whose columns claimjobs does not write for a claim or an outcome."""
RESERVED: Final = frozenset(
    f"claimjobs_{name}" for name in ("candidates", "group_size", "hears", "keys", "limit", "me", "meant", "size")
)
"""Parameters of our statements. SQLAlchemy would write one into a column with the same name."""

_NEITHER: Final = (sa.String, sa.Uuid, sa.Boolean, sa.LargeBinary, sa.JSON)
_NO_NUMBERS: Final = (*_NEITHER, sa.DateTime, sa.Date, sa.Time, sa.Interval)
_NO_INSTANTS: Final = (*_NEITHER, sa.Integer, sa.Numeric, sa.Time, sa.Date)
_NUMBER: Final = (_NO_NUMBERS, "a whole number")
_INSTANT: Final = (_NO_INSTANTS, "a date and time")
HOLDS: Final = {"attempts": _NUMBER, "suspect": _NUMBER, "owner_date": _INSTANT, "run_at": _INSTANT}
"""What is written for each role, and the types that cannot hold it."""
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INTEGER": 32, "small_integer": 16, "integer": 32}
"""Bits of whole numbers, by the names of types of databases and of SQLAlchemy; other types have 64."""


def check_no_own(table: sa.Table) -> None:
    """Check that this is no table in which claimjobs keeps its own records. Raises NotClaimable.

    A side-car is known by its name, its comment and a column that only tables of jobs have.
    """
    what, step = "has the records of claimjobs itself, and no jobs", "name another table"
    if table.name in SHARED_TABLES:
        raise NotClaimable(table.fullname, what, step)
    if table.name.endswith(SIDE_CAR) and MADE_BY in (table.comment or "") and "priority" not in table.c:
        step += ", or for its side-car the user's table and --side-car (side_car=True)"
        raise NotClaimable(table.fullname, what, step)


def check_table(connection: sa.Connection, dialect: Dialect, table: sa.Table) -> None:
    """Check that rows of this table can be locked and changed. Raises NotClaimable, KeyUnfit or ColumnUnfit."""
    if refusal := dialect.table_rules.unclaimable(connection, table):
        raise NotClaimable(table.fullname, *refusal)
    if child := dialect.table_rules.child(connection, table):
        raise KeyUnfit(
            f"table {child!r} inherits from table {table.fullname!r}, so that two of their rows can have the same key: "
            f"make {table.fullname!r} a partitioned table, or give each of its children a queue of its own"
        )
    if taken := sorted(RESERVED & {column.key for column in table.columns}):
        raise reserved_name(table.fullname, taken[0])


def check_key(connection: sa.Connection, dialect: Dialect, roles: ColumnRoles) -> None:
    """Check that a row is found again by its key as it is read. Raises KeyUnfit.

    A type of the user's must not convert values by SQL (`bind_expression`): keys are also sent within a document, where
    no SQL can be applied to each.
    """
    found = columns_in_database(connection, roles.table)
    for column in roles.key:
        type_ = found[column.name]["type"]
        if not dialect.table_rules.finds_again(type_):
            raise _key_unfit(roles, column.name, _shown(type_, connection))
        if column.type._has_bind_expression or column.type._has_column_expression:
            raise _key_unfit(roles, column.name, f"{column.type!r}, whose values are changed by SQL")


def _key_unfit(roles: ColumnRoles, column: str, type_: str) -> KeyUnfit:
    return KeyUnfit(
        f"column {column!r} of table {roles.name!r}, which is part of its key, is {type_}: a value that is read from "
        "such a column may differ from the stored one, so that a job would not be found again; name other columns "
        f"that are unique together, as in {column_option('key')}"
    )


def _shown(type_: Type, connection: sa.Connection) -> str:
    """The name of a type; SQLAlchemy does not know every type."""
    return "of an unknown type" if isinstance(type_, sa.types.NullType) else type_.compile(dialect=connection.dialect)


def check_keys(connection: sa.Connection, table: sa.Table, jobs: sa.Table, step: str) -> None:
    """Check that a table beside the jobs has the key of its description, which holds all values of these columns of the
    jobs: they may have been altered, or others chosen. `step`: what to do if not. Raises UnfitTable, or TableMissing.
    """
    named = resolve(connection, sa.Table(table.name, sa.MetaData(), schema=table.schema))
    key = inspector_of(connection).get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    ours, theirs = (types_with_collations(connection, one) for one in (named, jobs))
    names, flaw = table.primary_key.columns.keys(), None
    if {*key} != {*names}:
        flaw = f"has the primary key ({', '.join(key)}) and not ({', '.join(names)})"
    for name in names if flaw is None else ():
        if not _holds(ours[name], theirs[name], connection):
            both = [_shown(types[name], connection) for types in (ours, theirs)]
            flaw = f"has the column {name!r} with the type {both[0]}, and the jobs have it with {both[1]}"
    if flaw is not None:
        if not is_made_by_us(connection, named):
            step = "claimjobs, which did not make it, needs a table with this name: rename it"
        raise UnfitTable(f"table {table.fullname!r} {flaw}: {step}")


def _holds(ours: Type, theirs: Type, connection: sa.Connection) -> bool:
    """Whether a column of this type holds all values of the other one, and the database compares the two."""
    if isinstance(ours, sa.Integer) and isinstance(theirs, sa.Integer):
        (low, high), (lowest, highest) = map(integer_range, (ours, theirs))
        return low <= lowest and highest <= high
    texts = [type_ for type_ in (ours, theirs) if isinstance(type_, sa.String)]
    if len(texts) == 2 and texts[0].collation == texts[1].collation:
        enums = [getattr(text, "enums", None) for text in texts]
        if enums == [None, None]:
            return (texts[0].length or math.inf) >= (texts[1].length or math.inf)
        if texts[0].collation is not None:  # a collation is of one character set, which reflection may name or not
            return enums[0] == enums[1]
    return _shown(ours, connection) == _shown(theirs, connection)


def check_columns(connection: sa.Connection, dialect: Dialect, roles: ColumnRoles) -> None:
    """Check that claimjobs can write its columns, that they hold what is written, and that a write does not change the
    row's key or partition. Raises ColumnUnfit or KeyUnfit.
    """
    written = {role: column for role in ROLES if role not in ONLY_READ and (column := getattr(roles, role)) is not None}
    changed = dialect.table_rules.changed_by_each_update(connection, roles.table) if written else {}
    for name in (column.name for column in roles.key if column.name in changed):
        raise _key_unfit(roles, name, f"written anew by each UPDATE ({changed[name]})")
    found = columns_in_database(connection, roles.table)
    partitioned_by = dialect.table_rules.partition_columns(connection, roles.table)
    for role, column in written.items():
        there = found[column.name]
        flaws = {
            "part of its key": column in roles.key,
            "part of its partition key": column.name in partitioned_by,
            "a generated column": "computed" in there,
        }
        if flaw := next((flaw for flaw, has in flaws.items() if has), None):
            raise ColumnUnfit(
                f"column {column.name!r} of table {roles.name!r} is {flaw}, and as {role} claimjobs must write it: "
                f"name another column, as in {column_option(role)}, or keep outcomes in a second table "
                "(side_car=True, --side-car)"
            )
        wrong, needed = HOLDS.get(role, ((), ""))
        if isinstance(there["type"], wrong):
            raise _unfit(connection, roles, role, there, needed=needed)
        if role == "owner_id" and not there["nullable"]:
            raise _unfit(connection, roles, role, there, needed="NULL for a row that no owner holds")
    if roles.status is not None:
        _check_states(connection, roles, roles.status, found[roles.status.name])


def check_owner(connection: sa.Connection, roles: ColumnRoles) -> None:
    """Check that the owner column holds the ids of owners. Raises ColumnUnfit."""
    column = roles.owner_id
    if column is None:
        return
    found = columns_in_database(connection, roles.table)[column.name]
    type_, most = found["type"], LAST_OWNER
    if isinstance(type_, sa.Integer):
        most = integer_range(type_)[1]
    elif isinstance(type_, sa.Numeric) and not isinstance(type_, sa.Float) and type_.precision is not None:
        most = int(10 ** (type_.precision - (type_.scale or 0))) - 1
    if most < LAST_OWNER or isinstance(type_, _NO_NUMBERS):
        raise _unfit(connection, roles, "owner_id", found, needed=f"a whole number, and hold ids up to {LAST_OWNER:,}")


def _unfit(connection: sa.Connection, roles: ColumnRoles, role: str, found: Any, *, needed: str) -> ColumnUnfit:
    """The error for a column that does not fit, with the statement that adds one that does."""
    ours = job_table(roles.table.name, sa.MetaData()).c[role]
    other = sa.Column(f"claim_{role}", ours.type, nullable=ours.nullable, server_default=ours.server_default)
    type_ = _shown(found["type"], connection) + ("" if found["nullable"] else " NOT NULL")
    step = " ".join(add_column(connection, roles.table, other)).removesuffix(";")
    return ColumnUnfit(
        f"column {found['name']!r} of table {roles.name!r} is {type_}, and as {role} it must be {needed}: "
        f"name another one, as in {column_option(role)}; to add one: {step}"
    )


def integer_range(type_: sa.Integer) -> tuple[int, int]:
    """The smallest and the largest value of a column of this type."""
    bits = _BITS.get(type_.__visit_name__, 64)
    return (0, 2**bits - 1) if getattr(type_, "unsigned", False) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _check_states(connection: sa.Connection, roles: ColumnRoles, column: Column, found: Any) -> None:
    """Check that the status column can hold the value of each state: with a wrong one a queue seems empty."""
    dialect = connection.dialect
    for state, value in roles.state.values.items():
        sent = value
        with suppress(LookupError, ValueError, TypeError, AttributeError):  # then the check names what the column holds
            process = column.type.dialect_impl(dialect).bind_processor(dialect)  # the user's type may convert it
            sent = process(value) if process is not None else value
        flaw = _flaw(sent, found["type"], dialect) if sent is not None else None if found["nullable"] else "is NOT NULL"
        if flaw is not None:
            raise ColumnUnfit(
                f"column {column.name!r} of table {roles.name!r} cannot hold {value!r}, which is to mean {state!r}: it "
                f"{flaw}; check the value, as in {state_option(state)}"
            )


def _flaw(value: Any, type_: Type, dialect: sa.Dialect) -> str | None:
    """What a column of this type holds, if it does not hold this value."""
    is_number = isinstance(value, int) and not (isinstance(value, bool) and dialect.supports_native_boolean)
    match type_:
        case sa.Enum():
            fits, holds = value in type_.enums, ", ".join(map(repr, type_.enums))
        case sa.String() if not isinstance(value, str):
            fits, holds = False, f"text (in quotes: '\"{value}\"')"
        case sa.String():
            fits, holds = type_.length is None or len(value) <= type_.length, f"{type_.length} characters"
        case sa.Boolean():
            fits, holds = value in (True, False), "true and false"
        case sa.Integer():
            least, most = integer_range(type_)
            fits, holds = is_number and least <= value <= most, f"{least} to {most}" if is_number else "whole numbers"
        case sa.Numeric():
            fits, holds = not isinstance(value, str), "numbers"
        case _:
            return None
    return None if fits else f"holds {holds}"

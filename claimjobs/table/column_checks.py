"""Checks, before the first claim, that the columns of a table can hold what a queue writes into them.

With a wrong value of a state a queue seems empty, and a value that does not fit ends every consumer. The types are
those of the database, not those of a description in Python. A column of an unknown type passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.errors import ColumnUnfit, column_option, state_option
from claimjobs.table.ddl import add_column
from claimjobs.table.definitions import LAST_OWNER, job_table
from claimjobs.table.job_state import Column
from claimjobs.table.reflection import columns_in_database
from claimjobs.table.roles import ColumnRoles
from claimjobs.table.value_ranges import integer_range

Type = sa.types.TypeEngine[Any]

NO_NUMBERS: Final = (
    *(sa.String, sa.Uuid, sa.Boolean, sa.LargeBinary, sa.JSON),
    *(sa.DateTime, sa.Date, sa.Time, sa.Interval),
)
NO_INSTANTS: Final = (sa.String, sa.Uuid, sa.Boolean, sa.Integer, sa.Numeric, sa.Time, sa.LargeBinary, sa.JSON)
WRITTEN: Final = {
    "attempts": (NO_NUMBERS, "a whole number"),
    "suspect": (NO_NUMBERS, "a whole number"),
    "owner_date": (NO_INSTANTS, "a date and time"),
    "run_at": (NO_INSTANTS, "a date and time"),
}
"""What is written for each role, and the types that cannot hold it."""


def check_columns(connection: sa.Connection, roles: ColumnRoles) -> None:
    """Check that the status column holds the value of each state, and the other columns the values of their roles.

    Raises ColumnUnfit.
    """
    columns = _DatabaseColumns(connection, roles)
    columns.states()
    for role, (wrong, needed) in WRITTEN.items():
        found = columns.at(role)
        if found is not None and isinstance(found["type"], wrong):
            raise columns.unfit(role, needed)
    owner = columns.at("owner_id")
    if owner is not None and not owner["nullable"]:
        raise columns.unfit("owner_id", "NULL for a row that no owner holds")


def check_owner(connection: sa.Connection, roles: ColumnRoles) -> None:
    """Check that the owner column holds the ids of owners. Raises ColumnUnfit."""
    columns = _DatabaseColumns(connection, roles)
    found = columns.at("owner_id")
    if found is not None and not _holds_owners(found["type"]):
        raise columns.unfit("owner_id", f"a whole number, and hold ids up to {LAST_OWNER:,}")


def _holds_owners(type_: Type) -> bool:
    if isinstance(type_, sa.Integer):
        return integer_range(type_)[1] >= LAST_OWNER
    if isinstance(type_, sa.Numeric) and not isinstance(type_, sa.Float) and type_.precision is not None:
        return int(10 ** (type_.precision - (type_.scale or 0))) > LAST_OWNER
    return not isinstance(type_, NO_NUMBERS)


class _DatabaseColumns:
    """The columns of a queue, as they are in the database."""

    def __init__(self, connection: sa.Connection, roles: ColumnRoles) -> None:
        self._connection = connection
        self._roles = roles
        self._found = columns_in_database(connection, roles.table)

    def at(self, role: str) -> Any:
        """The column with a role; None if no column has it."""
        column: Column | None = getattr(self._roles, role)
        return None if column is None else self._found[column.name]

    def unfit(self, role: str, needed: str) -> ColumnUnfit:
        """The error for a column that does not fit, with the statement that adds one that does."""
        found, table, dialect = self.at(role), self._roles.table, self._connection.dialect
        ours = job_table(table.name, sa.MetaData()).c[role]
        other = sa.Column(f"claim_{role}", ours.type, nullable=ours.nullable, server_default=ours.server_default)
        type_ = found["type"].compile(dialect=dialect) + ("" if found["nullable"] else " NOT NULL")
        step = add_column(self._connection, table, other).removesuffix(";")
        return ColumnUnfit(
            f"column {found['name']!r} of table {self._roles.name!r} is {type_}, and as {role} it must be {needed}: "
            f"name another one, as in {column_option(role)}; to add one: {step}"
        )

    def states(self) -> None:
        """Raise ColumnUnfit for a value that the status column cannot hold."""
        column, dialect = self._roles.status, self._connection.dialect
        if column is None:
            return
        for state, value in self._roles.state.values.items():
            sent = _sent(dialect, column, value)
            for holds in _objections(sent, self.at("status"), truth_is_a_number=not dialect.supports_native_boolean):
                raise ColumnUnfit(
                    f"column {column.name!r} of table {self._roles.name!r} cannot hold {value!r}, which is to mean "
                    f"{state!r}: it {holds}; check the value, as in {state_option(state)}"
                )


# --- the values of states --------------------------------------------------------------------------------------------


def _sent(dialect: sa.Dialect, column: Column, value: Any) -> Any:
    """A value as the driver gets it: the user's type may convert it."""
    with suppress(LookupError, ValueError, TypeError, AttributeError):  # then the check names what the column holds
        process = column.type.dialect_impl(dialect).bind_processor(dialect)
        return process(value) if process is not None else value
    return value


def _objections(value: Any, found: Any, *, truth_is_a_number: bool) -> Iterator[str]:
    """What the column holds, if it does not hold this value."""
    type_ = found["type"]
    if value is None:
        yield from () if found["nullable"] else ("is NOT NULL",)
    elif isinstance(type_, sa.Enum):
        yield from () if value in type_.enums else (f"holds {', '.join(map(repr, type_.enums))}",)
    elif isinstance(type_, sa.String):
        yield from _about_text(value, type_)
    elif isinstance(type_, sa.Boolean):
        yield from () if value in (True, False) else ("holds true and false",)
    elif isinstance(type_, sa.Integer):
        yield from _about_numbers(value, type_, truth_is_a_number=truth_is_a_number)
    elif isinstance(type_, sa.Numeric) and isinstance(value, str):
        yield "holds numbers"


def _about_text(value: Any, type_: sa.String) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"holds text (in quotes: '\"{value}\"')"
    elif type_.length is not None and len(value) > type_.length:
        yield f"holds {type_.length} characters"


def _about_numbers(value: Any, type_: sa.Integer, *, truth_is_a_number: bool) -> Iterator[str]:
    least, most = integer_range(type_)
    if not isinstance(value, int) or (isinstance(value, bool) and not truth_is_a_number):
        yield "holds whole numbers"
    elif not least <= value <= most:
        yield f"holds {least} to {most}"

"""KeyRows: a table beside that of the jobs, with a row for each key of `per_key` that has work.

The row says when jobs of its key may be claimed next. Whoever claims some has locked it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from claimjobs.errors import BadArgument, ColumnMissing, ColumnUnfit
from claimjobs.table.job_state import Column
from claimjobs.table.reflection import columns_in_database
from claimjobs.table.roles import ColumnRoles

MOST_CHARACTERS: Final = 255
"""Characters that a text may have as a key: every database has an index for so many."""
FIT: Final = (sa.Integer, sa.String, sa.Uuid)
"""Types of columns that every database compares, and stores, in one way."""


@dataclass(frozen=True)
class KeyRows:
    """The table of key rows of one queue."""

    table: sa.Table
    of_jobs: tuple[Column, ...]
    """The columns of the jobs."""
    limits: bool
    """Whether a key may have so many jobs in hand that it is held back."""

    @property
    def key(self) -> tuple[Column, ...]:
        """The same columns in the table of key rows."""
        return tuple(self.table.c[column.name] for column in self.of_jobs)

    @property
    def same(self) -> sa.ColumnElement[bool]:
        """The predicate of a job and its key row."""
        return sa.and_(*(job == row for job, row in zip(self.of_jobs, self.key, strict=True)))


def columns_for(connection: sa.Connection, roles: ColumnRoles, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of the jobs. Raises ColumnMissing, BadArgument for one that claimjobs writes, or ColumnUnfit."""
    found = columns_in_database(connection, roles.table)
    for name in names:
        if name not in roles.table.c or name not in found:
            raise ColumnMissing(roles.name, name, "limits per key", roles.quote)
        if roles.table.c[name] not in (*roles.key, *roles.payload):
            raise BadArgument(f"per_key {name!r} is a column that claimjobs writes: name one of the payload")
        type_ = found[name]["type"]
        is_long = isinstance(type_, sa.String) and not 0 < (type_.length or 0) <= MOST_CHARACTERS
        if not isinstance(type_, FIT) or isinstance(type_, sa.Enum) or is_long:
            raise ColumnUnfit(
                f"column {name!r} of table {roles.name!r} has the type {type_!r}, which cannot be a key of per_key: "
                f"name a column of whole numbers, UUIDs, or texts of at most {MOST_CHARACTERS} characters"
            )
        if found[name]["nullable"]:
            raise ColumnUnfit(
                f"column {name!r} of table {roles.name!r} may be NULL, and for a job without a key there is no limit: "
                f"give these jobs a key, and make it NOT NULL"
            )
    return tuple(roles.table.c[name] for name in names)

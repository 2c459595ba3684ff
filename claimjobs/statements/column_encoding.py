"""What is read of a job: its columns, in the form that costs a driver least to read (see claimjobs.rows)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.table.roles import Roles

Parts = Sequence[Sequence[sa.Column[Any]]]
"""Columns of a table, as they are read: each by itself, or several packed into one."""


def parts_of(columns: Sequence[sa.Column[Any]], dialect: Dialect, roles: Roles) -> Parts:
    """How these columns are read. What is looked at in every job is not packed, or can be unpacked first."""
    packed = [column for column in columns if dialect.joins_columns(column) and column not in set(roles.key)]
    packed.sort(key=lambda column: column is not roles.suspect)
    alone = [[column] for column in columns if len(packed) < 2 or column not in set(packed)]
    return [*alone, packed] if len(packed) > 1 else alone


def flat(read: Parts) -> list[sa.Column[Any]]:
    """The columns themselves."""
    return [column for part in read for column in part]


def lean(read: Parts, dialect: Dialect, of: sa.FromClause | None = None) -> list[sa.ColumnElement[Any]]:
    """Parts of a table, or of `of`, which has its columns."""
    return [_lean(part if of is None else [of.c[column.key] for column in part], dialect) for part in read]


def with_last(read: Parts, dialect: Dialect, last: sa.ColumnElement[int]) -> list[sa.ColumnElement[Any]]:
    """The same with a number after them, packed as well where something is: `last_of` reads it out of a row."""
    *others, final = read
    if len(final) == 1:
        return [*lean(read, dialect), last]
    return [*lean(others, dialect), _lean([*final, last], dialect)]


def last_of(row: Sequence[Any]) -> int:
    """The number that was put after all else."""
    return int(str(row[-1]).rpartition(",")[2])


def _lean(part: Sequence[sa.ColumnElement[Any]], dialect: Dialect) -> sa.ColumnElement[Any]:
    value = dialect.encoded(part[0]) if len(part) == 1 else dialect.joined(part)
    name = part[0].name if len(part) == 1 else "claimjobs_packed"
    return sa.type_coerce(value, sa.types.NullType()).label(name)

"""The columns of a job as a claim returns them: plain, or several joined into one text that the driver reads faster.

The text is an optimisation (docs/decisions/0065). `claimjobs.claim.row_reader` reads both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from claimjobs.dialects import Dialect
from claimjobs.table.roles import ColumnRoles


class Parts(NamedTuple):
    """The columns of a table that a statement returns."""

    plain: Sequence[sa.Column[Any]]
    joined: Sequence[sa.Column[Any]]
    """These are one text, behind the plain ones. `suspect` is the first of them."""


def parts_of(columns: Sequence[sa.Column[Any]], dialect: Dialect, roles: ColumnRoles) -> Parts:
    """How to return these columns. The key is not joined."""
    joined = [column for column in columns if dialect.from_text(column) and column not in set(roles.key)]
    joined.sort(key=lambda column: column is not roles.suspect)
    return Parts([column for column in columns if column not in set(joined)], joined)


def flat(read: Parts) -> list[sa.Column[Any]]:
    """The columns of the table."""
    return [*read.plain, *read.joined]


def encoded(read: Parts, dialect: Dialect, of: sa.FromClause | None = None) -> list[sa.ColumnElement[Any]]:
    """The columns to SELECT or to return. `of`: from this subquery, which has the columns of the table."""
    plain, joined = ([column if of is None else of.c[column.key] for column in part] for part in read)
    return [*map(_as_it_is, plain), *([_as_text(joined, dialect)] if joined else [])]


def encoded_with_last(read: Parts, dialect: Dialect, last: sa.ColumnElement[int]) -> list[sa.ColumnElement[Any]]:
    """As `encoded`, with a number at the end, which `last_of` reads. If columns are joined, it is joined with them."""
    end = _as_text([*read.joined, last], dialect) if read.joined else last
    return [*map(_as_it_is, read.plain), end]


def last_of(row: Sequence[Any]) -> int:
    """The number at the end of a row."""
    return int(str(row[-1]).rpartition(",")[2])


def _as_it_is(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.type_coerce(column, sa.types.NullType()).label(str(column.name))


def _as_text(columns: Sequence[sa.ColumnElement[Any]], dialect: Dialect) -> sa.ColumnElement[Any]:
    return sa.type_coerce(dialect.joined(columns), sa.types.NullType()).label("claimjobs_joined")

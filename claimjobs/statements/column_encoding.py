"""The columns of a job as a claim returns them: plain, or encoded so that the driver reads them faster.

The encoding is an optimisation (docs/decisions/0025). Without `FAST_PATH` it is off: every column is returned as it is.
`claimjobs.claim.row_reader` reads both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from claimjobs.database.compiled_statement import FAST_PATH
from claimjobs.dialects import Dialect
from claimjobs.table.roles import ColumnRoles

Parts = Sequence[Sequence[sa.Column[Any]]]
"""The columns of a row that is returned: in each, one column of the table, or several that are joined into one text."""


def parts_of(columns: Sequence[sa.Column[Any]], dialect: Dialect, roles: ColumnRoles) -> Parts:
    """How to return these columns. The key is not joined, and `suspect` is the first of the joined ones."""
    joined = [column for column in columns if dialect.encoding.joins_columns(column) and column not in set(roles.key)]
    if not FAST_PATH or len(joined) < 2:
        return [[column] for column in columns]
    joined.sort(key=lambda column: column is not roles.suspect)
    return [*([column] for column in columns if column not in set(joined)), joined]


def flat(read: Parts) -> list[sa.Column[Any]]:
    """The columns of the table."""
    return [column for part in read for column in part]


def encoded(read: Parts, dialect: Dialect, of: sa.FromClause | None = None) -> list[sa.ColumnElement[Any]]:
    """The columns to SELECT or to return. `of`: from this subquery, which has the columns of the table."""
    return [_encoded(part if of is None else [of.c[column.key] for column in part], dialect) for part in read]


def encoded_with_last(read: Parts, dialect: Dialect, last: sa.ColumnElement[int]) -> list[sa.ColumnElement[Any]]:
    """As `encoded`, with a number at the end: `last_of` reads it. It is joined with the last part if that is joined."""
    *others, final = read
    if len(final) == 1:
        return [*encoded(read, dialect), last]
    return [*encoded(others, dialect), _encoded([*final, last], dialect)]


def last_of(row: Sequence[Any]) -> int:
    """The number at the end of a row."""
    return int(str(row[-1]).rpartition(",")[2])


def decoder(column: sa.Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Makes the value that the driver would have returned from an encoded one. None: they are equal."""
    return dialect.encoding.decoder(column) if FAST_PATH else None


def _encoded(part: Sequence[sa.ColumnElement[Any]], dialect: Dialect) -> sa.ColumnElement[Any]:
    if len(part) > 1:
        return sa.type_coerce(dialect.encoding.joined(part), sa.types.NullType()).label("claimjobs_joined")
    value = dialect.encoding.encoded(part[0]) if FAST_PATH else part[0]
    return sa.type_coerce(value, sa.types.NullType()).label(part[0].name)

"""Phase 1 of a claim, find: which rows are candidates, in which order.

Every claim statement is built on `in_order`; `find` is the search as a statement of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, Grouping, Null

from claimjobs.dialects import Dialect
from claimjobs.table.columns import UNCLAIMED
from claimjobs.table.job_state import State
from claimjobs.table.predicates import column_of
from claimjobs.table.roles import ColumnRoles

SUSPECT: Final = "claimjobs_suspect"
"""The last column of a candidate: the size of its group of suspects (see `group_size`)."""
ROW_NUMBER: Final = "claimjobs_place"
"""The number of a job among the candidates, from 1."""
KEY: Final = "claimjobs_k{}"
"""A column of the key among the candidates. No user's table has such names. So a user's predicate, which is in the
same WHERE, may name its columns without the table."""
AFTER: Final = "claimjobs_after_{}"
"""The parameters of a place in the order, after which a claim begins."""

DUE: Final = "claimjobs_due"
"""The last column of a place: 1 if its job is due."""
TAIL_JOBS: Final = 1_000
"""How many unclaimed jobs are read from the end, to find one that is due."""

SIZE: Final = sa.bindparam("claimjobs_size", type_=sa.Integer)
"""How many jobs are wanted."""
LIMIT: Final = sa.bindparam("claimjobs_limit", type_=sa.Integer)
"""How many candidates, or rows of a page, are read."""

EXACT: Final = (sa.Integer, sa.String, sa.Numeric, sa.Date, sa.DateTime, sa.Uuid)
"""Types whose values can be read and then compared exactly with their column."""
INEXACT: Final = (sa.Enum, sa.Float)
"""Subtypes that cannot: MySQL orders an ENUM by number and compares it as text; a float is rounded."""
COMPARISONS: Final = (operators.eq, operators.lt, operators.le, operators.gt, operators.ge)
"""Operators that are true of no NULL."""


@dataclass(frozen=True)
class Selection:
    """What may be claimed, in which order, and after which place in it. `claim.claim_plan.ClaimPlans` makes it."""

    due: sa.ColumnElement[bool]
    """The predicate of a job that is due by its columns, and meets the user's predicates. It may be in a claim row."""
    order: Sequence[sa.ColumnElement[Any]]
    after: Sequence[sa.ColumnElement[bool]] = ()
    """The rows after the place, as ranges that follow one another in the order. Empty: all rows."""
    state: State = field(default_factory=lambda: State(None, {}, None))
    """How a row says its state. Only a search looks at claim rows."""
    place: Mapping[sa.Column[Any], Any] | None = None
    """The parameters of the place for the columns of the order, if all ascend. None: there is none, or one descends."""
    in_sweeps: bool = False
    """Whether any order will do. Then each consumer begins at a random place of this order: see `Sweep`."""
    predicates: Sequence[sa.ColumnElement[bool]] = ()
    """The user's part of `due`, whether a job is due or not."""
    reads_other_rows: bool = False
    """Whether the predicate has a subquery: see `RecheckedLocks`."""

    @property
    def candidate(self) -> sa.ColumnElement[bool]:
        """The predicate of a candidate: a job that is due, and in no claim row."""
        return sa.and_(self.due, self.state.in_no_claim_row(self.place))


@dataclass(frozen=True)
class KeysetOrder:
    """An order that a claim can enter anywhere: by columns that are never NULL."""

    falling: Mapping[sa.Column[Any], bool]
    """For each column, in the order of the ORDER BY, whether it descends."""
    in_sweeps: bool = False
    """See `Selection`."""

    @property
    def columns(self) -> Sequence[sa.Column[Any]]:
        """The columns of the ORDER BY."""
        return tuple(self.falling)

    def after(self, selection: Selection, dialect: Dialect) -> Selection:
        """The selection after a place, which parameters give.

        The rows after it are ranges of an index over the columns: one for each run of columns with the same direction.
        The nearest one has the values of the place in all columns before the last run.
        """
        place = {column: sa.bindparam(AFTER.format(i), type_=column.type) for i, column in enumerate(self.columns)}
        ranges: list[sa.ColumnElement[bool]] = []
        same: list[sa.ColumnElement[bool]] = []
        for falling, run in groupby(self.columns, lambda column: self.falling[column]):
            columns = list(run)
            behind = dialect.after_values(columns, [place[column] for column in columns], falling=falling)
            ranges.insert(0, sa.and_(*same, behind))
            same += [column == place[column] for column in columns]
        after = [sa.or_(*ranges)] if dialect.reads_ranges_in_order else ranges
        return replace(selection, after=after, place=None if any(self.falling.values()) else place)

    def place(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the place of this row."""
        return {AFTER.format(i): row[column.name] for i, column in enumerate(self.falling)}

    def order_of(self, rows: sa.FromClause) -> list[sa.ColumnElement[Any]]:
        """The ORDER BY for other rows that have these columns."""
        return [rows.c[column.key].desc() if falls else rows.c[column.key] for column, falls in self.falling.items()]


def keyset_order_of(selection: Selection) -> KeysetOrder | None:
    """The order of a selection, if a claim can enter it anywhere."""
    falling: dict[sa.Column[Any], bool] = {}
    for term in selection.order:
        column, falls = column_of(term)
        if column is None or not isinstance(column.type, EXACT) or isinstance(column.type, INEXACT):
            return None
        if column.nullable and column not in set(_never_null(selection.due)):
            return None
        falling.setdefault(column, falls)
    return KeysetOrder(falling, selection.in_sweeps) if falling else None


def _never_null(predicate: Any) -> Iterator[sa.ColumnElement[Any]]:
    """The columns that are NULL in no row for which a predicate holds, as far as its parts show."""
    if isinstance(predicate, Grouping):
        yield from _never_null(predicate.element)
    elif isinstance(predicate, BooleanClauseList) and predicate.operator is operators.and_:
        for part in predicate.clauses:
            yield from _never_null(part)
    elif isinstance(predicate, BinaryExpression):
        is_named = predicate.operator is operators.is_not and isinstance(predicate.right, Null)
        if is_named or predicate.operator in COMPARISONS:
            yield from (predicate.left, predicate.right)


def find(roles: ColumnRoles, selection: Selection) -> sa.Select[Any]:
    """The first `limit` jobs that are due, in order: their keys, then the sizes of their groups of suspects."""
    return in_order(sa.select(*roles.key, group_size(roles).label(SUSPECT)), selection, LIMIT)


def group_size(roles: ColumnRoles) -> sa.ColumnElement[int]:
    """How many jobs were in the batch that failed as a whole with this one. 0: the job is no suspect."""
    return sa.literal(0, sa.Integer) if roles.suspect is None else counted(roles.suspect)


def in_order(
    rows: sa.Select[Any], selection: Selection, limit: sa.ColumnElement[int], *, locks: ColumnRoles | None = None
) -> sa.Select[Any]:
    """The first rows of a selection, in order, up to a limit. `locks`: those of this table that nobody else has locked,
    and lock them.

    Of several ranges a database reads one, and locks its rows, only if the ranges before it had too few rows.
    """
    found = rows.where(selection.candidate).order_by(*selection.order).limit(limit)
    if locks is not None:
        found = skip_locked(found, locks)
    parts = [found.where(part) for part in selection.after] or [found]
    if len(parts) == 1:
        return parts[0]
    return sa.select(sa.union_all(*(sa.select(part.subquery()) for part in parts)).subquery()).limit(limit)


def skip_locked(rows: sa.Select[Any], roles: ColumnRoles) -> sa.Select[Any]:
    """Lock these rows, but skip those that others have locked."""
    return rows.with_for_update(skip_locked=True, key_share=True, of=roles.table)


def ends(roles: ColumnRoles, selection: Selection) -> sa.Select[Any]:
    """The places of the first and the last job that is due, for an order of columns, and 1.

    The last one is searched for among the last `TAIL_JOBS` that are unclaimed: there may be many that are not due. If
    none of these is due, the place is that of the very last, and a 0 follows.
    """
    columns = [column.label(column.name) for column in selection.order]
    falling = [column.desc() for column in selection.order]
    is_due = sa.case((selection.due, 1), else_=0).label(DUE)
    unclaimed = roles.state.row_says(UNCLAIMED)
    tail = sa.select(*columns, is_due).where(unclaimed).order_by(*falling).limit(TAIL_JOBS).subquery("claimjobs_tail")
    first = sa.select(*columns, sa.literal(1).label(DUE)).where(selection.due).order_by(*selection.order).limit(1)
    last = sa.select(tail).order_by(tail.c[DUE].desc(), *(tail.c[column.name].desc() for column in columns)).limit(1)
    return sa.select(sa.union_all(*(sa.select(one.subquery()) for one in (first, last))).subquery())


def columns_of(roles: ColumnRoles, dialect: Dialect, columns: Sequence[Any]) -> sa.Select[Any]:
    """These columns of those of the rows `keys` that are there, in any state."""
    return dialect.restrict_to_keys(sa.select(*columns).select_from(roles.table), roles.key, roles.key_index)


def how_many(candidates: sa.Select[Any]) -> sa.Select[Any]:
    """How many rows a search returns."""
    return sa.select(sa.func.count()).select_from(candidates.subquery("candidate"))


def same_key(roles: ColumnRoles, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """The predicate of a row of the table and its candidate."""
    return sa.and_(*(column == other.c[KEY.format(i)] for i, column in enumerate(roles.key)))


def all_but(dialect: Dialect, roles: ColumnRoles, parameter: str, keys: Collection[Any]) -> sa.ColumnElement[bool]:
    """True for all rows but those with these keys, which are read each time that it is sent."""
    return ~dialect.listed(roles.key, sa.bindparam(parameter, expanding=True, callable_=lambda: [*keys]))


def counted(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """A counter; NULL in a user's column counts as 0."""
    return sa.func.coalesce(column, 0) if column.nullable else column

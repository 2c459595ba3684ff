"""How the columns of a row express the state of its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from claimjobs.table.claim_rows import ClaimRows
from claimjobs.table.columns import CLAIMED, STATES, UNCLAIMED

Column = sa.Column[Any]


@dataclass(frozen=True)
class State:
    """A column with a value for each state, an owner that is NULL or not, or both.

    If one value stands for two states, the owner column tells them apart: only a claimed job has an owner. Without a
    column for the state, a row whose owner is NULL is unclaimed.
    """

    column: Column | None
    values: Mapping[str, Any]
    """The column's value for each state that it can express."""
    owner: Column | None

    @cached_property
    def can(self) -> frozenset[str]:
        """The states that a row can express."""
        known = {UNCLAIMED, *self.values}
        if self.owner is not None:
            return frozenset(known | {CLAIMED})
        others = [self._value(state) for state in known if state != CLAIMED]
        return frozenset(known - {CLAIMED} if self._value(CLAIMED) in others else known)

    def job_is(self, state: str) -> sa.ColumnElement[bool]:
        """The predicate of a job in this state."""
        return self.row_says(state)

    def row_says(self, state: str) -> sa.ColumnElement[bool]:
        """The predicate of a row whose columns express this state: of no row, if they cannot."""
        if state not in self.can:
            return sa.false()
        predicates = [] if self.column is None else [self.column == self._value(state)]
        if self.owner is not None and self._is_shared(state):
            predicates.append(self.owner.is_not(None) if state == CLAIMED else self.owner.is_(None))
        return sa.and_(*predicates) if predicates else sa.true()

    def in_no_claim_row(self, after: Mapping[Column, Any] | None = None) -> sa.ColumnElement[bool]:
        """The predicate of a job that is in no claim row, for jobs after this place: see `ClaimRows.without`."""
        del after
        return sa.true()

    @property
    def unfinished(self) -> sa.ColumnElement[bool]:
        """The predicate of a row whose columns express that its job is neither done nor dead."""
        return sa.or_(self.row_says(UNCLAIMED), self.row_says(CLAIMED))

    def is_claimed_by(self, me: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """The predicate of a row that this owner holds: no row, if there is no column for owners."""
        if self.owner is None:
            return sa.false()
        is_mine = self.owner == me
        return is_mine if self.column is None else sa.and_(self.column == self._value(CLAIMED), is_mine)

    def becomes(self, state: str, me: sa.ColumnElement[Any] | None = None) -> dict[Any, Any]:
        """The values that bring a row into this state. `me`: the owner of a claimed job. It must be one of `can`.

        A done or dead job keeps its owner, unless the owner distinguishes its state.
        """
        value = self._value(state) if state == CLAIMED or self.column is None else self.values[state]
        values = {} if self.column is None else {self.column: value}
        leaves = state == UNCLAIMED or self._is_shared(state)
        if self.owner is not None and (me is not None or leaves):
            values[self.owner] = me
        return values

    @cached_property
    def distinguishing_columns(self) -> Sequence[sa.ColumnElement[Any]]:
        """The columns to group rows by their state."""
        column = () if self.column is None else (self.column,)
        shared = self.owner is not None and any(map(self._is_shared, self.can))
        return (*column, self.owner.is_(None)) if shared and self.owner is not None else column

    @cached_property
    def name(self) -> sa.ColumnElement[str | None]:
        """The name of a row's state; NULL: the map names no such state. The database compares, as for a claim."""
        return sa.case(*((self.row_says(state), sa.literal(state, sa.String)) for state in STATES if state in self.can))

    def meant_by(self, value: Any) -> str | None:
        """The state, other than unclaimed, that a value of the column means; None: no such state.

        Values such as 'Claimed' and 1 count, too: some databases and types treat them as equal.
        """
        if self.column is None or _alike(value) == _alike(self.values[UNCLAIMED]):
            return None
        return next((state for state, meant in self.values.items() if _alike(value) == _alike(meant)), None)

    def _value(self, state: str) -> Any:
        return None if self.column is None else self.values.get(state, self.values[UNCLAIMED])

    def _is_shared(self, state: str) -> bool:
        """Whether the column has one value for this state and another one."""
        others = [other for other in self.can if other != state]
        return self.column is None or self._value(state) in [self._value(other) for other in others]


@dataclass(frozen=True, kw_only=True)
class StateByClaimRows(State):
    """The state of a job whose claims are claim rows: it is claimed while it is in one of them.

    Its columns say `unclaimed` meanwhile. A row whose columns say `claimed` is held by another program.
    """

    claim_rows: ClaimRows

    def job_is(self, state: str) -> sa.ColumnElement[bool]:
        if state == CLAIMED:
            return self.claim_rows.contain()
        said = self.row_says(state)
        return sa.and_(said, self.in_no_claim_row()) if state == UNCLAIMED else said

    def in_no_claim_row(self, after: Mapping[Column, Any] | None = None) -> sa.ColumnElement[bool]:
        return self.claim_rows.without(after)

    @property
    def unfinished(self) -> sa.ColumnElement[bool]:
        return self.row_says(UNCLAIMED)

    def is_claimed_by(self, me: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.and_(self.row_says(UNCLAIMED), self.claim_rows.contain(self.claim_rows.of(me)))


def plain(value: Any) -> str | None:
    """A value as text: a program may have a boolean or a member of an Enum where another one has a number or a name."""
    if value is None:
        return None
    return str(value.name if isinstance(value, Enum) else int(value) if isinstance(value, bool) else value)


def _alike(value: Any) -> str | None:
    """A text that is equal for all values that a column may treat as equal."""
    return None if value is None else str(plain(value)).strip().casefold()

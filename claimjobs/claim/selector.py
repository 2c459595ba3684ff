"""Selector: the rows that a user's predicate and order select. On an error it finds out which of the two is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import sqlalchemy as sa

from claimjobs.database.connect import connected
from claimjobs.database.error_translation import predicate_errors
from claimjobs.dialects import Dialect
from claimjobs.errors import BadPredicate, UnfitTable
from claimjobs.statements.find import Selection
from claimjobs.table.predicates import OrderBy, Predicate, Where, order_of, predicates_of, read_other_rows
from claimjobs.table.reflection import columns_in_database
from claimjobs.table.roles import ColumnRoles


@dataclass(frozen=True)
class Selector:
    """A predicate and an order over the table of these roles; each call may narrow the predicate further."""

    engine: sa.Engine
    dialect: Dialect
    roles: ColumnRoles
    where: Where
    order_by: OrderBy
    now: sa.ColumnElement[Any]
    claimable: sa.ColumnElement[bool] = field(default_factory=sa.true)
    """True for rows that this Queue may still claim: see `settle.still_due`."""
    sweep_order: Sequence[sa.Column[Any]] = ()
    """The order of sweeps, if consumers begin at random places: see `table.claim_index.sweep_order`."""

    def selection(self, where: Where) -> Selection:
        """The rows that are due and match both predicates, in order."""
        # With a predicate the database may have a better index than that of this order.
        in_sweeps = bool(self.sweep_order) and self.where is None and where is None
        order = self.sweep_order if in_sweeps else order_of(self.order_by, self.roles, self.dialect.lexis)
        predicates = self.predicates(where)
        # A row whose key cannot be read would stop each claim that finds it, and all rows beside it.
        ready = sa.and_(self.roles.due(self.now), *self.dialect.readable(self.roles.key), *predicates)
        return Selection(
            ready,
            order,
            claim_rows=self.roles.claim_rows,
            in_sweeps=in_sweeps,
            predicates=predicates,
            reads_other_rows=read_other_rows(predicates, self.engine.dialect, self.dialect.lexis),
        )

    @property
    def lasting(self) -> Sequence[Predicate]:
        """The queue's predicate, over columns of the user's table, if each claim has the same: a function may select
        other rows each time, so all rows count.
        """
        return () if callable(self.where) else predicates_of(self.where, self.roles, self.dialect.lexis)

    def predicates(self, where: Where) -> tuple[Predicate, ...]:
        """Both predicates, and that of the rows that this Queue may still claim, over columns of the user's table."""
        both = (predicates_of(one, self.roles, self.dialect.lexis) for one in (self.where, where))
        return (*chain(*both), self.claimable)

    def changes(self, where: Where) -> bool:
        """Whether a callable gives the predicate, so that it may differ from call to call."""
        return callable(self.where) or callable(where)

    def trial(self, where: Where, *, ordered: bool = False) -> None:
        """Have the database read the predicate, and with `ordered` the order. Raises sqlalchemy.exc.DBAPIError."""
        selection = self.selection(where)
        order = selection.order if ordered else ()
        with connected(self.engine) as connection:
            connection.execute(sa.select(*self.roles.key).where(selection.ready).order_by(*order).limit(0))

    @contextmanager
    def understood(self, where: Where) -> Iterator[None]:
        """Raises BadPredicate where the database does not understand one of them; UnfitTable for a column that the
        table does not have any more. Without a predicate and an order it raises the error of the database.
        """
        try:
            with predicate_errors(self.dialect, lambda: self._reads(where) and not self._reads(where, ordered=True)):
                yield
        except BadPredicate as bad:
            with connected(self.engine) as connection:
                there = columns_in_database(connection, self.roles.table)
            if missing := [name for name in self.roles.columns if name not in there]:
                raise UnfitTable(
                    f"table {self.roles.name!r} has no column {missing[0]!r} any more, which was there when this Queue "
                    "was made: make a new Queue, which reads the table anew (a process that is replaced does that)"
                ) from bad
            is_any_order = isinstance(self.order_by, (list, tuple)) and not self.order_by
            is_asked_for = self.where is not None or where is not None or not (self.order_by is None or is_any_order)
            if not is_asked_for and bad.__cause__ is not None:
                raise bad.__cause__ from None
            raise

    def _reads(self, where: Where, *, ordered: bool = False) -> bool:
        with suppress(sa.exc.DBAPIError):
            self.trial(where, ordered=ordered)
            return True
        return False

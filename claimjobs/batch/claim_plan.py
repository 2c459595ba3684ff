"""ClaimPlans: how the jobs of one queue are claimed. A ClaimPlan is built once for each predicate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.settle_and_claim import SettleAndClaim
from claimjobs.claim.choose_strategy import strategy_for
from claimjobs.claim.key_locking import KeyLocking
from claimjobs.claim.key_search import KeySearch, KeySweep
from claimjobs.claim.locking import Locking
from claimjobs.claim.record import ClaimRecord
from claimjobs.claim.selector import Selector
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.database.connect import connected
from claimjobs.dialects import Key
from claimjobs.dialects.types import database_now, statement_now
from claimjobs.errors import KeyUnfit
from claimjobs.per_key import PerKey
from claimjobs.settle.settler import Settler
from claimjobs.settle.still_due import StillDueRows
from claimjobs.statements.find import Selection, all_but
from claimjobs.statements.job_rows import job_rows
from claimjobs.statements.key_rows import KeyStatements
from claimjobs.statements.owners import work
from claimjobs.table.backend import Backend
from claimjobs.table.claim_index import indexes_of, missing_index, sweep_order
from claimjobs.table.predicates import OrderBy, Where

KEYED_SLEEP: Final = 60.0
"""With `per_key` an idle owner looks at the first jobs only. If their keys wait, only a claim finds others."""


@dataclass
class ClaimPlan:
    """How jobs that match a predicate are claimed, how a settle claims the next ones, and how to check for work."""

    where: Where
    selection: Selection
    """The rows that are due and match, in order."""
    strategy: ClaimStrategy
    backend: Backend
    changes: bool
    """Whether a callable gives the predicate, so that the next claim needs another plan."""
    divisible: bool = True
    """Whether fewer rows are claimed after an error that one of them may cause. If not, it is tried for a lease."""
    due_keys: sa.ColumnElement[Any] | None = None
    """A scalar that is NULL if no key of `per_key` is due; None: there is no `per_key`."""
    is_limited: bool = False
    """Whether a settle must be committed before the next claim, which counts what is claimed of the same keys."""
    _settle_and_claim: SettleAndClaim | None = field(default=None, init=False)

    def way_to_settle_and_claim(self, settler: Settler) -> SettleAndClaim:
        """How a batch is settled and the next one claimed in one transaction. Built at the first call."""
        if self._settle_and_claim is None:
            self._settle_and_claim = SettleAndClaim(settler, self.strategy)
        return self._settle_and_claim

    @cached_property
    def work(self) -> sa.ColumnElement[Any]:
        """A scalar that is NULL when there is nothing to claim."""
        return work(self.backend.source, self.selection) if self.due_keys is None else self.due_keys


class ClaimPlans:
    """Makes the plan of a claim from the settings of a queue, and keeps the last one."""

    def __init__(
        self,
        engine: sa.Engine,
        backend: Backend,
        now: sa.ColumnElement[Any],
        *,
        where: Where,
        order_by: OrderBy,
        record: ClaimRecord,
        locking: Locking | None,
        per_key: PerKey | None,
        still_due: StillDueRows | None,
    ) -> None:
        """`record`: where claims are recorded. `still_due`: with `on_done="leave"`, rows not to be claimed again.

        The others are those of a Queue.
        """
        self.still_due = still_due
        self.left: dict[Key, None] = {}
        """The rows that no claim can take: see `row_isolation`."""
        self._engine, self._backend, self._now = engine, backend, now
        self._where, self._order_by = where, order_by
        self._record, self._locking, self._per_key = record, locking, per_key
        self._last: ClaimPlan | None = None
        self._search, self._sweep = KeySearch(), KeySweep()
        self._has_index = False
        """Whether the index for `per_key` was seen."""

    def plan(self, where: Where) -> ClaimPlan:
        """The plan for a predicate. It is built once, but for each claim if a callable gives the predicate."""
        last = self._last
        if last is None or last.where is not where:
            self._sweep = KeySweep()
        if last is None or last.changes or last.where is not where:
            selection, changes = self.selector.selection(where), self.selector.changes(where)
            ready = job_rows(self._backend, self._now).claimable(selection.ready)
            selection = replace(selection, ready=ready)
            strategy = self.strategy(selection, sweep=self._sweep)
            keys = self._key_rows(selection)
            self._last = last = ClaimPlan(
                where,
                selection,
                strategy,
                self._backend,
                changes=changes,
                due_keys=None if keys is None else keys.is_due,
                is_limited=self._per_key is not None and self._per_key.limit is not None,
            )
        return last

    @property
    def key_statements(self) -> KeyStatements | None:
        """The statements about key rows, of the queue's own predicate; None: there is no `per_key`."""
        return self._key_rows(self.selector.selection(None))

    def _key_rows(self, selection: Selection) -> KeyStatements | None:
        """The statements about key rows; None: there is no `per_key`."""
        backend, per_key, now = self._backend, self._per_key, self._now
        if per_key is None or backend.key_rows is None:
            return None
        rows = job_rows(backend, now)
        held = sa.and_(rows.failed, *selection.predicates) if per_key.waits else None
        at = statement_now() if isinstance(now, database_now) else now
        by: dict[str, Any] = {"selection": selection, "job_rows": rows, "held": held, "weights": per_key.weights}
        return KeyStatements(backend.key_rows, backend.source, backend.dialect, now=at, **by)

    @property
    def longest_sleep(self) -> float:
        """Seconds after which an idle loop claims, whether it was told of work or not."""
        return math.inf if self._per_key is None else KEYED_SLEEP

    @property
    def tried(self) -> Sequence[Key]:
        """The candidates that the last claim has tried to lock, with `per_key`: they are not the first of the order."""
        return self._sweep.tried

    def strategy(
        self, selection: Selection, *, sweep: KeySweep | None = None, lock_before_mark: bool = False
    ) -> ClaimStrategy:
        """How jobs are claimed. `sweep`: with `per_key`, that of all claims with this predicate; None: it is for one
        claim. `lock_before_mark`: see `strategy_for`.
        """
        locking, key_rows = self._locking, self._key_rows(selection)
        if key_rows is not None and self._per_key is not None:
            self._need_index(selection)
            locking = KeyLocking(self._per_key, key_rows, self._search, sweep or KeySweep(self._sweep.place))
        by: dict[str, Any] = {"locking": locking, "lock_before_mark": lock_before_mark}
        return strategy_for(self._backend, selection, self._record, self._now, **by)

    def _need_index(self, selection: Selection) -> None:
        """Raises KeyUnfit, with the statement, if no index finds the jobs of a key in their order."""
        backend = self._backend
        if backend.key_rows is None or self._has_index:
            return
        order = (*backend.key_rows.of_jobs, *selection.order)
        with connected(self._engine) as connection:
            lack = missing_index(connection, backend.source, order, indexes_of(connection, backend.source.table))
        if lack is not None:
            raise KeyUnfit(
                f"table {backend.source.name!r} has no index that finds the jobs of one key of per_key in their order: "
                f"{lack.ddl}"
            )
        self._has_index = True

    @property
    def selector(self) -> Selector:
        """The rows that the queue's predicate and order select, but for those that this queue leaves."""
        source = self._backend.source
        claimable = sa.true() if self.still_due is None else self.still_due.claimable
        if self.left:
            claimable = sa.and_(claimable, all_but(source, "claimjobs_unclaimable", self.left))
        return Selector(
            self._engine,
            self._backend.dialect,
            source,
            self._where,
            self._order_by,
            self._now,
            claimable,
            self._sweep_order,
        )

    @cached_property
    def _sweep_order(self) -> Sequence[sa.Column[Any]]:
        """The order of sweeps, if any order will do and the table has an index for it."""
        if not isinstance(self._order_by, (list, tuple)) or self._order_by:
            return ()
        with connected(self._engine) as connection:
            return sweep_order(connection, self._backend.source)

    @property
    def order(self) -> Sequence[sa.ColumnElement[Any]]:
        """The order of the queue. Raises BadPredicate."""
        return self.selector.selection(None).order

    def work(self, where: Where) -> sa.ColumnElement[Any] | None:
        """A scalar that is NULL when no job is due. None if a callable gives the predicate."""
        return None if self.selector.changes(where) else self.plan(where).work

    def leave(self, key: Key) -> None:
        """Claim this row no more, because no claim can take it."""
        self.left[key] = None
        self._last = None  # the first one changes the predicate

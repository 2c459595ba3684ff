"""ClaimPlan: what is built once for a predicate and used by each claim with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from claimjobs.batch.settle_and_claim import SettleAndClaim, settle_and_claim_for
from claimjobs.claim.strategy import ClaimStrategy
from claimjobs.settle.settler import Settler
from claimjobs.statements.find import Selection
from claimjobs.statements.idle import work
from claimjobs.statements.side_car import SideCarJoin
from claimjobs.table.backend import Backend
from claimjobs.table.predicates import Where


@dataclass
class ClaimPlan:
    """How jobs that match a predicate are claimed, how a settle claims the next ones, and how to check for work."""

    where: Where
    selection: Selection
    """The rows that are due and match, in order."""
    strategy: ClaimStrategy
    backend: Backend
    now: sa.ColumnElement[Any]
    changes: bool
    """Whether a callable gives the predicate, so that the next claim needs another plan."""
    divisible: bool = True
    """Whether fewer rows are claimed after an error that one of them may cause. If not, it is tried for a lease."""
    _settle_and_claim: SettleAndClaim | None = field(default=None, init=False)

    def way_to_settle_and_claim(self, settler: Settler) -> SettleAndClaim:
        """How a batch is settled and the next one claimed in one transaction. Built at the first call."""
        if self._settle_and_claim is None:
            self._settle_and_claim = settle_and_claim_for(settler, self.strategy)
        return self._settle_and_claim

    @cached_property
    def work(self) -> sa.ColumnElement[Any]:
        """A scalar that is NULL when there is nothing to claim."""
        backend, selection = self.backend, self.selection
        if backend.user_table is None:
            return work(backend.source, selection)
        pair = SideCarJoin(backend.user_table, backend.roles, backend.dialect, self.now)
        return work(backend.source, replace(selection, ready=sa.and_(selection.ready, pair.group_size >= 0)))

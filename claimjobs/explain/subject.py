"""Subject: what is explained, a queue as it would claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.claim_plan import ClaimPlan
from claimjobs.batch.settle import Settler
from claimjobs.claim.strategy import ClaimRequest, Phase
from claimjobs.dialects import Key
from claimjobs.dialects.inspection import Inspection
from claimjobs.job import key_of
from claimjobs.options import Liveness
from claimjobs.statements import samples
from claimjobs.table.backend import Backend

SIZE: Final = 100
"""The size of the claim that is explained."""
FEW: Final = 10
"""How many keys are given to a statement that is planned. For many keys a planner may prefer to read a whole table."""
SMALL: Final = 10_000
"""A planner may read a table of fewer rows as a whole, whatever indexes it has. That costs little."""
NOBODY: Final = 0
"""The id of no owner."""


@dataclass(frozen=True)
class Subject:
    """A queue's tables and statements."""

    backend: Backend
    plan: ClaimPlan
    settler: Settler
    liveness: Liveness
    now: sa.ColumnElement[Any]

    @property
    def inspection(self) -> Inspection:
        """How this database is asked."""
        return self.backend.dialect.inspection

    @property
    def table(self) -> sa.Table:
        """The user's table."""
        return self.backend.source.table

    def phases(self, owner: int, keys: list[Key]) -> list[Phase]:
        """The statements of a claim, then of a settle, of jobs with these keys."""
        claim = self.plan.strategy.phases(owner, ClaimRequest(SIZE, SIZE), keys)
        return [*claim, *self.settler.phases(owner, keys)]

    def some_owner(self, connection: sa.Connection) -> int:
        """An owner that lives, or nobody. A planner may find out that a statement for a dead owner reaches no row."""
        return (self.backend.by_lease and connection.scalar(samples.some_owner(self.backend.owners))) or NOBODY

    def some_keys(self, connection: sa.Connection) -> list[Key]:
        """The keys of a few rows."""
        rows = connection.execute(samples.keys(self.backend.source, self.backend.dialect), {"claimjobs_limit": FEW})
        return [key_of(row) for row in rows]

    def is_small(self, connection: sa.Connection) -> bool:
        """Whether the table is so small that a plan says little."""
        rows = connection.scalar(samples.how_many(self.backend.source), {"claimjobs_limit": SMALL})
        return (rows or 0) < SMALL

"""Following: the claim of a loop's next batch, which is made together with the settle of the batch before."""

from __future__ import annotations

from claimjobs.batch.claim_plan import ClaimPlan, ClaimPlans
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.control import Control
from claimjobs.settle.outcomes import Outcomes
from claimjobs.table.predicates import Where


class Following:
    """What a settle claims for a loop."""

    def __init__(self, plans: ClaimPlans, size: int, where: Where, control: Control) -> None:
        """`size`, `where`: as the loop claims."""
        self._plans, self._where, self._control = plans, where, control
        self.size = size
        self.claimed = NOTHING
        """What the last settle claimed, until the loop takes it."""
        self.is_over = False
        """Whether the loop has ended."""

    def plan_after(self, outcomes: Outcomes) -> ClaimPlan | None:
        """The plan of the claim that is made with these outcomes; None: they are settled alone.

        If no job was done, a claim would return the same jobs again.
        """
        if self.is_over or self._control.stopping or self._control.paused or not outcomes.done:
            return None
        try:
            return self._plans.plan(self._where)
        except Exception:  # of a user's callable: the next claim raises it
            return None

    def take(self) -> ClaimResult:
        """What the last settle claimed. Each claim is given once."""
        claimed, self.claimed = self.claimed, NOTHING
        return claimed

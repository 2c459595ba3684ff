"""Hold: what keeps claimed jobs from other consumers, a lease or an open transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa

from claimjobs.batch.claim_plan import ClaimPlan
from claimjobs.batch.settle import Outcomes
from claimjobs.claim.strategy import ClaimResult
from claimjobs.dialects import Key
from claimjobs.errors import NoOpenTransaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class SettlesBatch(Protocol):
    """What settles a batch whose block was left without an exception, in place of its hold."""

    def settle(self, hold: Hold, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """As `Hold.settle`, through that hold."""


class Hold(ABC):
    """Claims jobs, settles them, and keeps them from others in between.

    What a job writes can be undone only where an open transaction holds it: the methods for that do nothing here.
    """

    settle_is_final: bool
    """Whether a settle that failed cannot be tried again."""
    settles_and_claims: bool
    """Whether the next batch can be claimed in the transaction of a settle."""

    @property
    @abstractmethod
    def owner_id(self) -> int:
        """The id in whose name jobs are claimed by now; 0 where nobody is registered."""

    @abstractmethod
    def claim(self, size: int, plan: ClaimPlan) -> ClaimResult:
        """Claim up to `size` jobs. There is no further try once the queue was told to stop."""

    @abstractmethod
    def settle(self, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes of claimed jobs; return the keys of the jobs that this consumer held no longer."""

    @abstractmethod
    def settle_and_claim(
        self, claimed: ClaimResult, outcomes: Outcomes, size: int, plan: ClaimPlan
    ) -> tuple[set[Key], ClaimResult]:
        """Settle as `settle` does, and claim the next `size` jobs in the same transaction: none if that fails.

        What is claimed waits until `take_early` asks for it; it is released after half a lease.
        """

    def take_early(self, claimed: ClaimResult) -> bool:
        """Whether this claim of `settle_and_claim` can be worked on now. Each is given once."""
        del claimed
        return False

    @abstractmethod
    def progress(self) -> None:
        """The work goes on: a job passed, a batch came or went."""

    # --- what jobs write, where they write into the transaction that holds them ----------------------------

    def connection(self, claimed: ClaimResult) -> sa.Connection:
        """The open transaction that holds the jobs. Raises NoOpenTransaction where a lease holds them."""
        raise NoOpenTransaction("is held by lease and has no open transaction")

    def session(self, claimed: ClaimResult, **options: Any) -> Session:
        """A session on that connection. Raises as `connection`."""
        raise NoOpenTransaction("is held by lease and has no open transaction")

    def begin_job(self, claimed: ClaimResult) -> None:
        """The work on a job begins."""
        del claimed

    def keep_job(self, claimed: ClaimResult) -> bool:
        """The job is done: what it wrote stays. Returns whether it may have written something."""
        del claimed
        return False

    def undo_job(self, claimed: ClaimResult) -> None:
        """Undo what the current job wrote."""
        del claimed

    def undo_all(self, claimed: ClaimResult) -> bool:
        """Undo all that was written since the claim; the jobs stay held. Returns whether there can be anything."""
        del claimed
        return False

    # --- the whole hold --------------------------------------------------------------------------------

    @abstractmethod
    def restart_from_head(self) -> None:
        """Search from the head of the order next: there may be jobs before those that were claimed last."""

    @abstractmethod
    def give_up(self) -> None:
        """Let what cannot be sent now fail, and do not try again: this hold is about to be closed."""

    @abstractmethod
    def close(self) -> None:
        """Release what is still held, and close the connections. Does nothing in a forked child."""

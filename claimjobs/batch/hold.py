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
    """Settles a batch in place of its hold, if its block was left without an exception."""

    def settle(self, hold: Hold, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Settle through that hold; returns as `Hold.settle`."""


class Hold(ABC):
    """Claims jobs, keeps other consumers from them, and settles them.

    The writes of a job can be undone only if an open transaction holds it. The methods for that do nothing here.
    """

    settle_is_final: bool
    """Whether a settle that failed cannot be tried again."""
    settles_and_claims: bool
    """Whether the next batch can be claimed in the transaction of a settle."""

    @property
    @abstractmethod
    def owner_id(self) -> int:
        """The id under which jobs are claimed now; 0 without an owner."""

    @abstractmethod
    def claim(self, size: int, plan: ClaimPlan) -> ClaimResult:
        """Claim up to `size` jobs. After `stop` a claim is not tried again."""

    @abstractmethod
    def settle(self, claimed: ClaimResult, outcomes: Outcomes) -> set[Key]:
        """Write the outcomes of claimed jobs; return the keys of the jobs that this consumer held no longer."""

    @abstractmethod
    def settle_and_claim(
        self, claimed: ClaimResult, outcomes: Outcomes, size: int, plan: ClaimPlan
    ) -> tuple[set[Key], ClaimResult]:
        """Settle, and claim the next `size` jobs in the same transaction. If the claim fails, only settle.

        The claimed jobs wait for `take_following`. They are released after half a lease.
        """

    def take_following(self, claimed: ClaimResult) -> bool:
        """Whether this claim of `settle_and_claim` is still held. Each claim is given once."""
        return False

    @abstractmethod
    def progress(self) -> None:
        """The handler makes progress: a job was decided, or a batch was claimed or settled."""

    # --- what jobs write in the transaction that holds them ------------------------------------------------

    def connection(self, claimed: ClaimResult) -> sa.Connection:
        """The open transaction that holds the jobs. Raises NoOpenTransaction if a lease holds them."""
        raise NoOpenTransaction("is held by lease and has no open transaction")

    def session(self, claimed: ClaimResult, **options: Any) -> Session:
        """A session on that connection. Raises as `connection`."""
        raise NoOpenTransaction("is held by lease and has no open transaction")

    def begin_job(self, claimed: ClaimResult) -> None:  # noqa: B027
        """Begin a job."""

    def keep_job(self, claimed: ClaimResult) -> bool:
        """End a job that is done: its writes stay. Returns whether it may have written something."""
        return False

    def undo_job(self, claimed: ClaimResult) -> None:  # noqa: B027
        """Undo the writes of the current job."""

    def undo_all(self, claimed: ClaimResult) -> bool:
        """Undo all writes since the claim; the jobs stay held. Returns whether there may have been any."""
        return False

    # --- the whole hold --------------------------------------------------------------------------------

    @abstractmethod
    def restart_from_head(self) -> None:
        """Begin the next claim at the head of the order: jobs may be before the cursor."""

    @abstractmethod
    def give_up(self) -> None:
        """Let what cannot be sent now fail, without another try: this hold is about to be closed."""

    @abstractmethod
    def close(self) -> None:
        """Release all jobs, and close the connections. Does nothing in a forked child."""

"""What every way to claim has in common: the request, the result, and the interface `ClaimStrategy`.

`ClaimPlans.strategy` (claim_plan.py) chooses the class of a queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.statements.find import KeysetOrder

After = Mapping[str, Any] | None
"""The cursor as parameters of a statement: a claim begins after this place in the order. None: at the head."""


class ClaimRequest(NamedTuple):
    """What one claim is to do: claim `size` jobs out of `limit` candidates, after a place in the order."""

    size: int
    limit: int
    after: After = None

    @property
    def find_parameters(self) -> dict[str, Any]:
        """The parameters of the statement that finds candidates."""
        return {"claimjobs_limit": self.limit, **(self.after or {})}


class ClaimResult(NamedTuple):
    """What one claim did."""

    jobs: list[Job]
    candidates: int
    """How many candidates the claim met. A full claim that locks them as it finds them has met only `examined`."""
    examined: int
    """The place of the last claimed job among the candidates: those that others had locked or claimed count, too."""
    owner: int = 0
    """The id of the owner that claimed them."""
    suspects: bool = False
    """Whether the jobs are suspects. Then fewer may be claimed than were wanted."""
    claim_row: int = 0
    """The number of the claim row that records them; 0: the claim is recorded in their rows."""
    goes_on: bool = False
    """Whether the claim ended in the middle of a search, which the next claim goes on with."""
    end: After = None
    """The place of the last candidate, if the claim read `limit` of them and others have locked all."""

    @property
    def collisions(self) -> int:
        """Candidates that others had locked or claimed before this claim reached them."""
        return self.examined - len(self.jobs)

    def only(self, jobs: list[Job], request: ClaimRequest) -> ClaimResult:
        """The same with only these of its jobs. If it loses some, because they cannot be claimed any more, there may be
        others: it counts as one that met all candidates that it may read, so the next claim does not begin at the head.
        """
        met = self.candidates if len(jobs) == len(self.jobs) else max(request.limit, self.candidates)
        return self._replace(jobs=jobs, candidates=met)


NOTHING: Final = ClaimResult([], 0, 0)
LATER: Final = ClaimResult([], 1, 0)
"""Nothing was claimed, but there may be jobs: the owner must settle others first, or the next claim goes on."""


class Phase(NamedTuple):
    """A statement of a claim or a settle, for `explain`."""

    name: str
    statement: Any
    parameters: Mapping[str, Any]


class OwnerDead(Exception):
    """Nothing was claimed: the owner was declared dead, or the database swallows the write."""

    def __init__(self, marked: int = 0, locked: Sequence[Job] = ()) -> None:
        """`marked`: how many of the `locked` jobs were marked."""
        super().__init__(marked, len(locked))
        self.counts, self.keys = (marked, len(locked)), tuple(job.key for job in locked)


class ClaimStrategy(ABC):
    """A way to claim jobs, in the caller's transaction.

    Suspects are jobs of a batch that failed as a whole. They are claimed only together with suspects of a group of
    the same size, and at most half as many at once. So the groups get smaller until the bad job is alone.
    """

    keyset_order: KeysetOrder | None
    """The order, if a claim can begin anywhere in it."""
    needs_no_transaction: bool
    """Whether a claim needs no transaction around it."""
    is_lazy: bool
    """Whether the database reads no more candidates than are needed. Then the limit may be high."""

    @abstractmethod
    def claim(self, connection: sa.Connection, owner: int, request: ClaimRequest) -> ClaimResult:
        """Claim for the owner of this id. Raises OwnerDead or KeyUnfit: roll the transaction back then."""

    @abstractmethod
    def phases(self, owner: int, request: ClaimRequest, keys: list[Key]) -> list[Phase]:
        """The statements that read or write jobs in a claim that finds jobs with these keys, in their order."""

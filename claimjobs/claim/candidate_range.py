"""CandidateRange: where the claims of one consumer begin in the order, and how many candidates they read."""

from __future__ import annotations

import time
from typing import Final

from claimjobs.claim.regions import Regions
from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.errors import Unreadable
from claimjobs.job import Job
from claimjobs.report import Report
from claimjobs.statements.find import KeysetOrder

TRIES: Final = 5
"""How often a claim from the head is tried while others have locked all its candidates. Each try reads more of them."""


class CandidateRange:
    """Which candidates the next claim of a consumer reads: it learns that from each claim.

    A hold repeats these calls until a claim is final: `next_request`, `ClaimStrategy.claim`, `learn`, `is_over`.
    """

    def __init__(self, report: Report) -> None:
        self._overfetch = Overfetch()
        self._report = report
        self._strategy: ClaimStrategy | None = None
        self._cursor: Cursor | Regions = Cursor(None)
        self.since = 0.0
        """When the last request was made, by this machine's clock."""
        self._in_vain = 0
        """How many claims from the head have failed since the last one that was final."""

    def regions(self, strategy: ClaimStrategy) -> Regions | None:
        """The regions that claims visit. None: they have a cursor."""
        self._use(strategy)
        return self._cursor if isinstance(self._cursor, Regions) else None

    def _use(self, strategy: ClaimStrategy) -> None:
        """The cursor and the regions belong to one strategy: another one begins anew."""
        if strategy is not self._strategy:
            order = strategy.keyset_order
            self._strategy = strategy
            self._cursor = Regions(order) if order is not None and order.in_regions else Cursor(order)

    def next_request(self, size: int, strategy: ClaimStrategy) -> ClaimRequest:
        """A request for `size` jobs."""
        self._use(strategy)
        self.since = time.monotonic()
        limit = self._overfetch.most(size) if strategy.is_lazy else self._overfetch.limit(size)
        return ClaimRequest(size, limit, self._cursor.begin())

    def elsewhere(self, request: ClaimRequest) -> ClaimRequest:
        """The request for another try. If regions are visited, it is made in another one: the transaction may have been
        refused because a consumer on another primary claims in this one, too.
        """
        if not isinstance(self._cursor, Regions):
            return request
        self._cursor.postpone()
        return request._replace(after=self._cursor.begin())

    def learn(self, request: ClaimRequest, result: ClaimResult) -> None:
        """Learn from the result of the last request, and count it in the report."""
        self._overfetch.learn(result, request.size, request.limit)
        self._cursor.learn(result, request, time.monotonic() - self.since)
        self._report.count_claim(len(result.jobs), candidates=result.found, collisions=result.collisions)
        self._report.replica_claims += result.from_replica

    def is_over(self, request: ClaimRequest, result: ClaimResult) -> bool:
        """Whether this result is final. If not, claim again: more jobs may be there, or some before the cursor."""
        is_from_head = request.after is None
        self._in_vain += is_from_head
        if result.jobs or (is_from_head and (not result.found or self._in_vain >= TRIES)):
            self._in_vain = 0
            return True
        return False

    def restart_from_head(self) -> None:
        """Begin the next claim at the head: jobs may be before the cursor."""
        self._cursor.restart_from_head()


SHARE: Final = 10
"""Claims from the head take at most about one part in so many of the time."""
LONGEST: Final = 2.0
"""Seconds after which a claim begins at the head, whatever that costs."""


class Cursor:
    """A place in the order: a claim begins after the last job of the claim before.

    Entries of deleted rows stay in an index for a while; for hours, if another session holds a snapshot open. A claim
    from the head reads all of them. A claim from the cursor reads only those since the last claim.

    Jobs can appear before the cursor: enqueued with a smaller key or a higher priority, committed late, retried,
    released, or due only now. So a claim begins at the head now and then, and when too few jobs are after the cursor.
    """

    def __init__(self, keyset_order: KeysetOrder | None) -> None:
        self._keyset_order = keyset_order
        self._place: After = None
        self._head_at = 0.0

    def begin(self) -> After:
        """The place after which the next claim begins. None: at the head."""
        return None if time.monotonic() >= self._head_at else self._place

    def learn(self, claimed: ClaimResult, request: ClaimRequest, took: float) -> None:
        """Learn from a claim that took so many seconds."""
        if request.after is None:
            self._head_at = time.monotonic() + min(SHARE * took, LONGEST)
        if len(claimed.jobs) == request.size and self._keyset_order is not None:
            self._place = self._after(self._keyset_order, claimed.jobs[-1])
        elif not claimed.jobs or claimed.found < request.limit:
            self._place = None
        else:  # others had locked what it read: the next claim reads more, from the same place
            self._place = request.after

    @staticmethod
    def _after(keyset_order: KeysetOrder, job: Job) -> After:
        """The place of a job. None if Python cannot hold one of its values."""
        try:
            return keyset_order.place(job)
        except Unreadable:
            return None

    def restart_from_head(self) -> None:
        """Begin the next claim at the head."""
        self._place = None


class Overfetch:
    """How many candidates to read for each job that is wanted.

    Consumers that read the same candidates try to lock the same rows. With ten consumers and no over-fetch, nine of ten
    claims get nothing. With candidates for a few batches each finds free ones. The factor doubles when a claim gets too
    few jobs, is four times as large when it gets none, and falls to a little above what full claims needed.
    """

    LARGEST = 32
    SPARE = 1.25
    """How much more than it needed lately a claim reads: other consumers go on meanwhile."""
    MEMORY = 0.8
    """The weight of earlier claims against the last one."""

    def __init__(self) -> None:
        self.factor = 1.0

    def limit(self, size: int) -> int:
        """Candidates to read for a batch of `size`."""
        return max(size, round(size * self.factor))

    def most(self, size: int) -> int:
        """The most candidates that a batch of `size` ever reads."""
        return size * self.LARGEST

    def learn(self, claimed: ClaimResult, size: int, limit: int) -> None:
        """Adapt to a claim of `size` jobs out of `limit` candidates. A claim of suspects is ignored."""
        if claimed.suspects:
            return
        if len(claimed.jobs) == size:
            need = self.SPARE * claimed.examined / size if claimed.collisions else 1.0
            self.factor = max(1.0, self.MEMORY * self.factor + (1 - self.MEMORY) * need)
        elif claimed.found >= limit:  # there was more to read
            self.factor = min(self.factor * (2 if claimed.jobs else 4), self.LARGEST)

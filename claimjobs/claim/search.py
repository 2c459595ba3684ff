"""Search: the claims of one consumer, of which each teaches the next where and how far to request."""

from __future__ import annotations

import time
from typing import Final

from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.errors import Unreadable
from claimjobs.job import Job
from claimjobs.report import Report
from claimjobs.statements.find import KeysetOrder

TRIES: Final = 5
"""How often a claim that met only other hands looks again, wider each time, before it comes back empty."""


class Search:
    """What the claims of one consumer teach: where the next one begins, how many candidates it reads.

    Whoever claims asks for a request, claims, tells the result, and goes on until the search is over:
    `next_request`, `ClaimStrategy.claim`, `learn`, `is_over`.
    """

    def __init__(self, report: Report) -> None:
        self._overfetch = Overfetch()
        self._report = report
        self._strategy: ClaimStrategy | None = None
        self._cursor = Cursor(None)
        self._since = 0.0
        self._in_vain = 0
        """Claims from the head, of those that belong together, that met only jobs that others had locked."""

    def next_request(self, size: int, strategy: ClaimStrategy) -> ClaimRequest:
        """A request for `size` jobs. The cursor belongs to one strategy: another one begins at the head."""
        if strategy is not self._strategy:
            self._strategy, self._cursor = strategy, Cursor(strategy.keyset_order)
        self._since = time.monotonic()
        limit = self._overfetch.most(size) if strategy.is_lazy else self._overfetch.limit(size)
        return ClaimRequest(size, limit, self._cursor.begin())

    def learn(self, request: ClaimRequest, result: ClaimResult) -> None:
        """Learn from the result of the last request, and count it in the report."""
        self._overfetch.learn(result, request.size, request.limit)
        self._cursor.learn(result, request, time.monotonic() - self._since)
        self._report.count_claim(len(result.jobs), candidates=result.found, collisions=result.collisions)

    def is_over(self, request: ClaimRequest, result: ClaimResult) -> bool:
        """Whether this result is final. If not, claim again: more jobs may be there, or some before the cursor."""
        is_from_head = request.after is None
        self._in_vain += is_from_head
        if result.jobs or (is_from_head and (not result.found or self._in_vain >= TRIES)):
            self._in_vain = 0
            return True
        return False

    def look_back(self) -> None:
        """There may be jobs before the cursor: look from the head next."""
        self._cursor.look_back()


SHARE: Final = 10
"""Looks from the head take at most about one part in so many of the time."""
LONGEST: Final = 2.0
"""Seconds after which a look is from the head, whatever that costs."""


class Cursor:
    """A claim begins beyond the last job of the one before: what stood up to there was taken, or was in other hands.

    What is gone stays in an index for a while; for hours, where another session holds a snapshot open. A claim from
    the head walks over all of that, a claim from the cursor over what went since the last one.

    Jobs can appear before the cursor: enqueued with a smaller key or a higher priority, committed late, run again,
    due at last, handed back. So every now and then, and whenever there are not enough beyond, one looks from the head.
    """

    def __init__(self, keyset_order: KeysetOrder | None) -> None:
        self._keyset_order = keyset_order
        self._place: After = None
        self._head_at = 0.0

    def begin(self) -> After:
        """Where to look now; None: from the head."""
        return None if time.monotonic() >= self._head_at else self._place

    def learn(self, claimed: ClaimResult, request: ClaimRequest, took: float) -> None:
        """What came of a look that took so many seconds."""
        if request.after is None:
            self._head_at = time.monotonic() + min(SHARE * took, LONGEST)
        if len(claimed.jobs) == request.size and self._keyset_order is not None:
            self._place = self._after(self._keyset_order, claimed.jobs[-1])
        elif not claimed.jobs or claimed.found < request.limit:
            self._place = None
        else:  # what it read others had: there is more beyond, of which the next claim reads more
            self._place = request.after

    @staticmethod
    def _after(keyset_order: KeysetOrder, job: Job) -> After:
        """The place of a job; None where Python cannot hold what says it."""
        try:
            return keyset_order.place(job)
        except Unreadable:
            return None

    def look_back(self) -> None:
        """Jobs have appeared before the cursor, as far as this process knows: look from the head next."""
        self._place = None


class Overfetch:
    """How many candidates to read for each job wanted, learned from what the last claims met.

    Consumers that read the same head lock the same rows: with ten of them and no over-fetch, nine claims of ten
    come back empty. Reading a few batches' worth lets each find its own, in order. The factor doubles when a
    claim falls short, is four times as large when a claim takes nothing, and settles a little above what full claims
    needed.
    """

    LARGEST = 32
    SPARE = 1.25
    """What a claim reads above its recent need: others move on while it looks."""
    MEMORY = 0.8
    """The weight of what was known before against the claim just made."""

    def __init__(self) -> None:
        self.factor = 1.0

    def limit(self, size: int) -> int:
        """Candidates to read for a batch of `size`."""
        return max(size, round(size * self.factor))

    def most(self, size: int) -> int:
        """More it never reads."""
        return size * self.LARGEST

    def learn(self, claimed: ClaimResult, size: int, limit: int) -> None:
        """Adapt to a claim of `size` that was allowed `limit` candidates. One of suspects teaches nothing."""
        if claimed.suspects:
            return
        if len(claimed.jobs) == size:
            need = self.SPARE * claimed.reach / size if claimed.collisions else 1.0
            self.factor = max(1.0, self.MEMORY * self.factor + (1 - self.MEMORY) * need)
        elif claimed.found >= limit:  # there was more to read
            self.factor = min(self.factor * (2 if claimed.jobs else 4), self.LARGEST)

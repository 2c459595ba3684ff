"""CandidateRange: where the claims of one consumer begin in the order, and how many candidates they read."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from claimjobs.claim.candidates import place_of
from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult, ClaimStrategy
from claimjobs.report import Report
from claimjobs.statements.find import KeysetOrder

TRIES: Final = 5
"""How many claims in a row may be in vain because others have locked the candidates, before a search from the head ends
at the end of the order. Others commit in the meantime: it is tried again at once only so often."""
WIDER: Final = 4
"""If others have locked all candidates of a claim, the next one reads so many times as many."""
WIDEST: Final = 10_000
"""The most candidates of such a claim, if the next one can begin after them."""


class CandidateRange:
    """Which candidates the next claim of a consumer reads: it learns that from each claim.

    A hold repeats these calls until a claim is final: `next_request`, `ClaimStrategy.claim`, `learn`, `is_over`.
    That is a search. If others have locked all candidates of a claim, the next one begins after these, and so on to the
    end of the order. If no place in the order is known, the next claim begins where this one did and reads more.
    """

    def __init__(self, report: Report) -> None:
        self._overfetch, self._report = Overfetch(), report
        self._strategy: ClaimStrategy | None = None
        self._cursor: Cursor | Sweep = Cursor(None)
        self.since = 0.0
        """When the last request was made, by this machine's clock."""
        self._began, self._from_head = 0.0, False
        """When the first request of this search was made, and whether it began at the head."""
        self._candidates = 0
        """How many candidates this search has met."""
        self._behind: ClaimRequest | None = None
        """The next request of this search. None: it is over, or begins again elsewhere."""
        self._in_vain = 0
        """How many claims in a row have claimed nothing since the last one that was final."""
        self._refusals = 0
        """How many transactions of this Queue had been run again, for any reason, before the last request."""

    def sweep_to_begin(self, strategy: ClaimStrategy) -> Sweep | None:
        """The sweep, if the next claim begins one. The cursor or the sweep belongs to one strategy: another one begins
        anew.
        """
        if strategy is not self._strategy:
            order = strategy.keyset_order
            self._strategy, self._behind = strategy, None
            self._cursor = Sweep(order) if order is not None and order.in_sweeps else Cursor(order)
        refusals = self._report.transients.total()
        if refusals > self._refusals:
            self._refusals = refusals
            self._cursor.go_elsewhere()
        return self._cursor if isinstance(self._cursor, Sweep) and self._cursor.is_over and not self._behind else None

    def next_request(self, size: int, strategy: ClaimStrategy) -> ClaimRequest:
        """The next request, after `sweep_to_begin`."""
        self.since = time.monotonic()
        behind, self._behind = self._behind, None
        if behind is not None:
            return behind._replace(size=size, limit=max(size, behind.limit))
        after = self._cursor.begin()
        self._began, self._from_head, self._candidates = self.since, after is None, 0
        limit = size * Overfetch.LARGEST if strategy.is_lazy else self._overfetch.limit(size)
        return ClaimRequest(size, limit, after)

    def learn(self, request: ClaimRequest, result: ClaimResult) -> ClaimResult:
        """Learn from the result of the last request, and count it in the report. Returns it with the number of
        candidates that the search has met."""
        self._overfetch.learn(result, request.size, request.limit)
        report = self._report
        report.claims += 1
        report.empty_claims += not result.jobs
        report.candidates += result.candidates
        report.collisions += result.collisions
        report.claimed += len(result.jobs)
        self._candidates += result.candidates
        # A claim that read as many candidates as it might, and claimed none. A lazy claim without a place has met all.
        is_lazy = self._strategy is not None and self._strategy.is_lazy and result.end is None
        if not (result.jobs or is_lazy) and result.candidates >= request.limit:
            widest = WIDEST if result.end is not None else math.inf
            wider = int(min(request.limit * WIDER, max(widest, request.size)))
            self._behind = ClaimRequest(request.size, wider, result.end or request.after)
        else:
            self._cursor.learn(result, request, time.monotonic() - self._began if self._from_head else None)
        return result if result.candidates >= self._candidates else result._replace(candidates=self._candidates)

    def is_over(self, result: ClaimResult) -> bool:
        """Whether this result is final. If not, claim again: more jobs may be there, or some before the cursor."""
        self._in_vain += not result.jobs
        if self._behind is not None:
            return False
        nothing_tried = bool(result.candidates) and not result.examined  # another try would find the same: see LATER
        if result.jobs or nothing_tried or (self._from_head and (not result.candidates or self._in_vain >= TRIES)):
            self._in_vain = 0
            return True
        if self._in_vain >= TRIES:
            self._cursor.restart_from_head()
        return False

    def restart_from_head(self) -> None:
        """Begin the next claim at the head: jobs may be before the cursor."""
        self._behind = None
        self._cursor.restart_from_head()


HEAD_PAUSE_FACTOR: Final = 10
"""Claims from the head take about 1 / HEAD_PAUSE_FACTOR of the time at most."""
LONGEST_HEAD_PAUSE_SECONDS: Final = 2.0
"""Seconds after which a claim begins at the head also if that costs more; or so many as the last such claim took."""


class Cursor:
    """A place in the order: a claim begins after the last job of the claim before.

    Entries of deleted rows stay in an index for a while; for hours, if another session holds a snapshot open. A claim
    from the head reads all of them. A claim from the cursor reads only those since the last claim.

    Jobs can appear before the cursor: enqueued with a smaller key or a higher priority, committed late, retried,
    released, or due only now. So a claim begins at the head now and then, and when too few jobs are after the cursor.
    """

    def __init__(self, keyset_order: KeysetOrder | None) -> None:
        self._keyset_order, self._head_at = keyset_order, 0.0
        self._place: After = None

    def begin(self) -> After:
        """The place after which the next claim begins. None: at the head."""
        return None if time.monotonic() >= self._head_at else self._place

    def learn(self, claimed: ClaimResult, request: ClaimRequest, from_head: float | None) -> None:
        """Learn from a claim. `from_head`: the seconds of its search, if that began at the head."""
        if from_head is not None:
            longest = max(LONGEST_HEAD_PAUSE_SECONDS, from_head)
            self._head_at = time.monotonic() + min(HEAD_PAUSE_FACTOR * from_head, longest)
        if len(claimed.jobs) == request.size and self._keyset_order is not None:
            self._place = place_of(self._keyset_order, claimed.jobs[-1])
        elif not claimed.jobs or claimed.candidates < request.limit:
            self._place = None
        else:  # others had locked what it read: the next claim reads more, from the same place
            self._place = request.after

    def restart_from_head(self) -> None:
        self._place = None

    def go_elsewhere(self) -> None:
        """Do nothing: the order is the user's."""


class Overfetch:
    """How many candidates to read for each job that is wanted.

    Consumers that read the same candidates try to lock the same rows. With ten consumers and no over-fetch, nine of ten
    claims get nothing. With candidates for a few batches each finds unlocked ones. The factor doubles when a claim gets
    too few jobs, is four times as large when it gets none, and falls to a little above what full claims needed.
    """

    LARGEST = 32
    """The most candidates that a claim reads for each job that it wants."""
    SPARE = 1.25
    """How much more than it needed lately a claim reads: other consumers go on meanwhile."""
    MEMORY = 0.8
    """The weight of earlier claims against the last one."""

    def __init__(self) -> None:
        self.factor = 1.0

    def limit(self, size: int) -> int:
        return max(size, round(size * self.factor))

    def learn(self, claimed: ClaimResult, size: int, limit: int) -> None:
        """Adapt to a claim of `size` jobs out of `limit` candidates. A claim of suspects is ignored."""
        if claimed.suspects:
            return
        if len(claimed.jobs) == size:
            need = self.SPARE * claimed.examined / size if claimed.collisions else 1.0
            self.factor = max(1.0, self.MEMORY * self.factor + (1 - self.MEMORY) * need)
        elif claimed.candidates >= limit:  # there was more to read
            self.factor = min(self.factor * (2 if claimed.jobs else 4), self.LARGEST)


FEW_BATCHES: Final = 8
"""A sweep over room for fewer batches begins at the head: from a random place its batches would become small."""


class Sweep:
    """Claims over the whole order, from a random place to the end, then from the head to that place.

    So consumers seldom read the same rows. Within a sweep a claim begins after the last job of the claim before. It
    ends at the last job that was there when it began. So each job that is due when a sweep begins is reached in it,
    however many jobs are added meanwhile; a job that becomes due later is reached in the next sweep, or sooner.
    A sweep ends sooner if the server refuses a claim, which happens where another consumer claims, too.

    A claim that finds too few candidates, or no job, has seen the end of the order, so the next one begins at the head.
    If that finds too few, there are no more, and claims begin at the head until one is full. So each claim goes on,
    also if others have locked more rows than it may read.
    """

    def __init__(self, keyset_order: KeysetOrder) -> None:
        self._keyset_order = keyset_order
        self._names = [column.name for column in keyset_order.columns]
        self._place: After = None
        self._ends: list[tuple[int, ...]] = []
        """The values of the columns where this part of the sweep ends, then the one from the head, which ends at the
        random place. Empty: the claims are in no sweep."""
        self.is_over = True
        """Whether the next claim begins a sweep."""

    def begin(self) -> After:
        return self._place

    def start(self, ends: Sequence[Sequence[Any]], size: int) -> None:
        """Begin a sweep of claims of `size` jobs. `ends`: the rows of `statements.find.ends`."""
        self.is_over, self._place, self._ends = False, None, []
        if len(ends) == 2:
            (*first, _), (*last, is_due) = sorted(map(tuple, ends))
            self._ends = [tuple(last)]
            spans = [sorted(both) for both in zip(first, last, strict=True)]
            if is_due and math.prod(high - low + 1 for low, high in spans) >= FEW_BATCHES * size:
                start = tuple(random.randint(low, high) for low, high in spans)  # noqa: S311
                self._ends.append(start)
                self._go_on_after(start)

    def restart_from_head(self) -> None:
        """Do nothing: a sweep reaches jobs that are before the cursor anyway."""

    def go_elsewhere(self) -> None:
        """End the sweep, and begin the next one: a transaction was refused, so another consumer may be here."""
        self.is_over, self._place, self._ends = True, None, []

    def learn(self, claimed: ClaimResult, request: ClaimRequest, _from_head: float | None) -> None:
        if claimed.jobs and claimed.suspects:
            return  # a claim of suspects leaves other jobs
        if claimed.jobs and (len(claimed.jobs) == request.size or claimed.candidates >= request.limit):
            self._go_on_after(tuple(claimed.jobs[-1][name] for name in self._names))
        else:  # no job is left after that place; after the head there is none at all
            self._place, self._ends = None, self._ends[1:] if request.after is not None else []

    def _go_on_after(self, values: tuple[int, ...]) -> None:
        if self._ends and values < self._ends[0]:
            self._place = self._keyset_order.place(dict(zip(self._names, values, strict=True)))
        else:
            self._place, self._ends = None, self._ends[1:]
            self.is_over = not self._ends

"""Regions: where the claims of one consumer begin if any order will do."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult
from claimjobs.job import Job
from claimjobs.statements.find import KeysetOrder

MOST: Final = 64
"""The most regions of a sweep. Two of 8 consumers are in one region about half of the time, and then only these two."""
BATCHES: Final = 4
"""A region has room for so many batches on average. Few jobs are not divided: the batches would become small."""

Values = tuple[int, ...]
"""The values of the columns of the order, of one row."""


class Region(NamedTuple):
    """A part of the order."""

    begin: Values | None
    """The place after which it begins. None: at the head."""
    end: Values
    """Its last place."""
    share: int = 0
    """The number of the share that it is in, from 0."""


class Regions:
    """A sweep over the whole order, in regions: it visits each of them once, and begins each at its own beginning.

    Each consumer divides the order anew for each sweep, at random places, and visits the regions in random order. So
    consumers seldom read the same rows, no two begin at the same head, and the regions of a dead consumer are visited
    by the others. Within a region a claim begins after the last job of the claim before.

    A claim that begins in an empty region returns jobs of a later one. The regions between are empty, too, and are not
    visited. So a sweep over jobs that others have done is soon over. Otherwise all consumers would claim the first job
    that is left, each from another empty region.

    A sweep ends at the last job that was there when it began. So each job that is due when a sweep begins is reached in
    this sweep, however many jobs are added meanwhile. A job that becomes due later is reached in the next sweep, or
    sooner. If a claim finds too few jobs, there are none after its place. When no region is left, it is followed by a
    claim from the head, which finds every job that is due.
    """

    def __init__(self, keyset_order: KeysetOrder) -> None:
        self._keyset_order = keyset_order
        self._names = [column.name for column in keyset_order.columns]
        self._rest: list[Region] = []
        """The regions that this sweep has yet to visit, the next one last."""
        self._place: After = None
        self._values: Values | None = None
        """The values of that place."""
        self._end: Values | None = None
        """The end of the region in which the claims are now. None: they are in no region."""
        self._shares = 1
        self._is_seen = False
        """Whether `note_first` was called for this place."""
        self.begins_sweep = True
        """Whether the next claim begins a sweep. After a claim has found less than it wanted in the whole table, the
        next one begins at the head: there is no backlog to divide."""

    def begin(self) -> After:
        """The place after which the next claim begins. None: at the head."""
        return self._place

    def divide(self, ends: Sequence[Sequence[Any]], size: int, share: tuple[int, int] = (0, 1)) -> None:
        """Begin a sweep of claims of `size` jobs. `ends`: the rows of `statements.find.ends`.

        `share`: as (2, 3), begin with the regions in the last third of the order.
        """
        self.begins_sweep = False
        if len(ends) == 2:
            (*first, _), (*last, is_due) = sorted(map(tuple, ends))
            number, self._shares = share
            regions = divided(tuple(first), tuple(last), size if is_due else math.inf, self._shares)
            self._rest = shuffled(regions, number)
            self._enter_next()

    @property
    def is_unseen(self) -> bool:
        """Whether `note_first` is to be called before the next claim: on several primaries, before each in a region."""
        return self._shares > 1 and self._end is not None and not self._is_seen

    def note_first(self, first: Values | None) -> None:
        """Note the place of the first job after that of the next claim; None: there is none. If it is in another
        region, go to the next one: a consumer on another primary may be about to claim it.
        """
        self._is_seen = True
        self._forget_empty(self._values or (), first)
        if first is None or (self._end is not None and first > self._end):
            self._enter_next()

    def postpone(self) -> None:
        """Go to the next region, and visit the rest of this one last."""
        if self._rest and self._end is not None:
            self._rest.insert(0, Region(self._values, self._end))
            self._enter_next()

    def restart_from_head(self) -> None:
        """Nothing: a sweep reaches jobs that are before the cursor anyway."""

    def learn(self, claimed: ClaimResult, request: ClaimRequest, _from_head: float | None) -> None:
        """Learn from a claim, as `Cursor.learn`."""
        place = tuple((request.after or {}).values())
        if claimed.jobs and claimed.suspects:
            return  # a claim of suspects leaves other jobs
        if len(claimed.jobs) == request.size:
            self._forget_empty(place, self._values_of(claimed.jobs[0]))
            self._go_on_after(self._values_of(claimed.jobs[-1]))
        elif claimed.jobs and claimed.found >= request.limit:
            return  # others had locked what it read: the next claim reads more, from the same place
        elif request.after is None and claimed.found < request.limit:  # this was all that there is
            self._rest.clear()
            self._end = None
        else:
            if claimed.found < request.limit:
                self._forget_empty(place, None)
            self._enter_next(or_head=request.after is not None)

    def _values_of(self, job: Job) -> Values:
        return tuple(job[name] for name in self._names)

    def _forget_empty(self, place: Values, first: Values | None) -> None:
        """Visit no region between the place of a claim and its first job. None: none after that place."""
        self._rest = [
            region
            for region in self._rest
            if (region.begin or ()) < place or (first is not None and region.end >= first)
        ]

    def _go_on_after(self, place: Values) -> None:
        if self._end is not None and place < self._end:
            self._go_to(place)
        else:
            self._enter_next()

    def _enter_next(self, *, or_head: bool = False) -> None:
        """Go to the beginning of the next region. After the last one the next claim begins a sweep.

        `or_head`: it begins at the head instead.
        """
        if self._rest:
            begin, self._end, _ = self._rest.pop()
            self._go_to(begin)
        else:
            self._go_to(None)
            self._end, self.begins_sweep = None, not or_head

    def _go_to(self, values: Values | None) -> None:
        self._is_seen = False
        self._values = values
        self._place = None if values is None else self._parameters(values)

    def _parameters(self, place: Sequence[int]) -> After:
        return self._keyset_order.place(dict(zip(self._names, place, strict=True)))


def divided(first: Values, last: Values, size: float, shares: int = 1) -> list[Region]:
    """Regions from the head to `last`, with borders at random places between the first and the last job, and between
    shares of one size. Keys may be missing, so a region can have fewer jobs than there is room for.
    """
    spans = [sorted(both) for both in zip(first, last, strict=True)]
    places = math.prod(high - low + 1 for low, high in spans)
    most = min(MOST, places // (BATCHES * size))
    drawn = {tuple(random.randint(low, high) for low, high in spans) for _ in range(int(most) - 1)}  # noqa: S311
    limits = [_place(places * number // shares - 1, spans) for number in range(1, shares)]
    borders = sorted(place for place in drawn.union(limits) if first <= place < last)
    ends = [*borders, last]
    return [Region(begin, end, bisect_left(limits, end)) for begin, end in zip([None, *borders], ends, strict=True)]


def _place(number: int, spans: Sequence[Sequence[int]]) -> Values:
    """The place of this number, of all whose values are in these spans."""
    values: list[int] = []
    for low, high in reversed(spans):
        number, above = divmod(number, high - low + 1)
        values.insert(0, low + above)
    return tuple(values)


def shuffled(regions: Sequence[Region], share: int = 0) -> list[Region]:
    """Regions in random order, those of a share last: the last one is visited first."""
    own = [region for region in regions if region.share == share]
    others = [region for region in regions if region.share != share]
    random.shuffle(own)
    random.shuffle(others)
    return [*others, *own]

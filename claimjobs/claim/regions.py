"""Regions: where the claims of one consumer begin if any order will do."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult
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


class Regions:
    """A sweep over the whole order, in regions: it visits each of them once, and begins each at its own beginning.

    Each consumer divides the order anew for each sweep, at random places, and visits the regions in random order. So
    consumers seldom read the same rows, no two begin at the same head, and the regions of a dead consumer are visited
    by the others. Within a region a claim begins after the last job of the claim before.

    A sweep ends at the last job that was there when it began. So each job that is due when a sweep begins is reached in
    this sweep, however many jobs are added meanwhile. A job that becomes due later is reached in the next sweep, or
    sooner. A claim that finds too few jobs is followed by a claim from the head, which finds every job that is due.
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
            self._rest = shuffled(divided(tuple(first), tuple(last), size if is_due else math.inf), share)
            self._enter_next()

    def postpone(self) -> None:
        """Go to the next region, and visit the rest of this one last."""
        if self._rest and self._end is not None:
            self._rest.insert(0, Region(self._values, self._end))
            self._enter_next()

    def restart_from_head(self) -> None:
        """Nothing: a sweep reaches jobs that are before the cursor anyway."""

    def learn(self, claimed: ClaimResult, request: ClaimRequest, _took: float) -> None:
        """Learn from a claim, as `Cursor.learn`."""
        if len(claimed.jobs) == request.size:
            self._go_on_after([claimed.jobs[-1][name] for name in self._names])
        elif claimed.jobs and claimed.found >= request.limit:
            return  # others had locked what it read: the next claim reads more, from the same place
        elif request.after is not None:  # the next claim begins at the head, and the one after it in a region
            self._place = self._end = None
        elif claimed.found >= request.limit:  # others have locked the head
            self._enter_next()
        else:  # this was all that there is
            self._rest.clear()
            self._end = None

    def _go_on_after(self, place: Sequence[int]) -> None:
        if self._end is not None and tuple(place) < self._end:
            self._go_to(tuple(place))
        else:
            self._enter_next()

    def _enter_next(self) -> None:
        """Go to the beginning of the next region. After the last one the next claim begins a sweep."""
        if not self._rest:
            self._place, self._end, self.begins_sweep = None, None, True
            return
        begin, self._end = self._rest.pop()
        self._go_to(begin)

    def _go_to(self, values: Values | None) -> None:
        self._values = values
        self._place = None if values is None else self._parameters(values)

    def _parameters(self, place: Sequence[int]) -> After:
        return self._keyset_order.place(dict(zip(self._names, place, strict=True)))


def divided(first: Values, last: Values, size: float) -> list[Region]:
    """Regions from the head to `last`, with borders at random places between the first and the last
    job. Keys may be missing, so a region can have fewer jobs than there is room for.
    """
    spans = [sorted(both) for both in zip(first, last, strict=True)]
    most = min(MOST, math.prod(high - low + 1 for low, high in spans) // (BATCHES * size))
    drawn = {tuple(random.randint(low, high) for low, high in spans) for _ in range(int(most) - 1)}  # noqa: S311
    borders = sorted(place for place in drawn if first <= place < last)
    return list(map(Region, [None, *borders], [*borders, last]))


def shuffled(regions: Sequence[Region], share: tuple[int, int] = (0, 1)) -> list[Region]:
    """Regions in random order, those of a share of the order last: the last one is visited first."""
    number, shares = share
    begin, end = (len(regions) * border // shares for border in (number, number + 1))
    own, others = list(regions[begin:end]), [*regions[:begin], *regions[end:]]
    random.shuffle(own)
    random.shuffle(others)
    return [*others, *own]

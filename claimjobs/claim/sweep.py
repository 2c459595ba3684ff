"""Sweep: where the claims of one consumer begin if any order will do."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

from claimjobs.claim.strategy import After, ClaimRequest, ClaimResult
from claimjobs.job import Job
from claimjobs.statements.find import KeysetOrder

FEW: Final = 8
"""A sweep over room for fewer batches begins at the head: from a random place its batches would become small."""

Values = tuple[int, ...]
"""The values of the columns of the order, of one row."""


class Sweep:
    """Claims over the whole order, from a random place to the end, then from the head to that place.

    So consumers seldom read the same rows. Within a sweep a claim begins after the last job of the claim before. It
    ends at the last job that was there when it began. So each job that is due when a sweep begins is reached in it,
    however many jobs are added meanwhile; a job that becomes due later is reached in the next sweep, or sooner.

    A claim that finds too few candidates, or no job, has seen the end of the order, so the next one begins at the head.
    If that finds too few, there are no more, and claims begin at the head until one is full. So each claim goes on,
    also if others have locked more rows than it may read.
    """

    def __init__(self, keyset_order: KeysetOrder) -> None:
        self._keyset_order = keyset_order
        self._names = [column.name for column in keyset_order.columns]
        self._place: After = None
        self._end: Values | None = None
        """Where this part of the sweep ends. None: the claims are in no sweep."""
        self._start: Values | None = None
        """The random place, before the part from the head has begun."""
        self.is_over = True
        """Whether the next claim begins a sweep."""

    def begin(self) -> After:
        """The place after which the next claim begins. None: at the head."""
        return self._place

    def start(self, ends: Sequence[Sequence[Any]], size: int) -> None:
        """Begin a sweep of claims of `size` jobs. `ends`: the rows of `statements.find.ends`."""
        self.is_over, self._place, self._end, self._start = False, None, None, None
        if len(ends) == 2:
            (*first, _), (*last, is_due) = sorted(map(tuple, ends))
            self._end = tuple(last)
            spans = [sorted(both) for both in zip(first, last, strict=True)]
            if is_due and math.prod(high - low + 1 for low, high in spans) >= FEW * size:
                self._start = tuple(random.randint(low, high) for low, high in spans)  # noqa: S311
                self._go_on_after(self._start)

    def restart_from_head(self) -> None:
        """Nothing: a sweep reaches jobs that are before the cursor anyway."""

    def learn(self, claimed: ClaimResult, request: ClaimRequest, _from_head: float | None) -> None:
        """Learn from a claim, as `Cursor.learn`."""
        if claimed.jobs and claimed.suspects:
            return  # a claim of suspects leaves other jobs
        if claimed.jobs and (len(claimed.jobs) == request.size or claimed.found >= request.limit):
            self._go_on_after(self._values_of(claimed.jobs[-1]))
        elif self._start is None or request.after is None:  # no job is left after that place
            self._place = self._end = self._start = None
        else:
            self._wrap_around()

    def _go_on_after(self, values: Values) -> None:
        if self._end is not None and values < self._end:
            self._place = self._keyset_order.place(dict(zip(self._names, values, strict=True)))
        elif self._start is not None:
            self._wrap_around()
        else:
            self._place, self.is_over = None, True

    def _wrap_around(self) -> None:
        self._place, self._end, self._start = None, self._start, None

    def _values_of(self, job: Job) -> Values:
        return tuple(job[name] for name in self._names)

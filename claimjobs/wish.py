"""Wish: what a loop without work waits for, and when that is looked for although nobody called."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True)
class Wish:
    """What a loop without work waits for."""

    work: sa.ColumnElement[Any] | None
    """NULL where there is none; None: only a claim can tell."""
    first: float
    every: float
    """Seconds until the first look for it, and between two at last: not all work comes with a call."""


class Timetable:
    """When to look for work that came without a call: ever later, at last every so many seconds."""

    def __init__(self, wish: Wish) -> None:
        self._every = wish.every
        self._pause = min(wish.first, wish.every)
        self._due = time.monotonic() + self._pause

    @property
    def left(self) -> float:
        """Seconds until the next one."""
        return max(0.0, self._due - time.monotonic())

    def is_due(self, almost: float, *, rarer: float) -> bool:
        """Whether it is time, or almost; then the next one comes after twice the time, and that much rarer at last."""
        if self.left > almost:
            return False
        self._pause = min(2 * self._pause, rarer * self._every)
        self._due = time.monotonic() + self._pause * random.uniform(0.9, 1.0)  # noqa: S311
        return True

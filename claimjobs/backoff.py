"""Backoff: the pauses between the tries of something that may succeed later."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

DOUBLINGS: Final = 64
"""More are not computed: 2 ** 1024 is more than a float can hold, and long before that the longest pause is reached."""


@dataclass
class Backoff:
    """Pauses in seconds that double from `first` to `longest`, each drawn at random between a share of itself and all.

    The random part keeps those apart who failed together. `least` is that share: 0 spreads the most, 1 is not random.
    """

    first: float
    longest: float
    least: float = 0.5
    _pauses: int = field(default=0, init=False)

    def pause(self) -> float:
        """The next pause."""
        self._pauses += 1
        return self.after(self._pauses - 1)

    def after(self, pauses: int) -> float:
        """The pause that follows so many others."""
        full = min(self.first * 2.0 ** min(pauses, DOUBLINGS), self.longest)
        return full * random.uniform(self.least, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """It succeeded: the next pause is the first again."""
        self._pauses = 0

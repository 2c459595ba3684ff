"""Backoff: the pauses between the attempts of something that may succeed later."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

DOUBLINGS: Final = 64
"""No more are computed: a float cannot hold 2 ** 1024, and the longest pause is reached long before."""


@dataclass
class Backoff:
    """Pauses in seconds that double from `first` to `longest`. Each is a random part of that, at least `least`.

    So those that failed together do not try again together. A `least` of 0 spreads the most, 1 is not random.
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
        """The pause after so many others."""
        full = min(self.first * 2.0 ** min(pauses, DOUBLINGS), self.longest)
        return full * random.uniform(self.least, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._pauses = 0

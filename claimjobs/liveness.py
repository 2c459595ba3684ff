"""Liveness: how long an owner may be silent, and how long it tries to reach its database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOOK: Final = 0.4
"""Seconds between two looks of the one process that has the janitor's lock."""


@dataclass(frozen=True)
class Liveness:
    """All in seconds. Raises ValueError for figures that make no sense."""

    lease: float = 10.0
    """Without a sign of life for so long an owner is dead, whatever its session lock says."""
    max_batch_time: float = 3600.0
    """An owner whose batch makes no progress for so long gives no more signs of life: its handler hangs."""
    patience: float = 60.0
    """How long a claim or a settle goes on trying when the database cannot be reached."""
    session_lock: bool | None = None
    """False: the lease alone tells who lives, as behind a pooler. None: found out."""

    def __post_init__(self) -> None:
        if self.lease < 2 or self.max_batch_time <= 0 or self.patience < 0:
            raise ValueError(f"{self}: lease from 2, max_batch_time above 0, patience from 0 seconds")

    @property
    def beat(self) -> float:
        """Between two signs of life: a lease outlives four lost ones."""
        return self.lease / 5

    @property
    def lock_timeout(self) -> float:
        """How long a statement waits for a row lock before it gives others their turn."""
        return max(1.0, self.lease / 5)  # whole seconds on some servers

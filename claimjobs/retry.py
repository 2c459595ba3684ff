"""When a failed job runs again, and when it does not."""

from __future__ import annotations

from dataclasses import dataclass

from claimjobs.backoff import Backoff


@dataclass(frozen=True)
class Retry:
    """Exponential back-off with jitter: `base * 2 ** n` seconds after n + 1 failures, at most `cap`.

    The wait is drawn between half of that and all of it, so that jobs that failed together do not come back
    together. After `attempts` failures a job is dead. Raises ValueError for figures that make no sense.
    """

    attempts: int = 5
    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.cap < 0:
            raise ValueError(f"{self}: attempts from 1, base and cap (seconds) from 0")

    def is_last(self, attempts_before: int) -> bool:
        """Whether a job that had failed so often before this failure is dead now."""
        return attempts_before + 1 >= self.attempts

    def wait(self, attempts_before: int) -> float:
        """Seconds until a job that had failed so often before this failure may run again."""
        return Backoff(self.base, self.cap).after(attempts_before)


LONGEST = 10 * 366 * 86_400.0
"""Seconds, ten years: a wait beyond that is a mistake, and no database need be asked whether it can add it."""


def bounded(seconds: float) -> float:
    """A wait that a database can add to its clock: what is longer than ten years is ten years, below 0 is 0.

    Raises ValueError for what is no number of seconds.
    """
    if seconds != seconds:  # noqa: PLR0124 - only NaN is not itself
        raise ValueError("retry_in is not a number: give seconds")
    return min(max(float(seconds), 0.0), LONGEST)

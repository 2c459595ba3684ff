"""A run: what is asked of a supervisor, its state at one moment, and its result: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from claimjobs.report import Report
from claimjobs.table.columns import ENDED


@dataclass(frozen=True)
class Run:
    """What is asked: see the options of `claimjobs start-processing`. Times are in seconds."""

    consumers: int = 10
    generators: int = 0
    jobs: int | None = None
    rate: float | None = None
    duration: float | None = None
    """It begins when all consumers are ready. With `drain` only the generators stop."""
    grace: float = 60.0
    stop_timeout: float | None = None
    drain: bool = False
    drain_retries: bool = False
    idle: float | None = None


@dataclass(frozen=True)
class ProcessFigures:
    """One process."""

    number: int
    pid: int | None
    """None between a death and its replacement."""
    batch: int
    """Jobs of its last batch."""
    jobs: int
    """Jobs done, by all processes of the slot."""
    rate: float
    restarts: int


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    phase: str
    """`starting`, `running`, `paused`, `draining`, `stopping`, `cancelling` or `ended`."""
    elapsed: float
    consumers: tuple[ProcessFigures, ...]
    generators: tuple[ProcessFigures, ...]
    total: Report
    waiting: int | None
    """Jobs unclaimed or claimed at the last count; None before the first count."""
    rate: float
    ready: int = 0
    to_come: int | None = None
    """Jobs still to be done, with those still to be generated; None where the run has no end."""
    pause_reason: str | None = None
    """Why the queue is paused, if a reason was given."""


@dataclass(frozen=True)
class Summary:
    """The result of a run: generated + before = ended + left + unaccounted."""

    before: int
    """Jobs unclaimed or claimed when the run began."""
    generated: int
    left: int | None
    """Jobs unclaimed or claimed when the run ended; None where they could not be counted."""
    seconds: float
    """From when all consumers were ready until the end."""
    total: Report
    replaced: int
    handed_back: int
    """Jobs reclaimed from processes that died, by this run or by its consumers."""
    retries: int = 0
    """Of the jobs left: those that failed and wait for another attempt."""
    next_retry: float | None = None
    """Seconds until the first of them is due."""
    gave_up: str | None = None
    """The error because of which the run, or a consumer, ended before its work was done."""
    table_missing: bool = False
    """Whether that is because a table was dropped."""

    @property
    def unaccounted(self) -> int | None:
        """The difference of the two sides. Not 0 where another program worked on the table at that time, or where a
        process was killed between a commit and its report.
        """
        if self.left is None:
            return None
        return self.before + self.generated - sum(ended(self.total).values()) - self.left

    @property
    def rate(self) -> float:
        return self.total.done / self.seconds if self.seconds else 0.0


def ended(total: Report) -> dict[str, int]:
    """How many jobs have ended in each state."""
    return {state: getattr(total, state) for state in ENDED}

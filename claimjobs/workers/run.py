"""Run: how many processes a supervisor starts, and until when. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """How many processes, and until when."""

    consumers: int = 10
    generators: int = 0
    jobs: int | None = None
    """Jobs to generate, all generators together; None: no end."""
    rate: float | None = None
    """Jobs per second to generate, all generators together."""
    duration: float | None = None
    """Seconds from when all consumers are ready until generators and consumers stop (with `drain`: only generators)."""
    grace: float = 60.0
    """Seconds that a batch may go on after `duration` until it is released."""
    stop_timeout: float | None = None
    """Seconds that a batch may go on after `stop` until it is released; None: no limit."""
    drain: bool = False
    """End when the generators have ended and no job is due."""
    drain_retries: bool = False
    """With `drain`: also wait for failed jobs until they are done or dead."""
    idle: float | None = None
    """End when no consumer held a job for so many seconds."""

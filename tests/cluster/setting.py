"""Setting: servers, the consumers and the faults of a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.arena import Arena
from tests.chaos.fleet import Formation

Strike = Callable[[Arena], None]


@dataclass(frozen=True)
class Setting:
    """What consumers work on, and what happens to it meanwhile."""

    name: str
    place: Callable[[Path], AbstractContextManager[Arena]]
    """Starts the servers, and makes the arena. The folder is for logs. It may raise servers.Unavailable."""
    formation: Formation
    strikes: tuple[Strike, ...] = ()
    """One after the other, each in the middle of work."""
    most_refusals: float = 1.0
    """The part of claims whose statement or commit the database may refuse."""
    longest: float = 30.0
    """Seconds within which work must go on after each fault, on a busy machine."""
    sweeps: int = 0
    """The jobs of a killed consumer may wait for so many sweeps over the backlog in addition."""
    refused: str | None = None
    """It cannot work: words of the error with which `start-processing` says so at its start. None: it works."""

    def limit(self, backlog: int, per_second: float) -> float:
        """Seconds within which work must go on after each fault, at the rate of the row."""
        return self.longest + self.sweeps * backlog / max(1.0, per_second)

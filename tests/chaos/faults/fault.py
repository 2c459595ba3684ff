"""Fault: what is done to an arena, and what is promised of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from tests.chaos.arena import Arena
from tests.chaos.fleet import Formation
from tests.chaos.kinds import Need

Ticket = Callable[[Arena], AbstractContextManager[Arena]]


class NotHere(Exception):
    """This fault cannot be tried on this machine: the reason is the message."""


@dataclass(frozen=True)
class Fault:
    """What is done to an arena, and what is promised of it."""

    name: str
    strike: Callable[[Arena], None]
    formation: Formation
    times: int
    limit: float
    """Seconds within which work goes on, every time."""
    median: float | None = None
    """Seconds within which it goes on at least every second time."""
    poison: frozenset[str] = field(default_factory=frozenset)
    """The kinds of jobs that may end as dead."""
    hands: int | None = None
    """How often an innocent job may be executed, at most."""
    pause: tuple[float, float] = (0.3, 0.9)
    """Seconds of undisturbed work before each strike."""
    needs: Need | None = None
    """Without what in the kind of queue it is left out."""
    place: Ticket = nullcontext
    """What must be built around the arena, or in place of it. May raise NotHere."""

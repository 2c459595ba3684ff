"""Line: threads that want the same connection get it in the order in which they asked."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

AGAIN: Final = 0.2
"""Seconds after which somebody who waits for a turn says so again: the first time may have been a moment too early."""


class Ticket:
    """A place in the line, for a `with` block in which it is this one's turn."""

    __slots__ = ("_impatient", "_patience", "_turns", "comes")

    def __init__(self, turns: FairLock, patience: float, impatient: Callable[[], None]) -> None:
        self.comes: threading.Event | None = None
        """Set when it is this one's turn; None where nobody stood before it, as nearly always: an event costs more than
        all the rest."""
        self._turns = turns
        self._patience = patience
        self._impatient = impatient

    def __enter__(self) -> None:
        self._turns.enter(self)
        try:
            if self.comes is not None:
                self._turns.wait(self.comes, self._patience, self._impatient)
        except BaseException:
            self._turns.leave(self)
            raise
        self._turns.since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._turns.leave(self)


class FairLock:
    """A lock that threads get in the order in which they asked.

    A `threading.Lock` often goes to whoever has just released it: a settle that meets a stranger's row lock again and
    again would keep its own owner from giving a sign of life.
    """

    def __init__(self) -> None:
        self._line: deque[Ticket] = deque()
        self._guard = threading.Lock()
        self._give_up: Callable[[], None] | None = None
        self.since = 0.0
        """When whoever has the turn got it, or last said that he is alive."""

    def take(self, patience: float, impatient: Callable[[], None]) -> Ticket:
        """Wait for one's turn, calling `impatient` every `patience` seconds, and have it for a `with` block."""
        return Ticket(self, patience, impatient)

    def enter(self, mine: Ticket) -> None:
        """Stand in line."""
        with self._guard:
            if self._line:
                mine.comes = threading.Event()
            self._line.append(mine)

    def leave(self, mine: Ticket) -> None:
        """Give up one's turn, or one's place."""
        with self._guard:
            self._line.remove(mine)
            if self._line and (comes := self._line[0].comes) is not None:
                comes.set()

    def wait(self, mine: threading.Event, patience: float, impatient: Callable[[], None]) -> None:
        """Wait until it is set, calling `impatient` now and then. Whoever can give up the turn is asked to."""
        while self._give_up and not mine.is_set():
            self.disturb()
            if not mine.wait(AGAIN):
                impatient()
        while not mine.wait(patience):
            impatient()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a turn."""
        return len(self._line) > 1

    @contextlib.contextmanager
    def given_up_by(self, end: Callable[[], None]) -> Iterator[None]:
        """For a `with` block within a turn: whoever waits for the next one calls `end`."""
        self._give_up = end
        try:
            yield
        finally:
            self._give_up = None

    def disturb(self) -> None:
        """Let whoever has the turn give it up, if it can be."""
        if give_up := self._give_up:
            give_up()

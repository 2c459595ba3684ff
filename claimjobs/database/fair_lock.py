"""A lock that threads get in the order in which they asked for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

AGAIN: Final = 0.2
"""Seconds between two calls of `end_wait` by a waiting thread. The first call may come before the wait has begun."""


class Ticket:
    """One request for the lock. A `with` block waits for the lock and holds it."""

    __slots__ = ("_impatient", "_lock", "_patience", "granted")

    def __init__(self, lock: FairLock, patience: float, impatient: Callable[[], None]) -> None:
        self.granted: threading.Event | None = None
        """Set when this ticket has the lock. None: the lock was free, which is the usual case, and an event costs more
        than everything else here."""
        self._lock = lock
        self._patience = patience
        self._impatient = impatient

    def __enter__(self) -> None:
        self._lock.enter(self)
        try:
            if self.granted is not None:
                self._lock.wait(self.granted, self._patience, self._impatient)
        except BaseException:
            self._lock.leave(self)
            raise
        self._lock.since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._lock.leave(self)


class FairLock:
    """A lock that threads get in the order in which they asked for it.

    A `threading.Lock` often goes back to the thread that has just released it. A settle that is tried again and again
    would then keep the heartbeat of its own owner waiting.
    """

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._guard = threading.Lock()
        self._end_wait: Callable[[], None] | None = None
        self.since = 0.0
        """When the current holder got the lock, or last showed that it is alive."""

    def ticket(self, patience: float, impatient: Callable[[], None]) -> Ticket:
        """A request for the lock, for a `with` block. `impatient` is called every `patience` seconds of waiting."""
        return Ticket(self, patience, impatient)

    def enter(self, ticket: Ticket) -> None:
        """Add a ticket behind all others."""
        with self._guard:
            if self._tickets:
                ticket.granted = threading.Event()
            self._tickets.append(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket, whether it has the lock or waits for it."""
        with self._guard:
            self._tickets.remove(ticket)
            if self._tickets and (granted := self._tickets[0].granted) is not None:
                granted.set()

    def wait(self, granted: threading.Event, patience: float, impatient: Callable[[], None]) -> None:
        """Wait for `granted`, and call `impatient` now and then. End the wait of a holder in `releasable_by`."""
        while self._end_wait and not granted.is_set():
            self.end_wait()
            if not granted.wait(AGAIN):
                impatient()
        while not granted.wait(patience):
            impatient()

    @property
    def has_waiters(self) -> bool:
        """Whether a thread waits for the lock."""
        return len(self._tickets) > 1

    @contextlib.contextmanager
    def releasable_by(self, end_wait: Callable[[], None]) -> Iterator[None]:
        """For a `with` block of the holder: a thread that waits for the lock calls `end_wait`."""
        self._end_wait = end_wait
        try:
            yield
        finally:
            self._end_wait = None

    def end_wait(self) -> None:
        """End the wait of the holder, if it is in `releasable_by`."""
        if end_wait := self._end_wait:
            end_wait()

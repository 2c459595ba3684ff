"""A lock that threads get in the order in which they asked for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

END_WAIT_EVERY_SECONDS: Final = 0.2
"""Seconds between two calls of `end_wait` by a waiting thread. The first call may come before the wait has begun."""


class FairLock:
    """A lock that threads get in the order in which they asked for it, for a `with` block.

    A `threading.Lock` often goes back to the thread that has just released it. A settle that is tried again and again
    would then keep the heartbeat of its own owner waiting.

    Take it while `shielded`: it is written in Python, so `Cancelled` could come when it is taken, and before the block.
    """

    def __init__(self, patience: float, impatient: Callable[[], None]) -> None:
        """`impatient` is called by a waiting thread, every `patience` seconds."""
        self._patience, self._impatient = patience, impatient
        self._guard = threading.Lock()
        self._queue: deque[threading.Event | None] = deque()
        """The holder, and then who waits. An event is set when its thread has the lock. None: the lock was free, which
        is the usual case, and an event costs more than everything else here."""
        self._end_wait: Callable[[], None] | None = None
        self.since = 0.0
        """When the current holder got the lock, or last showed that it is alive."""

    def __enter__(self) -> None:
        with self._guard:
            event = threading.Event() if self._queue else None
            self._queue.append(event)
        if event is not None:
            try:
                while self._end_wait and not event.is_set():  # the holder is in `releasable_by`
                    self.end_wait()
                    if not event.wait(END_WAIT_EVERY_SECONDS):
                        self._impatient()
                while not event.wait(self._patience):
                    self._impatient()
            except BaseException:
                self._leave(event)
                raise
        self.since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._leave(self._queue[0])

    def _leave(self, event: threading.Event | None) -> None:
        with self._guard:
            self._queue.remove(event)
            if self._queue and (first := self._queue[0]) is not None:
                first.set()

    @property
    def has_waiters(self) -> bool:
        """Whether a thread waits for the lock."""
        return len(self._queue) > 1

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

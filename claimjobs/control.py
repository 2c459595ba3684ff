"""Control: what the loops of a queue are told from any thread or signal handler: stop, drain, look for work again."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class WatchesHangs(Protocol):
    """A Queue, as far as a control knows it."""

    on_hang: Callable[[], None]


class Control:
    """The control of one queue. Whoever waits is woken at once.

    A signal handler can interrupt any code, also these methods. So a `threading.Event` is not used: its lock may be
    held by the interrupted thread, which would then wait for itself.
    """

    def __init__(self, queue: WatchesHangs | None = None) -> None:
        """`queue`: its `on_hang` is called when a batch hangs. It is not kept alive: threads have this object."""
        self._queue = None if queue is None else weakref.ref(queue)
        self._stopped = False
        self._draining = False
        self.waits_for_retries = False
        """Whether a loop that drains goes on while failed jobs wait for their next attempt."""
        self._said = False
        self._waiting: deque[threading.Lock] = deque()
        """A lock for everybody who waits, taken until there is a word."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopped = True
        self.wake()

    def drain(self, *, retries: bool = False) -> None:
        """End once there is nothing to claim; with `retries`, and no failed job waits for its next attempt."""
        self.waits_for_retries = self.waits_for_retries or retries
        self._draining = True
        self.wake()

    def wake(self) -> None:
        """Look again: there may be work."""
        self._said = True
        for lock in tuple(self._waiting):
            with suppress(RuntimeError):  # released by a word before
                lock.release()

    def batch_hangs(self) -> None:
        """A batch makes no progress: call the `on_hang` of the queue, if that is still there."""
        queue = None if self._queue is None else self._queue()
        if queue is not None:
            queue.on_hang()

    @property
    def stopping(self) -> bool:
        """Whether it was said to stop."""
        return self._stopped

    @property
    def draining(self) -> bool:
        """Whether it was said to drain."""
        return self._draining

    def wait(self, seconds: float) -> None:
        """Pause for so many seconds, but not beyond the next word, which is heeded with that."""
        self.hears(seconds)
        self.heed()

    def hears(self, seconds: float) -> bool:
        """Whether there is a word, at once or within so many seconds. It stands until it is heeded."""
        word = threading.Lock()
        word.acquire()
        self._waiting.append(word)
        try:  # what is said from here on releases the lock
            return self._said or word.acquire(timeout=max(0.0, seconds))
        finally:
            self._waiting.remove(word)

    def heed(self) -> None:
        """Wait for the next word from now on. After `stop` there is none: nobody is to wait any more."""
        self._said = False
        if self._stopped:
            self._said = True

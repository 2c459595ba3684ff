"""Control: how any thread or signal handler tells the loops of a queue to stop, to drain, or to check for work."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class WatchesHangs(Protocol):
    """The part of a Queue that a control uses."""

    on_hang: Callable[[], None]


class Ends(Protocol):
    """A loop that can be ended before the other loops of its queue."""

    is_over: bool


class _Here(threading.local):
    """What a control knows of each thread."""

    wake: object = None
    """The last wake that it has cleared: none takes one from another thread, which is about to wait."""
    loop: Ends | None = None
    """The loop to which it belongs, if it belongs to one."""


class Control:
    """The control of one queue. It wakes waiting threads at once.

    A signal handler can interrupt any code, also these methods. So it does not use a `threading.Event`, whose lock may
    be held by the interrupted thread: the thread would wait for itself.
    """

    def __init__(self, queue: WatchesHangs | None = None) -> None:
        """`queue`: its `on_hang` is called when a batch hangs. It is a weak reference: threads hold this object."""
        self._queue = None if queue is None else weakref.ref(queue)
        self.stopped = False
        """Whether `stop` was called."""
        self.stopped_at = math.inf
        """When `stop` was called first, by this machine's clock."""
        self.expired = False
        """Whether `expire` was called."""
        self.paused = False
        """Whether the queue was paused when that was read last."""
        self.draining = False
        """Whether `drain` was called."""
        self.waits_for_retries = False
        """Whether a loop that drains goes on while failed jobs wait for their next attempt."""
        self._last_wake: object = None
        """Another object with each wake."""
        self._here = _Here()
        self._waiting: deque[threading.Lock] = deque()
        """One lock for each waiting thread. `wake` releases it."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called, or the loop is over to which this thread belongs."""
        loop = self._here.loop
        return self.stopped or (loop is not None and loop.is_over)

    def follow(self, loop: Ends) -> None:
        """From now on this thread belongs to this loop alone: if that is over, it stops."""
        self._here.loop = loop

    def stop(self) -> None:
        """End after the present batch."""
        self.stopped = True
        self.stopped_at = min(self.stopped_at, time.monotonic())
        self.wake()

    def expire(self) -> None:
        """Claim nothing any more: the deadline of `stop` is over."""
        self.expired = True
        self.stop()

    def drain(self, *, retries: bool = False) -> None:
        """End when there is nothing to claim; with `retries`, not before failed jobs have had their next attempts."""
        self.waits_for_retries = self.waits_for_retries or retries
        self.draining = True
        self.wake()

    def wake(self) -> None:
        """Wake the waiting threads: there may be work, or something else to do."""
        self._last_wake = object()
        for lock in tuple(self._waiting):
            with suppress(RuntimeError):  # an earlier wake released it
                lock.release()

    def batch_hangs(self) -> None:
        """A batch makes no progress: call the `on_hang` of the queue, if the queue still exists."""
        queue = None if self._queue is None else self._queue()
        if queue is not None:
            queue.on_hang()

    def set_paused(self, paused: bool) -> None:
        """Note whether the queue is paused; when it is resumed, wake the waiting threads."""
        resumed, self.paused = self.paused and not paused, paused
        if resumed:
            self.wake()

    def wait(self, seconds: float) -> None:
        """Wait for at most so many seconds, until the next wake, and clear it."""
        self.woken(seconds)
        self.clear_wake()

    def woken(self, seconds: float) -> bool:
        """Wait for at most so many seconds; whether `wake` was called since the last `clear_wake` of this thread. After
        `stop` no thread waits any more.
        """
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        try:  # from here on `wake` releases the lock
            is_woken = self.stopping or self._here.wake is not self._last_wake
            return is_woken or lock.acquire(timeout=max(0.0, seconds))
        finally:
            self._waiting.remove(lock)

    def clear_wake(self) -> None:
        """Let `woken` wait for the next wake, in this thread."""
        self._here.wake = self._last_wake

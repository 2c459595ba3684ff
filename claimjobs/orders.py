"""Orders: what the loops of a queue are told, from any thread or signal handler: to stop, to drain, to look again."""

from __future__ import annotations

import threading


class Orders:
    """Of one queue. Whoever waits for a word hears each of them at once."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._draining = False
        self._word = threading.Event()

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopped.set()
        self._word.set()

    def drain(self) -> None:
        """End once there is nothing to claim."""
        self._draining = True
        self._word.set()

    def wake(self) -> None:
        """Look again: there may be work."""
        self._word.set()

    @property
    def stopping(self) -> bool:
        """Whether it was said to stop."""
        return self._stopped.is_set()

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
        return self._word.wait(seconds)

    def heed(self) -> None:
        """Wait for the next word from now on. After `stop` there is none: nobody is to wait any more."""
        if not self.stopping:
            self._word.clear()

"""Bell: how a session waits until somebody calls it."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Of one session, which does nothing else while it waits."""

    def wait(self, seconds: float) -> bool:
        """Wait for so long at most; whether it was called, or ended."""
        ...

    def end(self) -> None:
        """Let `wait` return soon, from another thread. It may be lost if `wait` has not begun: then say it again."""
        ...

    def close(self) -> None:
        """It is not waited with any more."""
        ...

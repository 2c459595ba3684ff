"""Ahead: what was claimed before anybody asked for it, until somebody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from claimjobs.phases import Claimed


@dataclass(eq=False)
class Ahead:
    """A claim that waits to be asked for."""

    claimed: Claimed
    since: float = field(default_factory=time.monotonic)


class Claims:
    """Those of one owner. Each is had once, whoever asks: the loop that it was made for, or who clears away."""

    def __init__(self) -> None:
        self._waiting: set[Ahead] = set()
        self._guard = threading.Lock()

    def add(self, claimed: Claimed) -> Ahead:
        """This one waits now."""
        ahead = Ahead(claimed)
        with self._guard:
            self._waiting.add(ahead)
        return ahead

    def take(self, ahead: Ahead) -> Claimed | None:
        """The claim, if nobody has had it."""
        with self._guard:
            if ahead not in self._waiting:
                return None
            self._waiting.remove(ahead)
        return ahead.claimed

    def forgotten(self, seconds: float) -> Iterator[Claimed]:
        """Take those for which nobody has asked for so long."""
        with self._guard:
            old = [ahead for ahead in self._waiting if time.monotonic() - ahead.since >= seconds]
        yield from filter(None, map(self.take, old))

    def clear(self) -> None:
        """Nobody gets any of them any more: they are handed back with all that their owner holds."""
        with self._guard:
            self._waiting.clear()

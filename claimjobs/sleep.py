"""Sleep: what an owner that has nothing to do does between two beats of its heart.

It is the heart's thread that sleeps, on the owner's one connection. Whoever else needs that wakes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.connector import Connector
from claimjobs.errors import ClaimjobsError
from claimjobs.liveness import Liveness
from claimjobs.nap import Nap, Woken
from claimjobs.owner import Owner
from claimjobs.wish import Wish

YAWN: Final = 0.05
"""Seconds in which one that was woken may lie down again without having said that it was up."""
DISTRUST: Final = 60.0
"""Seconds in which nobody sleeps after two sleeps that ended in an error, and in which they must have come."""

log = logging.getLogger("claimjobs.sleep")


class Sleeper:
    """The time between two beats of a heart, in which it sleeps if nobody has anything to do."""

    def __init__(
        self, connector: Connector, backend: Backend, liveness: Liveness, *, owner: Owner, leads: Callable[[], bool]
    ) -> None:
        self.on_called: Callable[[], None] = lambda: None
        """Called when those who wait are to look for work."""
        self._connector = connector
        self._dialect = backend.dialect
        self._liveness = liveness
        self._owner = owner
        self._nap = Nap(backend, liveness, owner=owner, leads=leads)
        self._ended = threading.Event()
        self._nudged = threading.Event()
        self._guard = threading.Lock()
        self._waiting = 0
        self._wish: Wish | None = None
        """None: nobody waits, or those who do have been called."""
        self._busy = False
        self._failed = self._distrusts = -DISTRUST

    # --- for those who have nothing to do --------------------------------------------------------------

    def can(self) -> bool:
        """Whether this owner can be called now: not with a job in hand, nor where its session is not its own."""
        trusted = time.monotonic() - self._distrusts >= DISTRUST
        return self._dialect.wakes and self._owner.locked and trusted and not self._busy

    @contextmanager
    def waiting(self, wish: Wish) -> Iterator[None]:
        """For a `with` block in which a thread waits for `on_called`."""
        with self._guard:
            self._waiting += 1
            self._nap.breathed = time.monotonic()
            self._wish = wish
        self._nudged.set()
        try:
            yield
        finally:
            self._leaves()

    def _leaves(self) -> None:
        with self._guard:
            self._waiting -= 1
            last = not self._waiting
            if last:
                self._wish = None
        if last:
            self._connector.disturb()

    @property
    def is_well(self) -> bool:
        """Whether it has done something within the last lease. Else whoever waits has to look for himself."""
        return time.monotonic() - self._nap.breathed < self._liveness.lease

    def working(self, busy: bool) -> None:
        """Whether a job is in hand. Called with each one: it costs nothing, unless others believe that we sleep."""
        self._busy = busy
        if busy and self._owner.asleep:
            self._nudged.set()
            if self._waiting:
                self.on_called()  # they cannot be called any more

    # --- for the heart ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it was stopped."""
        return self._ended.is_set()

    def stop(self) -> None:
        """Let the heart come back from wherever it waits. To be said again while it does not."""
        self._ended.set()
        self._nudged.set()
        self._connector.disturb()

    def pass_time(self, seconds: float) -> None:
        """Return after so many seconds; asleep, when the heart is to look, however late that is."""
        deadline = time.monotonic() + seconds
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            if self._is_wished():
                if self._sleep() is Woken.UNWELL:
                    return
                deadline = time.monotonic() + seconds
            elif self._owner.asleep:
                self._yawn()
            else:
                self._nudge(left)

    def _is_wished(self) -> bool:
        return self._wish is not None and not self.is_over and self.can()

    def _nudge(self, seconds: float) -> None:
        self._nudged.wait(seconds)
        self._nudged.clear()

    def _yawn(self) -> None:
        """Work for a moment, then sleep again: nothing is written for that. Else tell that we are up."""
        until = time.monotonic() + YAWN
        while (left := until - time.monotonic()) > 0:
            self._nudge(left)
            if self.is_over or self._is_wished():
                return
        self._rise()

    def _rise(self) -> None:
        """Tell that we are up. If that fails the next beat does, or the greeting of the next connection."""
        with self._failing():
            self._owner.beat()
        self._owner.asleep = False

    def _sleep(self) -> Woken:
        wish, why = self._wish, Woken.CALLED
        if wish is None:
            return Woken.WANTED
        with self._failing():
            why = self._connector.rest(lambda lull: self._nap(lull, wish, self._is_wished))
        if why is Woken.CALLED:
            self._wish = None
            self.on_called()
        elif why is Woken.UNWELL and not self._owner.asleep:
            self._rise()  # declared dead: under a new id
        return why

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whoever waits has to look then, and hears of the same trouble."""
        try:
            yield
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            log.debug("no sleep: %s", error)
            now = time.monotonic()
            self._distrusts, self._failed = (now if now - self._failed < DISTRUST else self._distrusts), now

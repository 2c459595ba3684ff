"""Sleep: an owner that has nothing to do waits to be called, and glances about now and then.

It is the heart's thread that sleeps, on the owner's one connection. Whoever else needs that wakes it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.connector import Connector, Lull
from claimjobs.errors import ClaimjobsError
from claimjobs.liveness import LOOK, Liveness
from claimjobs.owner import Owner
from claimjobs.statements import sleepers as statements

CYCLE: Final = 0.3
"""Of a lease: the longest time between two glances, in which nobody notices that another owner has died."""
SILENCE: Final = 0.75
"""Of a lease: a sleeper gives a sign of life, unless it will glance again before it has been silent for so long."""
FEW: Final = 3
"""So many of all who sleep look after others in each cycle."""
CROWD: Final = 8
"""So many sleepers glance more rarely, each of them: together they do so several times as often as one alone."""
RARER: Final = 1.8
"""How much: a sleeper still beats about twice in a lease."""
YAWN: Final = 0.05
"""Seconds in which one that was woken may lie down again without having said that it was up."""
HEARS: Final = "claimjobs_hears"
"""Where the `info` of a connection holds the id of the owner whose calls its session hears."""
DISTRUST: Final = 60.0
"""Seconds in which nobody sleeps after two sleeps that ended in an error, and in which they must have come."""

log = logging.getLogger("claimjobs.sleep")


class Woken(Enum):
    """Why a sleep is over."""

    CALLED = auto()
    """There is work, or somebody says so."""
    UNWELL = auto()
    """The heart is to look: another owner seems dead, or we were declared dead."""
    WANTED = auto()
    """The connection is needed, or nobody waits for a call any more."""


@dataclass(frozen=True)
class Wish:
    """What a loop without work waits for."""

    work: sa.ColumnElement[Any] | None
    """NULL where there is none; None: only a claim can tell."""
    first: float
    every: float
    """Seconds until the first look for it, and between two at last: not all work comes with a call."""


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


class Nap:
    """One sleep after the other, each from a first glance until there is a reason to wake."""

    def __init__(self, backend: Backend, liveness: Liveness, *, owner: Owner, leads: Callable[[], bool]) -> None:
        self._dialect = backend.dialect
        self._liveness = liveness
        self._owner = owner
        self._leads = leads
        self._glances = Glances(backend)
        self._asleep = self._stirring = 0
        """How many others sleep, and how many do not, at the last glance."""
        self.breathed = 0.0
        """When it last did anything."""
        self._beaten = self._unwell = 0.0

    def __call__(self, lull: Lull, wish: Wish, wished: Callable[[], bool]) -> Woken:
        """Sleep while it is `wished`. Raises as SQLAlchemy does."""
        fresh, looks = not self._owner.asleep, Looks(wish)
        why = self._lies_down(lull.connection)
        # Everything is looked at once more after it has lain down: what came before that called nobody.
        why = why or self._glance(lull.connection, wish, look=fresh or wish.work is not None, careful=False)
        while why is None:
            if lull.is_wanted() or not wished():
                return Woken.WANTED
            longest = self._longest() * random.uniform(0.9, 1.0)  # noqa: S311 - so that not all glance at once
            if lull.wait(min(looks.left, longest)):
                return Woken.WANTED if lull.is_wanted() or not wished() else Woken.CALLED
            look = looks.is_due(longest / 2, rarer=self._rarer)
            why = self._breathes(lull.connection) or self._glance(
                lull.connection, wish, look=look, careful=self._is_careful()
            )
        return why

    def _lies_down(self, connection: sa.Connection) -> Woken | None:
        """From here on it is called, and hears it."""
        listen = self._dialect.listen(self._owner.id)
        if listen is not None and connection.info.get(HEARS) != self._owner.id:
            connection.execute(listen)
            connection.info[HEARS] = self._owner.id
        return None if self._owner.asleep else self._tells(connection)

    def _tells(self, connection: sa.Connection) -> Woken | None:
        """A sign of life, and the word that we sleep."""
        self._beaten = time.monotonic()
        return None if self._owner.lie_down(connection) else Woken.UNWELL

    def _breathes(self, connection: sa.Connection) -> Woken | None:
        """A sign of life, if it is time for one."""
        self.breathed = time.monotonic()
        if self.breathed - self._beaten + self._longest() < SILENCE * self._liveness.lease:
            return None
        return self._tells(connection)

    def _glance(self, connection: sa.Connection, wish: Wish, *, look: bool, careful: bool) -> Woken | None:
        if look and wish.work is None:
            return Woken.CALLED
        try:
            statement = self._glances(wish.work if look else None, careful=careful)
            seen = connection.execute(statement, self._glances.given(self._owner.id)).one()
        except sa.exc.DBAPIError as error:
            if self._dialect.transient_kind(error) == "interrupted":  # a call that came too early
                return Woken.CALLED
            raise
        self._asleep, self._stirring = seen.asleep, seen.stirring
        if careful and seen.unwell:
            self._unwell = time.monotonic()
            return Woken.UNWELL
        return Woken.CALLED if seen.work else None

    def _is_careful(self) -> bool:
        """Whether this one looks after others with this glance: who leads, and a few of the rest, whoever."""
        if time.monotonic() - self._unwell < LOOK:
            return False
        return self._leads() or random.random() * self._asleep < FEW  # noqa: S311

    def _longest(self) -> float:
        """Between two glances. Those that are at work have jobs that others must not wait for."""
        if self._stirring and self._leads():
            return LOOK
        few = self._stirring and self._asleep < FEW
        return self._liveness.beat if few else CYCLE * self._rarer * self._liveness.lease

    @property
    def _rarer(self) -> float:
        return RARER if self._asleep >= CROWD else 1.0


class Looks:
    """When to look for work that came without a call: ever later, at last every so many seconds."""

    def __init__(self, wish: Wish) -> None:
        self._every = wish.every
        self._pause = min(wish.first, wish.every)
        self._due = time.monotonic() + self._pause

    @property
    def left(self) -> float:
        """Seconds until the next one."""
        return max(0.0, self._due - time.monotonic())

    def is_due(self, almost: float, *, rarer: float) -> bool:
        """Whether it is time, or almost; then the next one comes after twice the time, and that much rarer at last."""
        if self.left > almost:
            return False
        self._pause = min(2 * self._pause, rarer * self._every)
        self._due = time.monotonic() + self._pause * random.uniform(0.9, 1.0)  # noqa: S311
        return True


class Glances:
    """The statements of a glance, each built once while what is looked for stays the same."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._work: sa.ColumnElement[Any] | None = None
        self._built: dict[tuple[bool, bool], sa.Select[Any]] = {}

    def __call__(self, work: sa.ColumnElement[Any] | None, *, careful: bool) -> sa.Select[Any]:
        if work is not None and work is not self._work:
            self._work, self._built = work, {}
        kind = (work is not None, careful)
        if kind not in self._built:
            self._built[kind] = self._build(work, careful)
        return self._built[kind]

    def _build(self, work: sa.ColumnElement[Any] | None, careful: bool) -> sa.Select[Any]:
        backend = self._backend
        if careful:
            return statements.careful(backend.owners, work, dialect=backend.dialect, roles=backend.roles)
        return statements.glance(backend.owners, work)

    def given(self, me: int) -> dict[str, Any]:
        """The parameters of each."""
        return {"claimjobs_me": me, "claimjobs_claims": self._backend.roles.name}

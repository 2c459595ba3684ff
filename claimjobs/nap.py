"""Nap: an owner waits on its own connection to be called, glances about now and then, and gives signs of life."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import sqlalchemy as sa

from claimjobs.backend import Backend
from claimjobs.connector import Lull
from claimjobs.glances import Glances
from claimjobs.liveness import LOOK, Liveness
from claimjobs.owner import Owner
from claimjobs.wish import Timetable, Wish

CYCLE: Final = 0.3
"""Of a lease: the longest time between two glances, in which nobody notices that another owner has died."""
SILENCE: Final = 0.75
"""Of a lease: a sleeper gives a sign of life, unless it will glance again before it has been silent for so long."""
WATCHERS: Final = 3
"""So many of all who sleep look after others in each cycle."""
CROWD: Final = 8
"""So many sleepers glance more rarely, each of them: together they do so several times as often as one alone."""
IN_A_CROWD: Final = 1.8
"""So many times as rarely: a sleeper still beats about twice in a lease."""
HEARS: Final = "claimjobs_hears"
"""Where the `info` of a connection holds the id of the owner whose calls its session hears."""


class Woken(Enum):
    """Why a sleep is over."""

    CALLED = auto()
    """There is work, or somebody says so."""
    UNWELL = auto()
    """The heart is to look: another owner seems dead, or we were declared dead."""
    WANTED = auto()
    """The connection is needed, or nobody waits for a call any more."""


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
        fresh, times = not self._owner.asleep, Timetable(wish)
        why = self._lies_down(lull.connection)
        # Everything is looked at once more after it has lain down: what came before that called nobody.
        why = why or self._glance(lull.connection, wish, for_work=fresh or wish.work is not None, careful=False)
        while why is None:
            if lull.is_wanted() or not wished():
                return Woken.WANTED
            longest = self._longest() * random.uniform(0.9, 1.0)  # noqa: S311 - so that not all glance at once
            if lull.wait(min(times.left, longest)):
                return Woken.WANTED if lull.is_wanted() or not wished() else Woken.CALLED
            for_work = times.is_due(longest / 2, rarer=self._rarer)
            why = self._breathes(lull.connection) or self._glance(
                lull.connection, wish, for_work=for_work, careful=self._is_careful()
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

    def _glance(self, connection: sa.Connection, wish: Wish, *, for_work: bool, careful: bool) -> Woken | None:
        if for_work and wish.work is None:
            return Woken.CALLED
        try:
            statement = self._glances(wish.work if for_work else None, careful=careful)
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
        return self._leads() or random.random() * self._asleep < WATCHERS  # noqa: S311

    def _longest(self) -> float:
        """Between two glances. Those that are at work have jobs that others must not wait for."""
        if self._stirring and self._leads():
            return LOOK
        few = self._stirring and self._asleep < WATCHERS
        return self._liveness.beat if few else CYCLE * self._rarer * self._liveness.lease

    @property
    def _rarer(self) -> float:
        return IN_A_CROWD if self._asleep >= CROWD else 1.0

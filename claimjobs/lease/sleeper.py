"""Sleeper: how an owner without work waits between two heartbeats, until a producer wakes it.

The heartbeat's thread waits, on the owner's one connection. A thread that needs the connection ends the wait.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, Protocol

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.database.connection import Connector, IdleConnection
from claimjobs.errors import ClaimjobsError
from claimjobs.lease.idle_checks import CheckSchedule, IdleChecks, WakeCondition
from claimjobs.lease.owner import Owner
from claimjobs.options import CHECK_EVERY, Liveness
from claimjobs.table.backend import Backend

STAYS_MARKED: Final = 0.05
"""Seconds in which an owner that was woken may sleep again without writing that it was awake."""
NO_SLEEP: Final = 60.0
"""After two errors within so many seconds the owner does not sleep for so many seconds."""

log = logging.getLogger("claimjobs.sleep")


class Searches(Protocol):
    """The hold of a sleeping owner, as far as the sleeper needs to know it."""

    def restart_from_head(self) -> None:
        """Search from the head of the order next."""


class Sleeper:
    """Passes the time between two heartbeats: asleep, if no thread of this owner has anything to do."""

    def __init__(
        self,
        connector: Connector,
        backend: Backend,
        liveness: Liveness,
        *,
        owner: Owner,
        leads: Callable[[], bool],
        hold: Searches,
        control: Control,
    ) -> None:
        """`control` is told when those who wait are to look for work; `hold` searches from the head then."""
        self._hold = hold
        self._control = control
        self._connector = connector
        self._dialect = backend.dialect
        self._liveness = liveness
        self._owner = owner
        self._idle_wait = IdleWait(backend, liveness, owner=owner, leads=leads)
        self._ended = threading.Event()
        self._nudged = threading.Event()
        self._guard = threading.Lock()
        self._waiting = 0
        self._condition: WakeCondition | None = None
        """None: nobody waits, or those who do have been called."""
        self._busy = False
        self._failed = self._no_sleep_since = -NO_SLEEP

    # --- for those who have nothing to do --------------------------------------------------------------

    def can(self) -> bool:
        """Whether this owner can be called now: not with a job in hand, nor where its session is not its own."""
        works = time.monotonic() - self._no_sleep_since >= NO_SLEEP
        return self._dialect.wakes and self._owner.locked and works and not self._busy

    @contextmanager
    def waiting(self, condition: WakeCondition) -> Iterator[None]:
        """For a `with` block in which a thread waits to be woken."""
        with self._guard:
            self._waiting += 1
            self._idle_wait.last_active = time.monotonic()
            self._condition = condition
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
                self._condition = None
        if last:
            self._connector.end_wait()

    @property
    def is_well(self) -> bool:
        """Whether it has done something within the last lease. Else whoever waits has to look for himself."""
        return time.monotonic() - self._idle_wait.last_active < self._liveness.lease

    def note_progress(self, holds_jobs: bool) -> None:
        """Whether a job is in hand. Called with each one: it costs nothing, unless others believe that we sleep."""
        self._busy = holds_jobs
        if holds_jobs and self._owner.asleep:
            self._nudged.set()
            if self._waiting:
                self._wake()  # nobody can wake them any more

    def _wake(self) -> None:
        self._hold.restart_from_head()
        self._control.wake()

    # --- for the heart ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it was stopped."""
        return self._ended.is_set()

    def stop(self) -> None:
        """Let the heart come back from wherever it waits. To be said again while it does not."""
        self._ended.set()
        self._nudged.set()
        self._connector.end_wait()

    def pass_time(self, seconds: float) -> None:
        """Return after so many seconds; asleep, when the heart is to look, however late that is."""
        deadline = time.monotonic() + seconds
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            if self.is_idle():
                if self._sleep() is WakeReason.UNWELL:
                    return
                deadline = time.monotonic() + seconds
            elif self._owner.asleep:
                self._wait_to_sleep_on()
            else:
                self._nudge(left)

    def is_idle(self) -> bool:
        """Whether somebody waits to be woken, and can be."""
        return self._condition is not None and not self.is_over and self.can()

    def _nudge(self, seconds: float) -> None:
        self._nudged.wait(seconds)
        self._nudged.clear()

    def _wait_to_sleep_on(self) -> None:
        """An owner that works for a moment and sleeps again writes nothing. After that it writes that it is awake."""
        until = time.monotonic() + STAYS_MARKED
        while (left := until - time.monotonic()) > 0:
            self._nudge(left)
            if self.is_over or self.is_idle():
                return
        self._mark_awake()

    def _mark_awake(self) -> None:
        """Write that this owner is awake. If that fails, the next beat does, or a new connection."""
        with self._failing():
            self._owner.beat()
        self._owner.asleep = False

    def _sleep(self) -> WakeReason:
        condition, why = self._condition, WakeReason.CALLED
        if condition is None:
            return WakeReason.WANTED
        with self._failing(), self._connector.idle() as idle:
            why = self._idle_wait.wait(idle, condition, self)
        if why is WakeReason.CALLED:
            self._condition = None
            self._wake()
        elif why is WakeReason.UNWELL and not self._owner.asleep:
            self._mark_awake()  # declared dead: under a new id
        return why

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whoever waits has to look then, and hears of the same trouble."""
        try:
            yield
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            log.debug("no sleep: %s", error)
            now = time.monotonic()
            self._no_sleep_since, self._failed = (now if now - self._failed < NO_SLEEP else self._no_sleep_since), now


CYCLE: Final = 0.3
"""Of a lease: the longest time between two glances, in which nobody notices that another owner has died."""
SILENCE: Final = 0.75
"""Of a lease: a sleeper gives a sign of life, unless it will glance again before it has been silent for so long."""
WATCHERS: Final = 3
"""So many of all who sleep look after others in each cycle."""
MANY_ASLEEP: Final = 8
"""So many sleepers glance more rarely, each of them: together they do so several times as often as one alone."""
RARER_WHEN_MANY: Final = 1.8
"""So many times as rarely: a sleeper still beats about twice in a lease."""
LISTENS_AS: Final = "claimjobs_hears"
"""Where the `info` of a connection holds the id of the owner whose calls its session hears."""


class WakeReason(Enum):
    """Why a sleep is over."""

    CALLED = auto()
    """There is work, or somebody says so."""
    UNWELL = auto()
    """The heart is to look: another owner seems dead, or we were declared dead."""
    WANTED = auto()
    """The connection is needed, or nobody waits for a call any more."""


class IdleWait:
    """One sleep after the other, each from a first glance until there is a reason to wake."""

    def __init__(self, backend: Backend, liveness: Liveness, *, owner: Owner, leads: Callable[[], bool]) -> None:
        self._dialect = backend.dialect
        self._liveness = liveness
        self._owner = owner
        self._leads = leads
        self._checks = IdleChecks(backend)
        self._asleep = self._awake = 0
        """How many others sleep, and how many do not, at the last glance."""
        self.last_active = 0.0
        """When it last did anything."""
        self._beaten = self._unwell = 0.0

    def wait(self, idle: IdleConnection, condition: WakeCondition, sleeper: Sleeper) -> WakeReason:
        """Wait while the sleeper has no reason to end it. Raises as SQLAlchemy does."""
        fresh, times = not self._owner.asleep, CheckSchedule(condition)
        why = self._begin(idle.connection)
        # Everything is looked at once more after it has lain down: what came before that called nobody.
        why = why or self._check(
            idle.connection, condition, for_work=fresh or condition.work is not None, careful=False
        )
        while why is None:
            if idle.is_needed() or not sleeper.is_idle():
                return WakeReason.WANTED
            longest = self._longest() * random.uniform(0.9, 1.0)  # noqa: S311 - so that not all glance at once
            if idle.wait(min(times.left, longest)):
                return WakeReason.WANTED if idle.is_needed() or not sleeper.is_idle() else WakeReason.CALLED
            for_work = times.is_due(longest / 2, rarer=self._rarer)
            why = self._beat_if_due(idle.connection) or self._check(
                idle.connection, condition, for_work=for_work, careful=self._checks_others()
            )
        return why

    def _begin(self, connection: sa.Connection) -> WakeReason | None:
        """From here on it is called, and hears it."""
        listen = self._dialect.listen(self._owner.id)
        if listen is not None and connection.info.get(LISTENS_AS) != self._owner.id:
            connection.execute(listen)
            connection.info[LISTENS_AS] = self._owner.id
        return None if self._owner.asleep else self._beat_asleep(connection)

    def _beat_asleep(self, connection: sa.Connection) -> WakeReason | None:
        """A sign of life, and the word that we sleep."""
        self._beaten = time.monotonic()
        return None if self._owner.mark_asleep(connection) else WakeReason.UNWELL

    def _beat_if_due(self, connection: sa.Connection) -> WakeReason | None:
        """A sign of life, if it is time for one."""
        self.last_active = time.monotonic()
        if self.last_active - self._beaten + self._longest() < SILENCE * self._liveness.lease:
            return None
        return self._beat_asleep(connection)

    def _check(
        self, connection: sa.Connection, condition: WakeCondition, *, for_work: bool, careful: bool
    ) -> WakeReason | None:
        if for_work and condition.work is None:
            return WakeReason.CALLED
        try:
            statement = self._checks.statement(condition.work if for_work else None, careful=careful)
            seen = connection.execute(statement, self._checks.parameters(self._owner.id)).one()
        except sa.exc.DBAPIError as error:
            if self._dialect.transient_kind(error) == "interrupted":  # a call that came too early
                return WakeReason.CALLED
            raise
        self._asleep, self._awake = seen.asleep, seen.stirring
        if careful and seen.unwell:
            self._unwell = time.monotonic()
            return WakeReason.UNWELL
        return WakeReason.CALLED if seen.work else None

    def _checks_others(self) -> bool:
        """Whether this one looks after others with this glance: who leads, and a few of the rest, whoever."""
        if time.monotonic() - self._unwell < CHECK_EVERY:
            return False
        return self._leads() or random.random() * self._asleep < WATCHERS  # noqa: S311

    def _longest(self) -> float:
        """Between two glances. Those that are at work have jobs that others must not wait for."""
        if self._awake and self._leads():
            return CHECK_EVERY
        few = self._awake and self._asleep < WATCHERS
        return self._liveness.beat if few else CYCLE * self._rarer * self._liveness.lease

    @property
    def _rarer(self) -> float:
        return RARER_WHEN_MANY if self._asleep >= MANY_ASLEEP else 1.0

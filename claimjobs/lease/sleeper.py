"""IdleSleeper: how an idle owner waits between two heartbeats, until a producer wakes it.

The heartbeat's thread waits, on the owner's only connection. A thread that needs the connection ends the wait. In
between it checks for work and for dead owners, because not all work comes with a wake, and nobody tells of a death.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.hold import Hold
from claimjobs.claim.record import record_of
from claimjobs.control import Control
from claimjobs.database.error_translation import reason
from claimjobs.lease.owner_row import OwnerRow
from claimjobs.log_events import SLEEP_FAILED
from claimjobs.options import CHECK_EVERY, Liveness
from claimjobs.statements import owners

STAYS_MARKED_SECONDS: Final = 0.05
"""If an owner sleeps again within so many seconds, its row says all the time that it sleeps."""
NO_SLEEP_SECONDS: Final = 60.0
"""Seconds: after two errors within this time, the owner does not sleep for this time."""
LONGEST_PAUSE_IN_LEASES: Final = 0.3
"""The longest pause between two checks, as a part of a lease."""
LISTENS_AS: Final = "claimjobs_hears"
"""The key in the `info` of a connection for the id of the owner whose wakes its session receives."""

log = logging.getLogger("claimjobs.sleep")


@dataclass(frozen=True)
class WakeCondition:
    """What an idle loop waits for, and how often to check for it."""

    has_work: sa.ColumnElement[Any] | None
    """A scalar that is NULL when there is no work. None: only a claim finds out."""
    first: float
    """Seconds until the first check. The pauses double then."""
    every: float
    """The longest pause between two checks, in seconds."""


class WakeReason(Enum):
    """Why a sleep is over."""

    WORK = auto()
    """There is work, or a producer says so."""
    OWNER_DEAD = auto()
    """Another owner seems dead, or this one was declared dead: the heartbeat must check all owners."""
    NOT_IDLE = auto()
    """Another thread needs the connection, or no loop waits any more."""


class IdleSleeper:
    """Waits between two heartbeats. It sleeps if all loops of this owner are idle."""

    def __init__(self, row: OwnerRow, liveness: Liveness, hold: Hold, control: Control) -> None:
        """`control` wakes the idle loops when there may be work; `hold` begins its next claim at the head then."""
        self._row, self._liveness, self._hold, self._control = row, liveness, hold, control
        self._connector, self._backend = row.connector, row.backend
        self.is_over = False
        """Whether it was stopped."""
        self._changed = threading.Event()
        """Set when a pause should end: something changed."""
        self._guard = threading.Lock()
        self._waiting = 0
        self._conditions: tuple[WakeCondition, ...] = ()
        """The conditions of the loops that wait, and were not woken. Each loop may claim other jobs."""
        self._busy = False
        self._failed = self._no_sleep_since = -NO_SLEEP_SECONDS
        self._others_awake = 0
        """How many other owners did not sleep at the last check."""
        self._last_active = self._beaten = self._owner_dead_at = 0.0
        self._unknown = record_of(row.backend).unknown(row.backend.owners.alias("known"))

    # --- for idle loops --------------------------------------------------------------------------------

    def can_sleep(self) -> bool:
        """Whether this owner could be woken: it holds no job and has its session lock."""
        had_no_errors = time.monotonic() - self._no_sleep_since >= NO_SLEEP_SECONDS
        return self._row.locked and had_no_errors and not self._busy

    @contextmanager
    def waiting(self, condition: WakeCondition) -> Iterator[None]:
        """A `with` block in which a loop waits to be woken."""
        with self._guard:
            self._waiting += 1
            self._last_active = time.monotonic()
            self._conditions = (*self._conditions, condition)
        self._changed.set()
        try:
            yield
        finally:
            with self._guard:
                self._waiting -= 1
                last = not self._waiting
                self._conditions = tuple(other for other in self._conditions if other is not condition)
            if last:
                self._connector.end_wait()

    @property
    def is_active(self) -> bool:
        """Whether it has done something within the last lease. If not, an idle loop must claim by itself."""
        return time.monotonic() - self._last_active < self._liveness.lease

    def note_held(self, *, may_sleep: bool) -> None:
        self._busy = not may_sleep
        if self._busy and self._row.asleep:
            self._changed.set()
            if self._waiting:
                self._wake()  # while it holds jobs, no producer wakes the idle loops

    def _wake(self) -> None:
        self._hold.restart_from_head()
        self._control.wake()

    # --- for the heartbeat -----------------------------------------------------------------------------

    def stop(self) -> None:
        """End the wait of the heartbeat's thread. Call it again until the thread has ended."""
        self.is_over = True
        self._changed.set()
        self._connector.end_wait()

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds; an owner that sleeps waits longer, until its heartbeat has to check all owners."""
        deadline = time.monotonic() + seconds
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            if self._is_idle():
                why = WakeReason.WORK
                with self._noting_errors(), self._connector.idle() as (connection, wait):
                    why = self._until_woken(connection, wait)
                if why is WakeReason.OWNER_DEAD:
                    if not self._row.asleep:
                        self._mark_awake()  # this owner was declared dead: it registers under a new id
                    return
                if why is WakeReason.WORK:
                    with self._guard:
                        self._conditions = ()
                    self._wake()
                deadline = time.monotonic() + seconds
            elif self._row.asleep:
                self._mark_awake_later()
            else:
                self._pause(left)

    def _is_idle(self) -> bool:
        """Whether a loop waits to be woken, and this owner can sleep."""
        return bool(self._conditions) and not self.is_over and self.can_sleep()

    def _pause(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()

    def _mark_awake_later(self) -> None:
        """Write that this owner is awake, unless it sleeps again at once: that saves two writes."""
        until = time.monotonic() + STAYS_MARKED_SECONDS
        while (left := until - time.monotonic()) > 0:
            self._pause(left)
            if self.is_over or self._is_idle():
                return
        self._mark_awake()

    def _mark_awake(self) -> None:
        """Write that this owner is awake. If that fails, the next heartbeat or a new connection writes it."""
        with self._noting_errors():
            self._row.beat()
        self._row.asleep = False

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Errors only prevent sleep: the next claim of an idle loop meets and raises them."""
        try:
            yield
        except Exception as error:  # no sleep is worth the heartbeat's thread
            log.debug("no sleep: %s", reason(error), extra={"event": SLEEP_FAILED, "error": str(error)})
            now = time.monotonic()
            self._no_sleep_since = now if now - self._failed < NO_SLEEP_SECONDS else self._no_sleep_since
            self._failed = now

    # --- asleep ----------------------------------------------------------------------------------------

    def _until_woken(self, connection: sa.Connection, wait: Callable[[float], bool]) -> WakeReason:
        """Wait until there is a reason to wake. Raises as SQLAlchemy does."""
        if not (conditions := self._conditions):
            return WakeReason.NOT_IDLE
        wanted = {each.has_work for each in conditions}
        # If only a claim finds out whether there is work for one of the loops, all of them claim when that one does.
        timed = [each for each in conditions if each.has_work is None] or conditions
        every = min(each.every for each in timed)
        pause = min(every, *(each.first for each in timed))
        due = time.monotonic() + pause

        def has_changed() -> bool:
            wants = {each.has_work for each in self._conditions}
            return self._connector.is_needed() or not self._is_idle() or wants != wanted

        # Listen, and mark the owner asleep: from now on producers wake it.
        listen = self._backend.dialect.sessions.listen(self._row.id)
        if listen is not None and connection.info.get(LISTENS_AS) != self._row.id:
            connection.execute(listen)
            connection.info[LISTENS_AS] = self._row.id
        why = None if self._row.asleep else self._beat_asleep(connection)
        # The first check is needed: rows that were committed before this owner was marked asleep did not wake it. If
        # only a claim finds them, the claim waits for the pause. Without it a slow claim would start another one at
        # once, each time that it takes so long that the owner is marked awake.
        why = why or self._check(connection, wanted - {None}, careful=False)
        while why is None:
            if has_changed():
                return WakeReason.NOT_IDLE
            longest = self._longest() * random.uniform(0.9, 1.0)  # noqa: S311 - owners check at different times
            if wait(min(max(0.0, due - time.monotonic()), longest)):
                return WakeReason.NOT_IDLE if has_changed() else WakeReason.WORK
            for_work = due - time.monotonic() <= longest / 2
            if for_work:
                pause = min(2 * pause, every)
                due = time.monotonic() + pause * random.uniform(0.9, 1.0)  # noqa: S311
            careful = time.monotonic() - self._owner_dead_at >= CHECK_EVERY
            self._last_active = time.monotonic()
            if self._last_active - self._beaten + self._longest() >= self._liveness.idle_beat:
                why = self._beat_asleep(connection)
            why = why or self._check(connection, wanted if for_work else (), careful=careful)
        return why

    def _beat_asleep(self, connection: sa.Connection) -> WakeReason | None:
        self._beaten = time.monotonic()
        return None if self._row.mark_asleep(connection) else WakeReason.OWNER_DEAD

    def _check(
        self, connection: sa.Connection, wanted: Collection[sa.ColumnElement[Any] | None], *, careful: bool
    ) -> WakeReason | None:
        """`wanted`: the work that is looked for now. `careful`: look for owners that seem dead, too."""
        if None in wanted:
            return WakeReason.WORK
        backend = self._backend
        given = {"claimjobs_me": self._row.id, "claimjobs_claims": backend.roles.recorded_as}
        for has_work in wanted or (None,):
            check = owners.check(backend.owners, has_work, backend.dialect, self._unknown if careful else None)
            try:
                seen = connection.execute(check, given).one()
            except sa.exc.DBAPIError as error:
                if backend.dialect.errors.transient_kind(error) == "interrupted":  # a wake that came during the check
                    return WakeReason.WORK
                raise
            self._others_awake = seen.awake
            if careful and seen.unwell:
                self._owner_dead_at = time.monotonic()
                return WakeReason.OWNER_DEAD
            if seen.work:
                return WakeReason.WORK
            careful = False  # the first one has checked that
        return None

    def _longest(self) -> float:
        """The longest pause until the next check. The leader's is shorter while others work: they may die."""
        return CHECK_EVERY if self._others_awake and self._row.leads else LONGEST_PAUSE_IN_LEASES * self._liveness.lease

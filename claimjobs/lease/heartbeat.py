"""Heartbeat: the thread that writes an owner's heartbeats and reclaims the jobs of dead owners."""

from __future__ import annotations

import logging
import random
import threading
import time
from math import inf
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from claimjobs.control import Control
from claimjobs.database.connection import Connector
from claimjobs.database.error_translation import reason
from claimjobs.database.fair_lock import AGAIN
from claimjobs.errors import ClaimjobsError
from claimjobs.lease.owner import Owner
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.log_events import HANDLER_HANGS, HEARTBEAT_FAILED, HOOK_FAILED
from claimjobs.options import CHECK_EVERY, Liveness
from claimjobs.table.backend import Backend

if TYPE_CHECKING:
    from claimjobs.lease.lease_hold import LeaseHold

SWEEP: Final = 5.0
"""Seconds between two searches for jobs whose owner is in no table."""
SHARE: Final = 20
"""The search for dead owners takes at most 1/SHARE of the time."""

log = logging.getLogger("claimjobs.heartbeat")


class Heartbeat:
    """Writes a heartbeat every fifth of a lease, and reclaims the jobs of dead owners.

    One owner at a time leads: it has the reaper's session lock, and checks all owners every `CHECK_EVERY` seconds. The
    others check all owners with every heartbeat. So they also find a leader that hangs, without a lock.
    """

    def __init__(
        self,
        connector: Connector,
        backend: Backend,
        liveness: Liveness,
        *,
        owner: Owner,
        reaper: Reaper,
        hold: LeaseHold,
        control: Control,
    ) -> None:
        """`control` wakes the loops after jobs were reclaimed, and reports a batch that hangs."""
        self._control = control
        self._hold = hold
        self._connector = connector
        self._liveness = liveness
        self._owner = owner
        self._reaper = reaper
        self._name = name = backend.roles.name
        self._try_to_lead = sa.select(backend.dialect.sessions.try_leader_lock(backend.owners, backend.roles.table))
        self._leads = False
        self._led_through = -1
        self.sleeper = IdleSleeper(
            connector, backend, liveness, owner=owner, leads=self._is_leader, hold=hold, control=control
        )
        """It waits between two heartbeats."""
        self._is_out = False
        """Whether the last heartbeat could not be written."""
        self._written_at = 0.0
        """When the last one was written, or none was due."""
        self._next_beat = self._next_sweep = 0.0
        self._thread = threading.Thread(target=self._run, name=f"claimjobs heartbeat of {name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._written_at = time.monotonic()
        self._next_beat = self._written_at + self._liveness.beat
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        deadline = time.monotonic() + self._liveness.lease
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.sleeper.stop()
            self._thread.join(AGAIN)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    # --- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = CHECK_EVERY
        while not self._is_over_after(pause * random.uniform(0.8, 1.2)):  # noqa: S311 - owners check at different times
            began = time.monotonic()
            often = self._beat_and_reclaim() or self._leads
            pause = min(max(CHECK_EVERY, SHARE * (time.monotonic() - began)) if often else inf, self._liveness.beat)

    def _is_over_after(self, pause: float) -> bool:
        self.sleeper.wait(pause)
        return self.sleeper.is_over

    def _is_leader(self) -> bool:
        return self._leads and self._led_through == self._connector.lost

    def _beat_and_reclaim(self) -> bool:
        """Write a heartbeat and reclaim. Returns whether that failed and should be tried again soon."""
        try:
            self._beat_or_note_outage()
            self._hold.release_forgotten()
            self._give_up_hanging()
            self._reclaim_dead()
        except Exception as error:  # without heartbeats the consumer would lose every batch that lasts for a lease
            is_databases = isinstance(error, (ClaimjobsError, sa.exc.SQLAlchemyError))
            fields = {"event": HEARTBEAT_FAILED, "error": str(error)}
            level = logging.DEBUG if is_databases else logging.ERROR
            log.log(level, "no heartbeat: %s", reason(error), extra=fields, exc_info=None if is_databases else error)
            self._leads = False
            return True
        return False

    def _beat_or_note_outage(self) -> None:
        """Write a heartbeat if one is due. While the database cannot be reached, no handler is taken for one that
        hangs: it may wait for the database, too.
        """
        try:
            self._beat_if_due()
        except Exception:
            self._is_out = True
            raise
        now = time.monotonic()
        if self._is_out:
            self._hold.held.excuse(now - self._written_at)
        self._is_out, self._written_at = False, now

    def _give_up_hanging(self) -> None:
        """Give the jobs of each batch to others that makes no progress for too long."""
        for hanging in self._hold.held.hanging(self._liveness.max_batch_time):
            seconds = time.monotonic() - hanging.progressed_at
            if not hanging.hang_reported:
                hanging.hang_reported = True
                jobs = len(hanging.claimed.jobs)
                fields = {"event": HANDLER_HANGS, "owner": self._owner.id, "seconds": round(seconds, 1), "jobs": jobs}
                words = "no progress on a batch of %d jobs for %.0f s: the handler hangs, others get its jobs"
                log.error(words, jobs, seconds, extra=fields)
                self._call_on_hang()
            self._hold.give_up(hanging, f"its handler made no progress for {seconds:.0f} s")

    def _call_on_hang(self) -> None:
        try:
            self._control.batch_hangs()
        except (Exception, SystemExit) as error:
            fields = {"event": HOOK_FAILED, "queue": self._name, "hook": "on_hang", "error": str(error)}
            log.exception("on_hang failed", extra=fields)

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat or not self._leads:
            self._owner.beat()
            self._hold.read_pause(patience=0)
            self._next_beat = now + self._liveness.beat

    def _reclaim_dead(self) -> None:
        if self._led_through != self._connector.lost:
            self._leads = False
        if not self._leads and self._connector.locks_are_seen:
            self._leads = bool(self._connector.scalar(self._try_to_lead, patience=0))
            self._led_through = self._connector.lost
        jobs = 0
        try:
            for owner in self._reaper.dead():
                jobs += self._reaper.reclaim_or_log(owner)
                if time.monotonic() >= self._next_beat:  # each may take as long as a lock timeout
                    self._beat_if_due()
            # Without session locks there is no leader, and every owner searches.
            if (self._leads or not self._connector.locks_are_seen) and time.monotonic() >= self._next_sweep:
                self._next_sweep = time.monotonic() + SWEEP
                jobs += self._reaper.reclaim_unknown()
        finally:
            if jobs:
                self._hold.note_reclaimed(jobs)
                self._control.wake()

"""Owner: one run of a consumer, with its row, its connection, its heartbeat, and the reaper of dead owners' jobs."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from math import inf
from typing import Final

import sqlalchemy as sa

from claimjobs.batch.hold import Hold, HoldContext
from claimjobs.database.error_translation import reason
from claimjobs.database.fair_lock import END_WAIT_EVERY_SECONDS
from claimjobs.errors import ClaimjobsError
from claimjobs.lease.owner_row import OwnerConnector, OwnerRow
from claimjobs.lease.reaper import Reaper
from claimjobs.lease.sleeper import IdleSleeper
from claimjobs.log_events import HEARTBEAT_FAILED
from claimjobs.options import CHECK_EVERY
from claimjobs.settle.settler import Settler

UNKNOWN_OWNERS_EVERY_SECONDS: Final = 5.0
"""Seconds between two searches for jobs whose owner is in no table."""
SEARCH_PAUSE_FACTOR: Final = 20
"""The search for dead owners takes at most 1/SEARCH_PAUSE_FACTOR of the time."""

log = logging.getLogger("claimjobs.heartbeat")


class Owner:
    """Its thread writes a heartbeat every fifth of a lease, reads whether the queue is paused, and reclaims the jobs of
    dead owners. While there is no work, it sleeps until a producer wakes it.

    One owner at a time leads: it has the reaper's session lock, and checks all owners every `CHECK_EVERY` seconds. The
    others check all owners with every heartbeat. So they also find a leader that hangs, without a lock.
    """

    def __init__(self, context: HoldContext, settler: Settler, hold: Hold) -> None:
        """Register. `settler` writes the outcomes of dead owners' jobs. `hold` is told to look after its jobs with each
        heartbeat. Call `start` next.
        """
        backend, liveness, control = context.backend, context.liveness, context.control
        self._hold, self._control, self._liveness, self._report = hold, control, liveness, context.report
        self.connector = OwnerConnector(
            context.engine, backend.dialect, liveness, context.report, tables=backend.tables_in_use, control=control
        )
        self.row = OwnerRow(self.connector, backend, liveness)
        self.reaper = Reaper(self.connector, backend, settler, context.retry, failures=context.failures)
        self.sleeper = IdleSleeper(self.row, liveness, hold, control)
        """What waits between two heartbeats."""
        self._written_at = 0.0
        """When the last heartbeat was written, or none was due."""
        self._next_beat = self._next_search = 0.0
        name = f"claimjobs heartbeat of {backend.roles.name}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def id(self) -> int:
        return self.row.id

    def start(self) -> None:
        self._written_at = time.monotonic()
        self._next_beat = self._written_at + self._liveness.beat
        self.thread.start()

    def stop(self) -> None:
        deadline = time.monotonic() + self._liveness.lease
        while self.thread.is_alive() and time.monotonic() < deadline:
            self.sleeper.stop()
            self.thread.join(END_WAIT_EVERY_SECONDS)

    def read_pause(self, patience: float | None = None) -> None:
        """Read whether the queue is paused. After `stop` that is not tried again."""
        for attempt in self.connector.attempts(patience, unless=self._control):
            with attempt as connection:
                self._hold.note_pause(connection)

    def end(self) -> None:
        """End the thread, delete the row and close the connection. The owner must hold no job any more."""
        self.stop()
        # At the end of the interpreter there may be no server. Then others reclaim.
        with contextlib.suppress(sa.exc.SQLAlchemyError, ClaimjobsError):
            self.reaper.report()
            self.row.leave()
        self.close()

    def close(self) -> None:
        """The owner does not register on a new connection."""
        self.row.is_closed = True
        self.connector.close()

    # --- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        pause, is_out = CHECK_EVERY, False
        while True:
            self.sleeper.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - owners check at different times
            if self.sleeper.is_over:
                return
            began, failed = time.monotonic(), False
            was_out, is_out = is_out, True
            try:
                self._beat_if_due()
                now = time.monotonic()
                # While there was no database, no handler is taken for one that hangs: it may have waited for it, too.
                away = now - self._written_at if was_out else 0.0
                is_out, self._written_at = False, now
                self._hold.maintain(away=away)
                self._reclaim_dead()
            except Exception as error:  # without heartbeats the consumer would lose every batch that lasts for a lease
                failed, is_known = True, isinstance(error, (ClaimjobsError, sa.exc.SQLAlchemyError))
                fields = {"event": HEARTBEAT_FAILED, "error": str(error)}
                level = logging.DEBUG if is_known else logging.ERROR
                log.log(level, "no heartbeat: %s", reason(error), extra=fields, exc_info=None if is_known else error)
                self.row.stop_leading()
            took = time.monotonic() - began
            often = failed or self.row.leads
            pause = min(max(CHECK_EVERY, SEARCH_PAUSE_FACTOR * took) if often else inf, self._liveness.beat)

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat or not self.row.leads:
            self.row.beat()
            self.read_pause(patience=0)
            self._next_beat = now + self._liveness.beat

    def _reclaim_dead(self) -> None:
        self.row.try_to_lead()
        jobs = 0
        try:
            for owner in self.reaper.dead():
                jobs += self.reaper.reclaim_or_log(owner)
                if time.monotonic() >= self._next_beat:  # each may take as long as a lock timeout
                    self._beat_if_due()
            # Without session locks there is no leader, and every owner searches.
            if (self.row.leads or not self.connector.locks_are_seen) and time.monotonic() >= self._next_search:
                self._next_search = time.monotonic() + UNKNOWN_OWNERS_EVERY_SECONDS
                for unknown in self.reaper.unknown():
                    jobs += self.reaper.reclaim_or_log(unknown)
                    if time.monotonic() >= self._next_beat:
                        self._beat_if_due()
        finally:
            if jobs:
                self._report.reclaimed += jobs
                self._hold.restart_from_head()  # the next claim finds them there
                self._control.wake()

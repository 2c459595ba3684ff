"""ForcedEnd: ends processes whose handler does not react to `cancel`, after it has released their jobs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

import sqlalchemy as sa

from claimjobs.errors import ClaimjobsError
from claimjobs.log_events import RELEASE_FAILED
from claimjobs.queue.queue import Queue
from claimjobs.workers.process_slot import ProcessSlot
from claimjobs.workers.supervisor_pipe import RELEASE_GRACE

log = logging.getLogger("claimjobs.supervisor")


class ForcedEnd:
    """Kills processes that still run some seconds after `cancel`. Their jobs are released before.

    The death of a process charges an attempt to a job that its owner held alone, whoever reclaims it first. The handler
    of a stopped process did not fail, so the jobs must be unclaimed before the death. A thread releases them: the
    process may not be able to run any Python code, and the supervisor does not wait for the database.
    """

    def __init__(self, queue: Queue) -> None:
        self.released = 0
        """Jobs released so far."""
        self._queue = queue
        self._at = math.inf
        self._thread: threading.Thread | None = None

    def begin_after(self, seconds: float) -> None:
        """Release and kill after so many seconds, or earlier if that was said before."""
        self._at = min(self._at, time.monotonic() + seconds)

    def tick(self, children: Sequence[ProcessSlot]) -> None:
        """Do what is due. After RELEASE_GRACE seconds without an answer of the database the processes are killed."""
        if time.monotonic() < self._at:
            return
        if self._thread is None:
            owners = [child.owner_id for child in children if child.process is not None and child.owner_id]
            self._thread = threading.Thread(target=self._release, args=(owners,), name="release", daemon=True)
            self._thread.start()
        if not self._thread.is_alive() or time.monotonic() >= self._at + RELEASE_GRACE:
            for child in children:
                child.kill()

    def _release(self, owners: Sequence[int]) -> None:
        for owner in owners:
            try:
                self.released += self._queue.release_owner(owner)
            except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                fields = {"event": RELEASE_FAILED, "owner": owner, "error": str(error)}
                words = "the jobs of owner %d could not be released before its process is killed: %s"
                log.warning(words, owner, error, extra=fields)

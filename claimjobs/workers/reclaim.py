"""Threads reclaim the jobs of processes that died, or must be killed: the supervisor does not wait for the database."""

from __future__ import annotations

import logging
import queue as queues
import threading
import time
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from claimjobs.errors import ClaimjobsError, TableMissing
from claimjobs.log_events import RECLAIM_FAILED, RELEASE_FAILED
from claimjobs.queue.queue import Queue

AGAIN: Final = 1.0
"""Seconds until a reclaim that failed is tried again."""
PATIENCE: Final = 5.0
"""Seconds to wait at the end for owners that are still to be reclaimed. Later any consumer reclaims them."""

log = logging.getLogger("claimjobs.supervisor")


class ReclaimThread:
    """Reclaims the jobs of owners whose process has ended. A context manager: leaving it waits for the rest."""

    def __init__(self, queue: Queue) -> None:
        self.reclaimed = self.released = 0
        """Jobs of dead owners, and of those that must be killed, so far."""
        self._queue = queue
        self._owners: queues.SimpleQueue[tuple[int, str] | None] = queues.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reclaim", daemon=True)

    def __enter__(self) -> ReclaimThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + PATIENCE
        self._owners.put(None)
        self._thread.join(PATIENCE)
        self._ended.set()
        self._thread.join(max(0.0, deadline + AGAIN - time.monotonic()))

    def add(self, owner: int, cause: str) -> None:
        """Reclaim the jobs of this owner as soon as possible. `cause`: of its death."""
        self._owners.put((owner, cause))

    def _run(self) -> None:
        while (found := self._owners.get()) is not None:
            while not self._reclaim(*found) and not self._ended.wait(AGAIN):
                pass

    def _reclaim(self, owner: int, cause: str) -> bool:
        try:
            self.reclaimed += self._queue.reclaim_owner(owner, cause)
        except TableMissing:
            return True  # its jobs are gone with their table
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            fields = {"event": RECLAIM_FAILED, "owner": owner, "error": str(error)}
            log.warning("the jobs of owner %d could not be reclaimed yet: %s", owner, error, extra=fields)
            return False
        return True

    def release(self, owners: Sequence[int]) -> None:
        """Release the jobs of these owners, each once: for another thread than the one that reclaims."""
        for owner in owners:
            try:
                self.released += self._queue.release_owner(owner)
            except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                fields = {"event": RELEASE_FAILED, "owner": owner, "error": str(error)}
                words = "the jobs of owner %d could not be released before its process is killed: %s"
                log.warning(words, owner, error, extra=fields)

"""A thread that reclaims the jobs of processes that died, so that the supervisor does not wait for the database."""

from __future__ import annotations

import logging
import queue as queues
import threading
import time
from typing import Final

import sqlalchemy as sa

from claimjobs.errors import ClaimjobsError, TableMissing
from claimjobs.log_events import RECLAIM_FAILED
from claimjobs.queue.queue import Queue

AGAIN: Final = 1.0
"""Seconds until a reclaim that failed is tried again."""
PATIENCE: Final = 5.0
"""Seconds to wait at the end for owners that are still to be reclaimed. Later any consumer reclaims them."""

log = logging.getLogger("claimjobs.reclaim_thread")


class ReclaimThread:
    """Reclaims the jobs of owners whose process has ended. A context manager: leaving it waits for the rest."""

    def __init__(self, queue: Queue) -> None:
        self.reclaimed = 0
        """Jobs reclaimed so far."""
        self._queue = queue
        self._owners: queues.SimpleQueue[int | None] = queues.SimpleQueue()
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

    def add(self, owner: int) -> None:
        """Reclaim the jobs of this owner as soon as possible."""
        self._owners.put(owner)

    def _run(self) -> None:
        while (owner := self._owners.get()) is not None:
            while not self._reclaim(owner) and not self._ended.wait(AGAIN):
                pass

    def _reclaim(self, owner: int) -> bool:
        try:
            self.reclaimed += self._queue.reclaim_owner(owner)
        except TableMissing:
            return True  # its jobs are gone with their table
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            fields = {"event": RECLAIM_FAILED, "owner": owner, "error": str(error)}
            log.warning("the jobs of owner %d could not be reclaimed yet: %s", owner, error, extra=fields)
            return False
        return True

"""Threads of the supervisor, which itself waits for no database: one counts the queue, one reclaims jobs."""

from __future__ import annotations

import logging
import queue as queues
import threading
import time
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError, TableMissing
from claimjobs.key_text import visible
from claimjobs.log_events import COUNT_FAILED, QUEUE_PAUSED, QUEUE_RESUMED, RECLAIM_FAILED, RELEASE_FAILED
from claimjobs.queue.queue import Queue

COUNT_EVERY_SECONDS: Final = 1.0
"""Seconds between two counts."""
COUNT_PAUSE_FACTOR: Final = 20
"""Counting takes at most this fraction (one in so many) of the time: on a large table it scans an index."""
LAST_COUNT_SECONDS: Final = 10.0
"""Seconds to wait for the last count."""
RECLAIM_RETRY_SECONDS: Final = 1.0
"""Seconds until a reclaim that failed is tried again."""
RECLAIM_WAIT_SECONDS: Final = 5.0
"""Seconds to wait at the end for owners that are still to be reclaimed. Later any consumer reclaims them."""

count_log = logging.getLogger("claimjobs.backlog_counter")
log = logging.getLogger("claimjobs.supervisor")


class BacklogCounter:
    """Keeps `left` up to date. A context manager: leaving the block ends the thread, after a last count."""

    def __init__(self, queue: Queue) -> None:
        self.left: int | None = None
        """Jobs unclaimed or claimed, at the last count. None: it has failed, or took too long at the end."""
        self.paused = False
        self.pause_reason: str | None = None
        self._queue = queue
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backlog counter", daemon=True)

    def __enter__(self) -> BacklogCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.left = None
        self._ended.set()
        self._thread.join(LAST_COUNT_SECONDS)

    def _run(self) -> None:
        """Count, and log whether the queue is paused if that has changed, until it is the last time."""
        is_last = False
        while not is_last:
            is_last, began, before = self._ended.is_set(), time.monotonic(), (self.paused, self.pause_reason)
            try:
                stats = self._queue.stats()
                table = self._queue.table.fullname
            except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                fields = {"event": COUNT_FAILED, "error": str(error)}
                count_log.debug("the queue could not be counted: %s", reason(error), extra=fields)
            else:
                self.left, self.paused, self.pause_reason = stats.left, stats.paused is not None, stats.pause_reason
                if self.paused and before != (True, self.pause_reason):
                    why = f" ({visible(self.pause_reason)})" if self.pause_reason else ""
                    words = "%s is paused%s: consumers finish their batches, and wait for its end"
                    paused = {"event": QUEUE_PAUSED, "queue": table, "reason": self.pause_reason}
                    count_log.info(words, table, why, extra=paused)
                elif before[0] and not self.paused:
                    count_log.info("%s is not paused any more", table, extra={"event": QUEUE_RESUMED, "queue": table})
            if not is_last:
                self._ended.wait(max(COUNT_EVERY_SECONDS, COUNT_PAUSE_FACTOR * (time.monotonic() - began)))


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
        deadline = time.monotonic() + RECLAIM_WAIT_SECONDS
        self._owners.put(None)
        self._thread.join(RECLAIM_WAIT_SECONDS)
        self._ended.set()
        self._thread.join(max(0.0, deadline + RECLAIM_RETRY_SECONDS - time.monotonic()))

    def add(self, owner: int, cause: str) -> None:
        """Reclaim the jobs of this owner as soon as possible. `cause`: of its death."""
        self._owners.put((owner, cause))

    def _run(self) -> None:
        while (found := self._owners.get()) is not None:
            owner, cause = found
            while True:
                try:
                    self.reclaimed += self._queue.reclaim_owner(owner, cause)
                    break
                except TableMissing:  # its jobs are gone with their table
                    break
                except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                    fields = {"event": RECLAIM_FAILED, "owner": owner, "error": str(error)}
                    log.warning("the jobs of owner %d could not be reclaimed yet: %s", owner, error, extra=fields)
                if self._ended.wait(RECLAIM_RETRY_SECONDS):
                    break

    def release(self, owners: Sequence[int]) -> None:
        """Release the jobs of these owners, each once: for another thread than the one that reclaims."""
        for owner in owners:
            try:
                self.released += self._queue.release_owner(owner)
            except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                fields = {"event": RELEASE_FAILED, "owner": owner, "error": str(error)}
                words = "the jobs of owner %d could not be released before its process is killed: %s"
                log.warning(words, owner, error, extra=fields)

"""A thread that counts the jobs of a queue now and then, so that the supervisor does not wait for the count."""

from __future__ import annotations

import logging
import threading
import time

import sqlalchemy as sa

from claimjobs.admin.stats import Stats
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError
from claimjobs.key_text import visible
from claimjobs.log_events import COUNT_FAILED, QUEUE_PAUSED, QUEUE_RESUMED
from claimjobs.queue.queue import Queue

SHARE = 20
"""Counting takes at most this fraction (one in so many) of the time: on a large table it scans an index."""
PATIENCE = 10.0
"""Seconds to wait for the last count."""

log = logging.getLogger("claimjobs.backlog_counter")


class BacklogCounter:
    """Keeps `left` up to date. A context manager: leaving the block ends the thread."""

    def __init__(self, queue: Queue, every: float = 1.0) -> None:
        self.left: int | None = None
        """Jobs unclaimed or claimed, at the last count."""
        self.paused = False
        """Whether the queue was paused at the last count."""
        self.pause_reason: str | None = None
        self._queue = queue
        self._every = every
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backlog counter", daemon=True)

    def __enter__(self) -> BacklogCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._wake.set()
        self._thread.join(PATIENCE)

    def count_once_more(self) -> int | None:
        """A last count, after which the thread ends; None where the count fails or takes too long."""
        self.left = None
        self.__exit__()
        return self.left

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(self._count())
        self._count()

    def _count(self) -> float:
        """Count; return the seconds until the next count."""
        began = time.monotonic()
        try:
            stats = self._queue.stats()
            self.left = stats.left
            self._note_pause(stats)
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            fields = {"event": COUNT_FAILED, "error": str(error)}
            log.debug("the queue could not be counted: %s", reason(error), extra=fields)
        return max(self._every, SHARE * (time.monotonic() - began))

    def _note_pause(self, stats: Stats) -> None:
        """Note whether the queue is paused, and log a change."""
        before = self.paused, self.pause_reason
        self.paused, self.pause_reason = stats.paused is not None, stats.pause_reason
        queue = self._queue.table.fullname
        if self.paused and before != (True, self.pause_reason):
            fields = {"event": QUEUE_PAUSED, "queue": queue, "reason": self.pause_reason}
            why = f" ({visible(self.pause_reason)})" if self.pause_reason else ""
            log.info("%s is paused%s: consumers finish their batches, and wait for its end", queue, why, extra=fields)
        elif before[0] and not self.paused:
            log.info("%s is not paused any more", queue, extra={"event": QUEUE_RESUMED, "queue": queue})

"""A thread that counts the jobs of a queue now and then, so that the supervisor does not wait for the count."""

from __future__ import annotations

import logging
import threading
import time

import sqlalchemy as sa

from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError
from claimjobs.key_text import visible
from claimjobs.log_events import COUNT_FAILED, QUEUE_PAUSED, QUEUE_RESUMED
from claimjobs.queue.queue import Queue

EVERY = 1.0
"""Seconds between two counts."""
SHARE = 20
"""Counting takes at most this fraction (one in so many) of the time: on a large table it scans an index."""
PATIENCE = 10.0
"""Seconds to wait for the last count."""

log = logging.getLogger("claimjobs.backlog_counter")


class BacklogCounter:
    """Keeps `left` up to date. A context manager: leaving the block ends the thread."""

    def __init__(self, queue: Queue) -> None:
        self.left: int | None = None
        """Jobs unclaimed or claimed, at the last count."""
        self.paused = False
        """Whether the queue was paused at the last count."""
        self.pause_reason: str | None = None
        self._queue = queue
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backlog counter", daemon=True)

    def __enter__(self) -> BacklogCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE)

    def count_once_more(self) -> int | None:
        """A last count, after which the thread ends; None where the count fails or takes too long."""
        self.left = None
        self.__exit__()
        return self.left

    def _run(self) -> None:
        while not self._ended.is_set():
            self._ended.wait(self._count())
        self._count()

    def _count(self) -> float:
        """Count, and log whether the queue is paused if that has changed; return the seconds until the next count."""
        began, before = time.monotonic(), (self.paused, self.pause_reason)
        try:
            stats = self._queue.stats()
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            fields = {"event": COUNT_FAILED, "error": str(error)}
            log.debug("the queue could not be counted: %s", reason(error), extra=fields)
        else:
            table = self._queue.table.fullname
            self.left, self.paused, self.pause_reason = stats.left, stats.paused is not None, stats.pause_reason
            if self.paused and before != (True, self.pause_reason):
                why = f" ({visible(self.pause_reason)})" if self.pause_reason else ""
                words = "%s is paused%s: consumers finish their batches, and wait for its end"
                paused = {"event": QUEUE_PAUSED, "queue": table, "reason": self.pause_reason}
                log.info(words, table, why, extra=paused)
            elif before[0] and not self.paused:
                log.info("%s is not paused any more", table, extra={"event": QUEUE_RESUMED, "queue": table})
        return max(EVERY, SHARE * (time.monotonic() - began))

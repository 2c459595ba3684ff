"""BacklogReader: the backlog of a queue for scrapes, read now and then in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from math import inf
from typing import Final

from claimjobs.admin.overview import LIMIT, Backlog
from claimjobs.database.error_translation import reason
from claimjobs.log_events import BACKLOG_FAILED, BACKLOG_RESTORED
from claimjobs.queue.queue import Queue

READ_EVERY_SECONDS: Final = 5.0
"""Seconds between two readings, if somebody asks so often."""
READ_PAUSE_FACTOR: Final = 20
"""Reading takes at most this fraction (one in so many) of the time, however long the statements take."""
SCRAPE_WAIT_SECONDS: Final = 1.0
"""Seconds that a scrape waits for a reading. After that it gets the reading before."""
STALE_SECONDS: Final = 15.0
"""Seconds after which a reading that does not end counts as an error."""

log = logging.getLogger("claimjobs.metrics")


@dataclass(frozen=True)
class Reading:
    """The last backlog that could be read, and whether it still can be."""

    backlog: Backlog | None = None
    error: str | None = "not read yet"
    """Why the last reading failed; None: it did not."""


class BacklogReader:
    """Reads the backlog when it is asked for and the last reading is old. A database that hangs makes nobody wait."""

    def __init__(self, queue: Queue, *, every: float = READ_EVERY_SECONDS, limit: int = LIMIT) -> None:
        self.table = queue.table.fullname
        self._queue = queue
        self._every = every
        self._limit = limit
        self._last = Reading()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = self._next = -inf

    def latest(self) -> Reading:
        """The backlog now, or a moment ago: a thread reads it if the last reading is old."""
        with self._guard:
            is_reading = self._thread is not None and self._thread.is_alive()
            if not is_reading and time.monotonic() >= self._next:
                self._began = time.monotonic()
                self._thread = threading.Thread(target=self._read, name="claimjobs backlog", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(SCRAPE_WAIT_SECONDS)
            if thread.is_alive() and time.monotonic() - self._began > STALE_SECONDS:
                return Reading(self._last.backlog, f"the database has not answered for {STALE_SECONDS:g} s")
        return self._last

    def _read(self) -> None:
        before = self._last.error
        try:
            self._last = Reading(self._read_now(), None)
            if before not in (None, Reading().error):
                log.warning("the backlog can be read again", extra={"event": BACKLOG_RESTORED, "queue": self.table})
        except Exception as failure:
            error = reason(failure)
            if error != before:
                fields = {"event": BACKLOG_FAILED, "queue": self.table, "error": error}
                log.warning("the backlog cannot be read: %s", error, extra=fields)
            self._last = Reading(self._last.backlog, error)
        self._next = time.monotonic() + max(self._every, READ_PAUSE_FACTOR * (time.monotonic() - self._began))

    def _read_now(self) -> Backlog:
        return self._queue.backlog(self._limit)

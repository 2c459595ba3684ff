"""Gauge: how many jobs there are, counted now and then by a thread, so that nobody waits for the count."""

from __future__ import annotations

import logging
import threading
import time

import sqlalchemy as sa

from claimjobs.errors import ClaimjobsError
from claimjobs.queue.queue import Queue

SHARE = 20
"""Counting takes at most one part in so many of the time: on a large table it is a scan of an index."""
PATIENCE = 10.0
"""Seconds to wait for the last count."""

log = logging.getLogger("claimjobs.gauge")


class BacklogGauge:
    """Keeps `left` up to date; a context manager, so that its thread ends."""

    def __init__(self, queue: Queue, every: float = 1.0) -> None:
        self.left: int | None = None
        """Jobs unclaimed or claimed, at the last count."""
        self._queue = queue
        self._every = every
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauge", daemon=True)

    def __enter__(self) -> BacklogGauge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def once_more(self) -> int | None:
        """A last count; None where it cannot be had in time."""
        self.left = None
        self._end()
        return self.left

    def _end(self) -> None:
        self._ended.set()
        self._wake.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(self._count())
        self._count()

    def _count(self) -> float:
        """Count; seconds until the next time."""
        began = time.monotonic()
        try:
            self.left = self._queue.stats().left
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            log.debug("the queue could not be counted: %s", error)
        return max(self._every, SHARE * (time.monotonic() - began))

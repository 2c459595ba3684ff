"""Undertaker: hands back what dead processes held, by a thread, so that the living need not wait for a database."""

from __future__ import annotations

import logging
import queue as queues
import threading
import time
from typing import Final

import sqlalchemy as sa

from claimjobs.errors import ClaimjobsError
from claimjobs.queue.queue import Queue

AGAIN: Final = 1.0
"""Seconds until what failed is tried again."""
PATIENCE: Final = 5.0
"""Seconds to wait at the end for what is still to be handed back; later any consumer's heart does it."""

log = logging.getLogger("claimjobs.undertaker")


class ReclaimThread:
    """Takes owners whose process has ended; a context manager, at whose end all are taken care of, or time is up."""

    def __init__(self, queue: Queue) -> None:
        self.handed_back = 0
        """Jobs handed back so far."""
        self._queue = queue
        self._owners: queues.SimpleQueue[int | None] = queues.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="undertaker", daemon=True)

    def __enter__(self) -> ReclaimThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + PATIENCE
        self._owners.put(None)
        self._thread.join(PATIENCE)
        self._ended.set()
        self._thread.join(max(0.0, deadline + AGAIN - time.monotonic()))

    def take(self, owner: int) -> None:
        """Hand back what this owner held, as soon as it can be done."""
        self._owners.put(owner)

    def _run(self) -> None:
        while (owner := self._owners.get()) is not None:
            while not self._bury(owner) and not self._ended.wait(AGAIN):
                pass

    def _bury(self, owner: int) -> bool:
        try:
            self.handed_back += self._queue.give_back(owner)
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            log.warning("the jobs of owner %d could not be handed back yet: %s", owner, error)
            return False
        return True

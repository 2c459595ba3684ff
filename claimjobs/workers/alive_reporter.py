"""AliveReporter: the thread of a consumer process that reports every few seconds, whatever the handler does."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

from claimjobs.batch.batch import Batch
from claimjobs.queue.queue import Queue
from claimjobs.workers.handlers import Handler
from claimjobs.workers.supervisor_pipe import Alive, SupervisorPipe

EVERY: Final = 2.0
"""Seconds between two reports."""


class AliveReporter:
    """Sends `Alive`. A process whose threads do not run any more sends none."""

    def __init__(self, queue: Queue, supervisor: SupervisorPipe) -> None:
        self._queue = queue
        self._supervisor = supervisor
        self._open: Batch | None = None
        self._undecided = 0
        self._progressed_at = 0.0

    def start(self) -> None:
        """Start the thread. It ends with the process."""
        threading.Thread(target=self._run, name="alive reporter", daemon=True).start()

    def watching(self, handler: Handler) -> Handler:
        """The handler, with a note of the batch that it works on."""

        def watched(batch: Batch) -> None:
            self._progressed_at, self._undecided, self._open = time.monotonic(), len(batch), batch
            try:
                handler(batch)
            finally:
                self._open = None

        return watched

    def _run(self) -> None:
        while True:
            # The counts may change while they are sent. Then the next report is not far.
            with contextlib.suppress(RuntimeError):
                self._supervisor.send(Alive(self._queue.report, self._stalled()))
            threading.Event().wait(EVERY)

    def _stalled(self) -> float:
        """Seconds without progress. A lease needs none: a process whose batch hangs for too long ends itself."""
        batch, now = self._open, time.monotonic()
        if batch is None or self._queue.hold == "lease":
            return 0.0
        undecided = len(batch.undecided)
        if undecided != self._undecided:
            self._undecided, self._progressed_at = undecided, now
        return now - self._progressed_at

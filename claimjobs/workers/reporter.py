"""Reporter: tells the supervisor what its consumer process has done, and that it is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final, Self

from claimjobs.batch.batch import Batch
from claimjobs.job import Job
from claimjobs.queue.job_pool import PooledJob
from claimjobs.queue.queue import Queue
from claimjobs.workers.consumer import BatchObserver
from claimjobs.workers.process_slot import OpenJobs
from claimjobs.workers.supervisor_pipe import State, SupervisorPipe

SOONEST: Final = 0.1
"""Seconds between two reports. One after each fast batch would cost as much as several of its jobs."""
ALIVE_EVERY: Final = 2.0
"""Seconds without a batch after which the state is sent all the same."""


class Reporter(BatchObserver):
    """Sends the state after batches, and every few seconds: a process whose threads cannot run sends none.

    That of a batch is sent at once, or `soonest` seconds after the report before, together with those of the
    batches until then; with 0 before each batch, too. A context manager: at the end of its block nothing is left to be
    sent.
    """

    def __init__(
        self, queue: Queue, supervisor: SupervisorPipe, open_jobs: OpenJobs, *, soonest: float = SOONEST
    ) -> None:
        """It notes in `open_jobs` what the handler works on."""
        self._queue, self._supervisor, self._open_jobs, self._soonest = queue, supervisor, open_jobs, soonest
        self._owner_id = queue.owner_id
        """0: it has none, because an open transaction holds its jobs."""
        self._unsent = threading.Event()
        self._next = 0.0
        self._jobs = 0
        """Of the last batch."""
        self._open: Batch | None = None
        self._undecided = 0
        self._progressed_at = 0.0

    def __enter__(self) -> Self:
        """Start the thread. It ends with the process."""
        threading.Thread(target=self._run, name="reporter", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._unsent.is_set():
            self._send(self._jobs)

    def begun(self, batch: Batch) -> None:
        self._progressed_at, self._undecided, self._open = time.monotonic(), len(batch), batch
        self._note(len(batch), batch.jobs)

    def note_held(self, items: Collection[PooledJob]) -> None:
        self._note(len(items), (item.job for item in items))

    def ended(self) -> None:
        self._open = None
        self._open_jobs.note(0)

    def _note(self, count: int, jobs: Iterable[Job]) -> None:
        """Note how many jobs are in hand; and which, if it is one that a death charges an attempt."""
        began = count and not self._open_jobs.count
        is_charged = count == 1 and self._owner_id and self._queue.roles.can_isolate
        self._open_jobs.note(count, next(iter(jobs)).key if is_charged else None)
        if began and not self._soonest:
            self._send()

    def settled(self, batch: Batch) -> None:
        """Report a batch, now or with those that follow soon."""
        self._jobs, self._owner_id = len(batch), self._queue.owner_id
        if time.monotonic() >= self._next:
            self._send(self._jobs)
        else:
            self._unsent.set()

    def _send(self, jobs: int = 0) -> None:
        """Send the state. `jobs`: of a batch that was settled."""
        if jobs:
            self._next = time.monotonic() + self._soonest
            self._unsent.clear()
        state = State(self._queue.report, self._owner_id or None, jobs, bool(self._open_jobs.count), self._stalled())
        while True:
            with suppress(RuntimeError):  # the counts changed while they were read: again
                self._supervisor.send(state)
                return

    def _run(self) -> None:
        while True:
            if not self._unsent.wait(ALIVE_EVERY):
                self._send()
                continue
            threading.Event().wait(self._soonest)
            if self._unsent.is_set():
                self._send(self._jobs)

    def _stalled(self) -> float:
        """Seconds without progress. An owner needs none: its process ends itself if its batch hangs for too long."""
        batch, now = self._open, time.monotonic()
        if batch is None or self._owner_id:
            return 0.0
        undecided = len(batch.undecided)
        if undecided != self._undecided:
            self._undecided, self._progressed_at = undecided, now
        return now - self._progressed_at

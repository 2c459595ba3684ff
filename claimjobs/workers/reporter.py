"""Reporter: tells the supervisor what its consumer process has done, and that it is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import Final, Self

from claimjobs.batch.batch import Batch
from claimjobs.job import Job
from claimjobs.queue.executors import PooledJob
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

    That of a batch is sent at once, or SOONEST seconds after the report before, together with those of the
    batches until then. A context manager: at the end of its block nothing is left to be sent.
    """

    def __init__(
        self,
        queue: Queue,
        supervisor: SupervisorPipe,
        open_jobs: OpenJobs,
        *,
        soonest: float = SOONEST,
        sends_began: bool = False,
    ) -> None:
        """It notes in `open_jobs` what the handler works on.

        `sends_began`: the state is sent before each batch, too.
        """
        self._open_jobs, self._sends_began = open_jobs, sends_began
        self._queue = queue
        self._supervisor = supervisor
        self._soonest = soonest
        self._unsent = threading.Event()
        self._next = 0.0
        self._jobs = 0
        """Of the last batch."""
        self._owner_id = 0
        self._one_at_a_time = threading.Lock()
        self._open: Batch | None = None
        self._undecided = 0
        self._progressed_at = 0.0

    def __enter__(self) -> Self:
        """Start the thread. It ends with the process."""
        threading.Thread(target=self._run, name="reporter", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._send_unsent()

    def begun(self, batch: Batch) -> None:
        self._note(len(batch), batch.jobs)
        self._progressed_at, self._undecided, self._open = time.monotonic(), len(batch), batch
        while self._sends_began and not self._tell():
            pass

    def note_held(self, items: Collection[PooledJob]) -> None:
        began = items and not self._open_jobs.count
        self._note(len(items), (item.job for item in items))
        while began and self._sends_began and not self._tell():
            pass

    def ended(self) -> None:
        self._open = None
        self._open_jobs.note(0)

    def _note(self, count: int, jobs: Iterable[Job]) -> None:
        """Note how many jobs are in hand; and which, if it is one that a death charges an attempt."""
        is_charged = count == 1 and self._queue.settings.by_lease and self._queue.roles.can_isolate
        self._open_jobs.note(count, next(iter(jobs)).key if is_charged else None)

    def settled(self, batch: Batch) -> None:
        """Report a batch, now or with those that follow soon."""
        self._jobs, self._owner_id = len(batch), self._queue.owner_id
        if self._unsent.is_set():  # the report that is sent soon has the counts of that time
            return
        if time.monotonic() >= self._next:
            self._send()
        else:
            self._unsent.set()

    def _tell(self, jobs: int = 0) -> bool:
        """Send the state. Returns False if the counts changed meanwhile: then try again."""
        state = State(self._queue.report, self._owner_id or None, jobs, bool(self._open_jobs.count), self._stalled())
        try:
            self._supervisor.send(state)
        except RuntimeError:
            return False
        return True

    def _send(self) -> None:
        self._next = time.monotonic() + self._soonest
        self._unsent.clear()
        if not self._tell(self._jobs):
            self._unsent.set()

    def _send_unsent(self) -> None:
        with self._one_at_a_time:
            if self._unsent.is_set():
                self._send()

    def _run(self) -> None:
        while True:
            if self._unsent.wait(ALIVE_EVERY):
                threading.Event().wait(self._soonest)
                self._send_unsent()
            else:
                self._tell()

    def _stalled(self) -> float:
        """Seconds without progress. A lease needs none: a process whose batch hangs for too long ends itself."""
        batch, now = self._open, time.monotonic()
        if batch is None or self._queue.settings.by_lease:
            return 0.0
        undecided = len(batch.undecided)
        if undecided != self._undecided:
            self._undecided, self._progressed_at = undecided, now
        return now - self._progressed_at

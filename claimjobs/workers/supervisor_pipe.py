"""What a child process tells its supervisor, and what it is told, through a pipe. If that breaks, the child stops."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from typing import Any, Final, Literal, Self

from claimjobs.batch.batch import Batch
from claimjobs.dialects import Key
from claimjobs.job import Job
from claimjobs.log_events import PROCESS_STOPPING, SUPERVISOR_DIED
from claimjobs.log_records import LogFormat, sendable, stderr_handler
from claimjobs.queue.executors import PooledJob
from claimjobs.queue.queue import Queue
from claimjobs.report import Report
from claimjobs.signals import after, cancel, shielded
from claimjobs.workers.consumer import BatchObserver

log = logging.getLogger("claimjobs.supervisor_pipe")

Command = Literal["stop", "drain", "drain retries", "cancel"]

PHASES: Final[dict[Command, tuple[str, str]]] = {
    "drain": ("draining", "consumers go on while a job is due"),
    "drain retries": ("draining", "consumers go on while a job is due, or to be retried"),
    "stop": ("stopping", "consumers finish their batches; another Ctrl-C or SIGTERM releases them"),
    "cancel": ("cancelling", "consumers release their batches"),
}
"""The phase of the run that each command begins, and its log message, in the order of the phases."""

GRACE_SECONDS: Final = 10.0
"""Seconds a process may go on with its batch after its supervisor died."""
LAST_GRACE_SECONDS: Final = 5.0
"""Seconds from `cancel` until the jobs of a process are released for it: its handler does not end."""
RELEASE_GRACE_SECONDS: Final = 5.0
"""Seconds for that release. Then the process is killed, or ends itself if its supervisor is dead."""
SOONEST_SECONDS: Final = 0.1
"""Seconds between two reports. One after each fast batch would cost as much as several of its jobs."""
ALIVE_EVERY: Final = 2.0
"""Seconds without a batch after which the state is sent all the same."""
SPAWN: Final[SpawnContext] = multiprocessing.get_context("spawn")
"""A forked child would share its parent's database connections; a spawned one starts with none."""


class OpenJobs:
    """What a process has in hand, in memory that it shares with its supervisor, which reads it when it is dead."""

    def __init__(self) -> None:
        self._shared = SPAWN.RawArray("Q", 2)

    def note(self, count: int, alone: Key | None = None) -> None:
        """`alone`: the key of a job that is held alone, if the death of its owner charges it an attempt."""
        self._shared[0], self._shared[1] = count, 0 if alone is None else zlib.crc32(repr(alone).encode()) + 1

    @property
    def count(self) -> int:
        return int(self._shared[0])

    @property
    def alone(self) -> int:
        """A number for the job that is held alone. 0: there are several, or none, or nothing would charge it."""
        return int(self._shared[1])


@dataclass(frozen=True)
class ProcessState:
    """What a process does, and what it has done since it started. The first one of a consumer comes before its first
    claim, others after batches and every few seconds, with `--idle` also before each batch.
    """

    report: Report
    owner_id: int | None = None
    """The owner whose jobs are reclaimed if the process dies; a new one if that was declared dead. None: it has none,
    because an open transaction holds its jobs, or because it is a generator."""
    batch: int = 0
    """Jobs of the last batch. 0: no batch has ended since the last message."""
    is_busy: bool = False
    stalled: float = 0.0
    """Seconds without progress on this batch, if an open transaction holds it."""


@dataclass(frozen=True)
class GaveUp:
    """The last message of a consumer that ends by an error which its replacement would meet, too."""

    kind: str
    """The kind of error, whatever the values in its message."""
    error: str
    at_once: bool = False
    table_missing: bool = False
    """Whether a table is missing, so that no other process can do anything either."""


@dataclass(frozen=True)
class Ended:
    """The last message of a process that came to its end. A process that its handler ends sends none."""

    by_signal: bool


Message = ProcessState | GaveUp | Ended | dict[str, Any]
"""A dict is a log record, which the supervisor shows: plain values, see `log_records.sendable`."""


class SupervisorPipe:
    """Sends reports to the supervisor. A thread receives its commands and runs them."""

    def __init__(self, pipe: Connection, worker: Any) -> None:
        """`worker` has `stop(timeout)`, `drain()` and `stopping`, for any thread."""
        self._pipe = pipe
        self._worker = worker
        self._unsent: deque[Message] = deque()
        self._in_use = threading.RLock()
        self._is_sending = False
        self._may_cancel = False
        self.died = False
        """Whether the supervisor has died, or its pipe cannot be read."""
        self.was_signalled = False

    def stop_by_signal(self, _number: int) -> None:
        """Finish the open batch and end: this process got a SIGTERM. If its supervisor got none, it is replaced."""
        self.was_signalled = True
        self._worker.stop()

    def send(self, message: Message) -> None:
        """Send a message. Errors are ignored: where the supervisor is gone, `listen` ends this process.

        The garbage collector may run while a message is sent, and what it destroys may log: asyncio does so. What is
        logged then is sent after that message, which may be written in two parts.
        """
        with suppress(OSError), shielded(), self._in_use:
            self._unsent.append(message)
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._unsent:
                    self._pipe.send(self._unsent.popleft())
            finally:
                self._is_sending = False

    @contextmanager
    def ends_at_once(self) -> Iterator[None]:
        """For a `with` block without a batch: `stop` raises `Cancelled` in it."""
        self._may_cancel = True
        if self._worker.stopping:
            self._cancel_if_idle()
        try:
            yield
        finally:
            self._may_cancel = False

    def _cancel_if_idle(self) -> None:
        """Cancel once: a second `Cancelled` would interrupt the end of the process."""
        if self._may_cancel:
            self._may_cancel = False
            cancel()

    def start(self) -> None:
        """Run the commands that come, in a thread of their own."""
        threading.Thread(target=self.listen, name="supervisor pipe", daemon=True).start()

    def listen(self) -> None:
        """Run the commands that come. Without a supervisor, end this process."""
        try:
            while True:
                command: Command = self._pipe.recv()
                if command == "cancel":
                    self._cancel()
                elif command == "stop":
                    self._worker.stop()
                    self._cancel_if_idle()
                    log.debug("told to stop: an open batch is finished", extra={"event": PROCESS_STOPPING})
                else:
                    self._worker.drain(retries=command == "drain retries")
        except EOFError:
            why = "the supervisor has died"
        except OSError as error:
            why = f"the commands of the supervisor cannot be read ({error})"
        self.died = True
        self._worker.stop(GRACE_SECONDS + LAST_GRACE_SECONDS)
        words = "%s: process %d ends, and finishes its open batch within %g s, or releases it"
        log.warning(words, why, os.getpid(), GRACE_SECONDS, extra={"event": SUPERVISOR_DIED, "seconds": GRACE_SECONDS})
        threading.Event().wait(GRACE_SECONDS)
        self._cancel()

    def _cancel(self) -> None:
        self._worker.stop()
        cancel()
        after(LAST_GRACE_SECONDS + RELEASE_GRACE_SECONDS, os._exit, 1)


class Reporter(BatchObserver):
    """Sends the state after batches, and every few seconds: a process whose threads cannot run sends none.

    That of a batch is sent at once, or `soonest` seconds after the report before, together with those of the
    batches until then; with 0 before each batch, too. A context manager: at the end of its block nothing is left to be
    sent.
    """

    def __init__(
        self, queue: Queue, supervisor: SupervisorPipe, open_jobs: OpenJobs, *, soonest: float = SOONEST_SECONDS
    ) -> None:
        """It notes in `open_jobs` what the handler works on."""
        self._queue, self._supervisor, self._open_jobs, self._soonest = queue, supervisor, open_jobs, soonest
        self._owner_id = queue.owner_id
        """0: it has none, because an open transaction holds its jobs."""
        self._unsent = threading.Event()
        self._next = 0.0
        self._jobs = 0
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
        stalled, batch = 0.0, self._open
        if batch is not None and not self._owner_id:  # an owner ends its process if its batch hangs for too long
            if (undecided := len(batch.undecided)) != self._undecided:
                self._undecided, self._progressed_at = undecided, time.monotonic()
            stalled = time.monotonic() - self._progressed_at
        state = ProcessState(self._queue.report, self._owner_id or None, jobs, bool(self._open_jobs.count), stalled)
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


class LogToSupervisor(logging.Handler):
    """Sends log records to the supervisor: output of a child would break the live table on the terminal.

    Where the supervisor has died they are written on standard error.
    """

    def __init__(self, supervisor: SupervisorPipe, log_format: LogFormat) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._stderr = stderr_handler(log_format)

    def emit(self, record: logging.LogRecord) -> None:
        if self._supervisor.died:
            self._stderr.emit(record)
            return
        try:
            self._supervisor.send(sendable(record))
        except Exception:  # of the record: wrong arguments, or a field without a text
            self.handleError(record)

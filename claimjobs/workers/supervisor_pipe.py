"""The child's end of the pipe to its supervisor: receives commands, sends reports. If it breaks, the child stops."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

from claimjobs.log_events import PROCESS_STOPPING, SUPERVISOR_DIED
from claimjobs.log_records import LogFormat, sendable, stderr_handler
from claimjobs.report import Report
from claimjobs.signals import after, cancel, shielded

log = logging.getLogger("claimjobs.supervisor_pipe")

Command = Literal["stop", "drain", "drain retries", "cancel"]

PHASES: Final[dict[Command, tuple[str, str]]] = {
    "drain": ("draining", "consumers go on while a job is due"),
    "drain retries": ("draining", "consumers go on while a job is due, or to be retried"),
    "stop": ("stopping", "consumers finish their batches; another Ctrl-C or SIGTERM releases them"),
    "cancel": ("cancelling", "consumers release their batches"),
}
"""The phase of the run that each command begins, and its log message, in the order of the phases."""

GRACE: Final = 10.0
"""Seconds a process may go on with its batch after its supervisor died."""
LAST_GRACE: Final = 5.0
"""Seconds from `cancel` until the jobs of a process are released for it: its handler does not end."""
RELEASE_GRACE: Final = 5.0
"""Seconds for that release. Then the process is killed, or ends itself if its supervisor is dead."""


@dataclass(frozen=True)
class State:
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
    """Whether its handler works on a batch."""
    stalled: float = 0.0
    """Seconds without progress on this batch, if an open transaction holds it."""


@dataclass(frozen=True)
class GaveUp:
    """The last message of a consumer that ends by an error which its replacement would meet, too."""

    kind: str
    """The kind of error, whatever the values in its message."""
    error: str
    at_once: bool = False
    """Whether no replacement is to be tried."""
    table_missing: bool = False
    """Whether a table is missing, so that no other process can do anything either."""


@dataclass(frozen=True)
class Ended:
    """The last message of a process that came to its end. A process that its handler ends sends none."""

    by_signal: bool
    """Whether the process itself got a SIGTERM."""


Message = State | GaveUp | Ended | dict[str, Any]
"""A dict is a log record, which the supervisor shows: plain values, see `log_records.sendable`."""


class SupervisorPipe:
    """Sends reports to the supervisor. A thread receives its commands and runs them."""

    def __init__(self, pipe: Connection, worker: Any) -> None:
        """`worker` has `stop(timeout)`, `drain()` and `stopping`, for any thread."""
        self._pipe = pipe
        self._worker = worker
        self._sending = threading.Lock()
        self._may_cancel = False
        self.died = False
        """Whether the supervisor has died, or its pipe cannot be read."""
        self.was_signalled = False
        """Whether this process got a SIGTERM."""

    def listen(self) -> None:
        """Receive commands from now on."""
        threading.Thread(target=self._listen, name="supervisor pipe", daemon=True).start()

    def stop_by_signal(self, _number: int) -> None:
        """Finish the open batch and end: this process got a SIGTERM. If its supervisor got none, it is replaced."""
        self.was_signalled = True
        self._worker.stop()

    def send(self, message: Message) -> None:
        """Send a message. Errors are ignored: where the supervisor is gone, `_listen` ends this process."""
        with contextlib.suppress(OSError), shielded(), self._sending:
            self._pipe.send(message)

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

    def _listen(self) -> None:
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
        self._worker.stop(GRACE + LAST_GRACE)
        words = "%s: process %d ends, and finishes its open batch within %g s, or releases it"
        log.warning(words, why, os.getpid(), GRACE, extra={"event": SUPERVISOR_DIED, "seconds": GRACE})
        threading.Event().wait(GRACE)
        self._cancel()

    def _cancel(self) -> None:
        self._worker.stop()
        cancel()
        after(LAST_GRACE + RELEASE_GRACE, os._exit, 1)


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

"""Lifeline: the child's end of the pipe to its supervisor. Orders come in, reports go out; if it breaks, we stop."""

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

from claimjobs.report import Report
from claimjobs.signals import after, shielded, take_back

Order = Literal["stop", "drain", "drain retries", "take back"]

GRACE: Final = 10.0
"""Seconds a process may go on with the batch in hand after its supervisor died."""
LAST_GRACE: Final = 5.0
"""Seconds from taking work back until the process ends itself, settled or not: its handler does not let go."""


@dataclass(frozen=True)
class Registered:
    """The first message of a consumer, before its first claim: the owner to hand back for, should it die.

    None where nobody is registered: the server rolls back what a dead process held.
    """

    owner_id: int | None


@dataclass(frozen=True)
class Began:
    """A consumer has a batch in hand, until its next report. Sent to a supervisor that wants to know who is idle."""


@dataclass(frozen=True)
class Progress:
    """What a process has done since it started."""

    report: Report
    batch: int = 0
    """Jobs of the last batch."""
    owner_id: int | None = None
    """Under which id it works now: declared dead, a consumer goes on under a new one."""


@dataclass(frozen=True)
class GaveUp:
    """The last word of a consumer that ends by what the next one would meet, too."""

    kind: str
    """The same for the same error, whatever the values in it."""
    error: str
    at_once: bool = False
    """Whether there is no need for a next one to find that out."""


@dataclass(frozen=True)
class Ended:
    """The last message of a process that came to its end. One that a handler ends, with whatever code, sends none."""


@dataclass(frozen=True)
class Said:
    """A log record, for the supervisor to show."""

    level: int
    text: str


Message = Registered | Began | Progress | GaveUp | Ended | Said


class SupervisorPipe:
    """Reports to the supervisor, and obeys it from a thread of its own."""

    def __init__(self, pipe: Connection, worker: Any) -> None:
        """`worker` has `stop()` and `drain()`, callable from any thread, and tells whether it is `stopping`."""
        self._pipe = pipe
        self._worker = worker
        self._sending = threading.Lock()
        self._may_end_at_once = False
        self._orders = {
            "stop": self._stop,
            "drain": worker.drain,
            "drain retries": self._drain_retries,
            "take back": self._take_back,
        }
        threading.Thread(target=self._listen, name="lifeline", daemon=True).start()

    def send(self, message: Message) -> None:
        """Report. Without a supervisor there is nobody to report to: `_listen` ends this process then."""
        with contextlib.suppress(OSError), shielded(), self._sending:
            self._pipe.send(message)

    @contextmanager
    def nothing_in_hand(self) -> Iterator[None]:
        """To be stopped in this block is to end at once, by `Cancelled`: there is no batch to be finished."""
        self._may_end_at_once = True
        if self._worker.stopping:
            self._end_at_once()
        try:
            yield
        finally:
            self._may_end_at_once = False

    def _drain_retries(self) -> None:
        self._worker.drain(retries=True)

    def _stop(self) -> None:
        self._worker.stop()
        self._end_at_once()

    def _end_at_once(self) -> None:
        """Once: what is raised a second time would break off the end."""
        if self._may_end_at_once:
            self._may_end_at_once = False
            take_back()

    def _listen(self) -> None:
        try:
            while True:
                self._orders[self._pipe.recv()]()
        except (EOFError, OSError):
            self._orphaned()

    def _orphaned(self) -> None:
        self._worker.stop()
        threading.Event().wait(GRACE)
        self._take_back()

    def _take_back(self) -> None:
        self._worker.stop()
        take_back()
        after(LAST_GRACE, os._exit, 1)


class LogToSupervisor(logging.Handler):
    """Sends log records up the lifeline: a child that writes to the terminal would tear the live table."""

    def __init__(self, lifeline: SupervisorPipe) -> None:
        super().__init__()
        self._lifeline = lifeline

    def emit(self, record: logging.LogRecord) -> None:
        self._lifeline.send(Said(record.levelno, self.format(record)))

"""A slot of the supervisor: one process, and after its death its replacement."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from claimjobs.options import Backoff
from claimjobs.report import Report
from claimjobs.signals import signals_blocked
from claimjobs.workers.run import ProcessFigures
from claimjobs.workers.supervisor_pipe import SPAWN, Command, Ended, GaveUp, Message, OpenJobs, ProcessState

FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 10.0
"""Seconds before a process that died is replaced; doubled while its replacements die young."""
YOUNG_SECONDS: Final = 10.0
"""Seconds a process must live for its death not to count as a repeated one."""
STRIKES: Final = 3
"""How many processes may end by one lasting error, with no batch in between, until none is started any more."""
RATE_WINDOW_SECONDS: Final = 3.0
"""Seconds that a rate is measured over."""


class ProcessSlot:
    """A numbered slot of a supervisor, with a process in it or waiting for one."""

    def __init__(self, number: int, target: Callable[..., None]) -> None:
        self.number = number
        self._target = target
        self.open_jobs = OpenJobs()
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.owner_id: int | None = None
        self.finished = False
        """Whether the process came to its end: no replacement is due."""
        self.was_ready = False
        """Whether a process of this slot has reported or ended, or could not be started."""
        self.reported_at = -math.inf
        """When a process of this slot last reported, by the machine's monotonic clock. Its end does not change it."""
        self.ending = False
        """Whether the process was sent `stop`: it is not replaced, however it ends."""
        self.gave_up: GaveUp | None = None
        """The error by which processes of this slot end each time: no replacement would do better."""
        self.restarts = 0
        self.ended_normally = False
        """Whether the last process sent `Ended`. A process that a handler ends sends none, whatever its exit code."""
        self.ended_unasked = False
        """Whether it ended because of a signal of its own, before this supervisor told it to stop."""
        self.state = ProcessState(Report())
        self.active = -math.inf
        """When it last held a batch, by the machine's monotonic clock."""
        self.heard_at: float | None = None
        """When the process last reported, by the machine's monotonic clock. None: it is starting, or there is none."""
        self._before = Report()
        self._batch = 0
        self._errors: list[str] = []
        self._due = 0.0
        self._young_deaths = 0
        self._born = 0.0
        self._rate = Rate()

    # --- the process -----------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        return self.process is None and not self.finished and time.monotonic() >= self._due

    def start(self, *arguments: Any) -> None:
        """Start a new process. Raises OSError if the system has no more processes, memory or files to give."""
        self.open_jobs.note(0)
        self._born = time.monotonic()
        resource_tracker.ensure_running()  # otherwise the first child starts it, and that unblocks signals
        ours, theirs = SPAWN.Pipe(duplex=True)
        for end in (ours, theirs):  # a handler module may have replaced the sockets of this process
            os.set_blocking(end.fileno(), True)
        # No daemon: the parent's exit would kill it with its batch. It ends by itself when the pipe breaks.
        process = SPAWN.Process(target=self._target, args=(*arguments, theirs), daemon=False)
        with theirs, contextlib.ExitStack() as failed:
            failed.enter_context(ours)
            with signals_blocked():
                process.start()
            failed.pop_all()
        self.process, self.pipe = process, ours
        self.ended_normally = False

    def start_later(self) -> float:
        """Plan another start; return the seconds until then. They do not grow for a process that held one job alone:
        that job waits for its own back-off, and others are to be done meanwhile.
        """
        is_repeated = time.monotonic() - self._born <= YOUNG_SECONDS and not self.open_jobs.alone
        self._young_deaths = self._young_deaths + 1 if is_repeated else 0
        pause = Backoff(FIRST_WAIT, LONGEST_WAIT, least=1.0).after(self._young_deaths)
        self._due = time.monotonic() + pause
        return pause

    def reap(self) -> int:
        """Close a process that has ended and whose messages were read; return its exit code."""
        code = 0
        if self.process is not None:
            self.process.join()
            code = self.process.exitcode or 0
            self.process.close()
        if self.pipe is not None:
            self.pipe.close()
        self.process = self.pipe = None
        self.was_ready, self.heard_at = True, None
        self._before, self.state = self.report, ProcessState(Report())
        return code

    def kill(self) -> None:
        self.heard_at = None
        if self.process is not None:
            self.process.kill()

    # --- messages --------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command to the process. A process that is dying does not receive it."""
        with contextlib.suppress(OSError):
            if self.pipe is not None:
                self.pipe.send(command)
        self.ending = self.ending or command in ("stop", "cancel")
        self.finished = self.finished or (self.ending and self.process is None)

    def read(self, most: int = sys.maxsize) -> bool:
        """Read at most so many of the messages that the process has sent; whether one says that a batch has ended."""
        has_batch = False
        with contextlib.suppress(EOFError, OSError):
            for _ in range(most):
                if self.pipe is None or not self.pipe.poll():
                    break
                message: Message = self.pipe.recv()
                self.note(message)
                has_batch = has_batch or (isinstance(message, ProcessState) and message.batch > 0)
        return has_batch

    def note(self, message: Message) -> None:
        """Store what a message says about the process, or log it."""
        if isinstance(message, dict):
            record = logging.makeLogRecord(message)
            logging.getLogger(record.name).handle(record)
        elif isinstance(message, ProcessState):
            self.state, self.was_ready = message, True
            self.heard_at = self.reported_at = time.monotonic()
            self.owner_id = message.owner_id or self.owner_id
            if message.is_busy or message.batch:
                self.active = self.heard_at
            if message.batch:
                self._batch, self._errors = message.batch, []
        elif isinstance(message, Ended):
            self.ended_normally, self.ended_unasked = True, message.by_signal and not self.ending
        elif isinstance(message, GaveUp):
            self._errors = [kind for kind in self._errors if kind == message.kind] + [message.kind]
            if message.at_once or len(self._errors) >= STRIKES:
                self.gave_up = message

    # --- state -----------------------------------------------------------------------------------------

    @property
    def silence(self) -> float:
        """Seconds since the process last reported. 0: it is starting or ending, or there is none."""
        heard_at = self.heard_at  # another thread may ask while it is set
        return 0.0 if heard_at is None else time.monotonic() - heard_at

    @property
    def report(self) -> Report:
        return self._before + self.state.report

    def line(self) -> ProcessFigures:
        pid = self.process.pid if self.process is not None else None
        jobs = self.report.done + self.report.enqueued
        return ProcessFigures(self.number, pid, self._batch, jobs, self._rate.at(jobs), self.restarts)


class Rate:
    """The rate at which a count has grown lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def at(self, count: int) -> float:
        now = time.monotonic()
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0

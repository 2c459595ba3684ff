"""A slot of the supervisor: one process, and after its death its replacement."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Final

from claimjobs.backoff import Backoff
from claimjobs.dialects import Key
from claimjobs.report import Report
from claimjobs.signals import signals_blocked
from claimjobs.workers.run import ProcessFigures
from claimjobs.workers.supervisor_pipe import Command, Ended, GaveUp, Message, State

SPAWN: Final[SpawnContext] = multiprocessing.get_context("spawn")
"""A forked child would share its parent's database connections; a spawned one starts with none."""

FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 10.0
"""Seconds before a process that died is replaced; doubled while its replacements die young."""
YOUNG: Final = 10.0
"""Seconds a process must live for its death not to count as a repeated one."""
STRIKES: Final = 3
"""How many processes may end by one lasting error, with no batch in between, until none is started any more."""
WINDOW: Final = 3.0
"""Seconds that a rate is measured over."""


class OpenJobs:
    """What a process has in hand, in memory that it shares with its supervisor, which reads it when it is dead."""

    def __init__(self) -> None:
        self._shared = SPAWN.RawArray("Q", 2)

    def note(self, count: int, alone: Key | None = None) -> None:
        """`alone`: the key of a job that is held alone, if the death of its owner charges it an attempt."""
        self._shared[0], self._shared[1] = count, 0 if alone is None else zlib.crc32(repr(alone).encode()) + 1

    @property
    def count(self) -> int:
        """How many jobs."""
        return int(self._shared[0])

    @property
    def alone(self) -> int:
        """A number for the job that is held alone. 0: there are several, or none, or nothing would charge it."""
        return int(self._shared[1])


class ProcessSlot:
    """A numbered slot of a supervisor, with a process in it or waiting for one."""

    def __init__(self, number: int, target: Callable[..., None]) -> None:
        self.number = number
        self._target = target
        self.open_jobs = OpenJobs()
        """What the last process had in hand."""
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.owner_id: int | None = None
        self.finished = False
        """Whether the process came to its end: no replacement is due."""
        self.was_ready = False
        """Whether a process of this slot has reported or ended, or could not be started."""
        self.ending = False
        """Whether the process was sent `stop`: it is not replaced, however it ends."""
        self.gave_up: GaveUp | None = None
        """The error by which processes of this slot end each time: no replacement would do better."""
        self.restarts = 0
        self.ended_normally = False
        """Whether the last process sent `Ended`. A process that a handler ends sends none, whatever its exit code."""
        self.ended_unasked = False
        """Whether it ended because of a signal of its own, before this supervisor told it to stop."""
        self.busy = False
        """Whether the process holds a batch, as it reported last."""
        self.active = -math.inf
        """When it last held one, by the machine's monotonic clock."""
        self.heard_at: float | None = None
        """When the process last reported, by the machine's monotonic clock. None: it is starting, or there is none."""
        self.stalled = 0.0
        """Seconds without progress on its open batch, as it reported last."""
        self._before = Report()
        self._now = Report()
        self._batch = 0
        self._errors: list[str] = []
        self._due = 0.0
        self._young_deaths = 0
        self._born = 0.0
        self._rate = Rate()

    # --- the process -----------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a process is to be started now."""
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
        is_repeated = time.monotonic() - self._born <= YOUNG and not self.open_jobs.alone
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
        self.was_ready, self.busy = True, False
        self.heard_at, self.stalled = None, 0.0
        self._before, self._now = self.report, Report()
        return code

    def kill(self) -> None:
        """End the process at once."""
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

    def messages(self) -> Iterator[Message]:
        """The messages that the process has sent since the last call; what they say is noted."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe is not None and self.pipe.poll():
                message: Message = self.pipe.recv()
                self.note(message)
                yield message

    def note(self, message: Message) -> None:
        """Store what a message says about the process."""
        if isinstance(message, State):
            now = time.monotonic()
            self.was_ready, self.heard_at, self.stalled = True, now, message.stalled
            self._now, self.busy = message.report, message.is_busy
            self.owner_id = message.owner_id or self.owner_id
            if message.is_busy or message.batch:
                self.active = now
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
        return 0.0 if self.heard_at is None else time.monotonic() - self.heard_at

    @property
    def report(self) -> Report:
        """What all processes of this slot have done."""
        return self._before + self._now

    def line(self) -> ProcessFigures:
        """The state of this slot now."""
        pid = self.process.pid if self.process is not None else None
        jobs = self.report.done + self.report.enqueued
        return ProcessFigures(self.number, pid, self._batch, jobs, self._rate.at(jobs), self.restarts)


class Rate:
    """The rate at which a count has grown lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def at(self, count: int) -> float:
        """The rate per second up to this count, now."""
        now = time.monotonic()
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0

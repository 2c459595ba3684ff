"""Child: one place for a process, and the processes that fill it one after the other."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Final

from claimjobs.backoff import Backoff
from claimjobs.report import Report
from claimjobs.signals import held_back
from claimjobs.workers.progress import Line
from claimjobs.workers.supervisor_pipe import Began, Ended, GaveUp, Message, Order, Progress, Registered

SPAWN: Final[SpawnContext] = multiprocessing.get_context("spawn")
"""A forked child would share its parent's database connections; a spawned one starts with none."""

FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 10.0
"""Seconds before a process that died is replaced; doubled while its replacements die young."""
YOUNG: Final = 10.0
"""Seconds a process must live for its death to count as a new misfortune."""
STRIKES: Final = 3
"""How often processes may end here by the same lasting error, with no batch in between, until no other is tried."""
WINDOW: Final = 3.0
"""Seconds that a rate is measured over."""


class ProcessSlot:
    """A numbered place in a supervisor, with a process in it or waiting for one."""

    def __init__(
        self, number: int, target: Callable[..., None], arguments: Callable[[Report], tuple[Any, ...]]
    ) -> None:
        """`arguments` gives those of the next process here, after what was done here already."""
        self.number = number
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.owner_id: int | None = None
        self.finished = False
        """Ended of its own accord: no replacement is due."""
        self.was_ready = False
        """Whether a process here has registered, or has ended."""
        self.ending = False
        """Told to stop: its end, however it comes, is the end."""
        self.gave_up: GaveUp | None = None
        """The error by which processes end here again and again: no replacement would do better."""
        self.restarts = 0
        self.said_goodbye = False
        """Whether the last process here came to its end: not so where a handler ended it, with whatever exit code."""
        self.busy = False
        """Whether it has a batch in hand, if it tells."""
        self.active = -math.inf
        """When it last had one, by the machine's monotonic clock."""
        self._target = target
        self._arguments = arguments
        self._before = Report()
        self._now = Report()
        self._batch = 0
        self._errors: list[str] = []
        self._due = 0.0
        self._young_deaths = 0
        self._born = 0.0
        self._rate = Rate()

    # --- life and death --------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a process should be started here now."""
        return self.process is None and not self.finished and time.monotonic() >= self._due

    def start(self) -> None:
        """Put a new process here."""
        self.pipe, theirs = SPAWN.Pipe(duplex=True)
        # No daemon: the parent's exit would terminate it with the batch in hand; its lifeline ends it in order.
        self.process = SPAWN.Process(target=self._target, args=(*self._arguments(self.report), theirs), daemon=False)
        resource_tracker.ensure_running()  # its own start, which is part of the first child's, lets signals through
        with held_back():
            self.process.start()
        theirs.close()
        self._born = time.monotonic()
        self.said_goodbye = False

    def reap(self) -> int:
        """Take leave of a process that has ended, and of which all messages were read; its exit code."""
        code = self._bury()
        self.was_ready = True
        self.busy = False
        self._before, self._now = self._before + self._now, Report()
        return code

    def _bury(self) -> int:
        code = 0
        if self.process is not None:
            self.process.join()
            code = self.process.exitcode or 0
            self.process.close()
        if self.pipe is not None:
            self.pipe.close()
        self.process = self.pipe = None
        return code

    def replace_later(self) -> float:
        """Plan a replacement; seconds until then."""
        self._young_deaths = 0 if time.monotonic() - self._born > YOUNG else self._young_deaths + 1
        pause = Backoff(FIRST_WAIT, LONGEST_WAIT, least=1.0).after(self._young_deaths)
        self._due = time.monotonic() + pause
        self.restarts += 1
        return pause

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self.process.kill()

    # --- talking ---------------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Tell the process what to do; one that is just dying does not hear it."""
        with contextlib.suppress(OSError):
            if self.pipe is not None:
                self.pipe.send(order)

    def messages(self) -> Iterator[Message]:
        """What the process has said since the last time."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe is not None and self.pipe.poll():
                yield self.pipe.recv()

    def take(self, message: Message) -> None:
        """Remember what the process said of itself."""
        if isinstance(message, Registered):
            self.owner_id = message.owner_id
            self.was_ready = True
        elif isinstance(message, Began):
            self.busy = True
        elif isinstance(message, Ended):
            self.said_goodbye = True
        elif isinstance(message, Progress):
            self.busy, self.active = False, time.monotonic()
            self._now = message.report
            self.owner_id = message.owner_id or self.owner_id
            self._batch = message.batch or self._batch
            self._errors = [] if message.batch else self._errors
        elif isinstance(message, GaveUp):
            self._errors = [kind for kind in self._errors if kind == message.kind] + [message.kind]
            if message.at_once or len(self._errors) >= STRIKES:
                self.gave_up = message

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """What was done here, all processes together."""
        return self._before + self._now

    def line(self) -> Line:
        """This place at this moment."""
        pid = self.process.pid if self.process is not None else None
        jobs = self.report.done + self.report.enqueued
        return Line(self.number, pid, self._batch, jobs, self._rate.at(jobs), self.restarts)


class Rate:
    """How fast a count has grown lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def at(self, count: int) -> float:
        """The rate per second up to this count, now."""
        now = self._clock()
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0

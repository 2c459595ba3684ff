"""Executors: call a handler for many jobs at once, in threads or in an event loop.

They differ in how a call is made. What becomes of the jobs is decided in `job_pool`, in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from claimjobs.callables import COROUTINE, deferred, require_finished
from claimjobs.claim.strategy import ClaimResult
from claimjobs.errors import BadHandler
from claimjobs.job import Job
from claimjobs.log_events import LOOP_BLOCKED

WATCH_EVERY: Final = 0.5
"""Seconds between two looks at whether the event loop runs."""
BLOCKED: Final = 0.5
"""Seconds by which such a look may be late. Other work of a busy machine delays it by less."""
END: Final = 5.0
"""Seconds for the tasks of an event loop to end when they are cancelled."""

log = logging.getLogger("claimjobs.executors")


class PooledJob:
    """A job of the pool, from its claim to its settle."""

    __slots__ = ("begun", "cancelled", "claim", "error", "job", "result", "since")

    def __init__(self, claim: ClaimResult, since: float) -> None:
        self.claim, self.since = claim, since
        """`since`: when it was claimed, by this machine's clock."""
        self.job: Job = claim.jobs[0]
        self.begun = False
        """Whether a handler has begun it."""
        self.cancelled = False
        """Whether nobody waits for its end any more: it was released, or given to others."""
        self.error: BaseException | None = None
        """What the handler raised."""
        self.result: Any = None
        """What it returned."""


class Listener(Protocol):
    """What an executor tells of each job, in any thread."""

    def begin(self, item: PooledJob) -> bool:
        """A handler is about to begin this job. Returns False if it must not, because the job is not held any more."""

    def end(self, item: PooledJob) -> None:
        """The handler has ended; `item.error` is what it raised."""


class Executor(ABC):
    """Calls a function of a job for at most `count` jobs at once."""

    def __init__(self, function: Callable[[Job], Any], name: str, count: int, listener: Listener) -> None:
        self._function, self._name, self._count, self._listener = function, name, count, listener

    @abstractmethod
    def start(self, items: Iterable[PooledJob]) -> None:
        """Handle these, in their order, after those that wait already."""

    @abstractmethod
    def take_back(self) -> list[PooledJob]:
        """Those that no handler has begun. They are not handled any more."""

    @abstractmethod
    def give_up(self, item: PooledJob) -> None:
        """Nobody waits for the end of this one any more: cancel it if that is possible. Another one may begin."""

    @abstractmethod
    def close(self) -> None:
        """Begin nothing any more, and cancel what can be cancelled."""


class Threads(Executor):
    """Calls a plain function in `count` threads. A call cannot be cancelled: its thread ends after it."""

    def __init__(self, function: Callable[[Job], Any], name: str, count: int, listener: Listener) -> None:
        super().__init__(function, name, count, listener)
        self._waiting: SimpleQueue[PooledJob | None] = SimpleQueue()
        self._threads = 0

    def start(self, items: Iterable[PooledJob]) -> None:
        for item in items:
            self._waiting.put(item)
        while self._threads < self._count:
            self._begin_thread()

    def take_back(self) -> list[PooledJob]:
        waiting: list[PooledJob] = []
        with contextlib.suppress(Empty):
            while True:
                item = self._waiting.get_nowait()
                if item is not None:
                    waiting.append(item)
        return waiting

    def give_up(self, item: PooledJob) -> None:
        """Another thread takes the place of the one that hangs, which ends after this call."""
        self._threads -= 1
        self._begin_thread()

    def close(self) -> None:
        for _ in range(self._threads):
            self._waiting.put(None)

    def _begin_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name=f"claimjobs {self._name}", daemon=True).start()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not self._listener.begin(item):
                continue
            try:
                item.result = self._function(item.job)
                require_finished(item.result, self._name)
            except BaseException as error:  # SystemExit, too: it ends no thread of the pool
                item.error = error
            self._listener.end(item)
            if item.cancelled:
                return


class EventLoop(Executor):
    """Awaits an `async def` function in `count` tasks of one event loop, which has a thread of its own."""

    def __init__(self, function: Callable[[Job], Awaitable[Any]], name: str, count: int, listener: Listener) -> None:
        super().__init__(function, name, count, listener)
        self._waiting: deque[PooledJob] = deque()
        self._tasks: dict[PooledJob, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"claimjobs {name}", daemon=True)
        self._thread.start()

    def start(self, items: Iterable[PooledJob]) -> None:
        self._waiting.extend(items)
        self._loop.call_soon_threadsafe(self._fill)

    def take_back(self) -> list[PooledJob]:
        waiting = []
        with contextlib.suppress(IndexError):
            while True:
                waiting.append(self._waiting.popleft())
        return waiting

    def give_up(self, item: PooledJob) -> None:
        self._loop.call_soon_threadsafe(self._cancel, item)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(END)

    # --- in the thread of the loop -----------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # it cancels what is left at its end
            main = runner.get_loop().create_task(self._until_ended())
            while not main.done():
                # A task that a handler has made ends the loop by these. The handler gets them, too, where it awaits it.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_until_complete(main)

    async def _until_ended(self) -> None:
        watch = asyncio.create_task(self._watch())
        await self._ended.wait()
        for task in (watch, *self._tasks.values()):
            task.cancel()

    def _fill(self) -> None:
        """Begin as many of those that wait as there may be."""
        while len(self._tasks) < self._count and not self._ended.is_set():
            try:
                item = self._waiting.popleft()
            except IndexError:
                return
            if self._listener.begin(item):
                self._tasks[item] = self._loop.create_task(self._handle(item), name=f"claimjobs {self._name}")

    async def _handle(self, item: PooledJob) -> None:
        try:
            item.result = await self._function(item.job)
        except BaseException as error:  # a task that is cancelled must tell it, and the loop goes on after SystemExit
            item.error = error
        self._listener.end(item)
        self._tasks.pop(item, None)
        self._fill()

    def _cancel(self, item: PooledJob) -> None:
        task = self._tasks.pop(item, None)  # one that does not end takes no place
        if task is not None:
            task.cancel()
            self._fill()

    async def _watch(self) -> None:
        """Warn once if the handler keeps the loop from its other tasks."""
        while True:
            before = self._loop.time()
            await asyncio.sleep(WATCH_EVERY)
            late = self._loop.time() - before - WATCH_EVERY
            if late > BLOCKED:
                break
        words = "%s kept its event loop from all other jobs for %.1f s: await what takes long, or run it in a thread"
        log.warning(words, self._name, late, extra={"event": LOOP_BLOCKED, "seconds": round(late, 1)})


def executor_of(function: Any, count: int, listener: Listener) -> Executor:
    """The executor of a function of a job. Raises BadHandler for one that cannot be called so."""
    name = getattr(function, "__qualname__", type(function).__name__)
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise BadHandler(
            f"{name} would be handled in the thread of a running event loop, which it blocks: "
            "`await asyncio.to_thread(queue.work, ...)`, or loop over `queue.abatches()`"
        )
    if not callable(function):
        raise BadHandler(f"the handler is no function but {type(function).__name__}: give a function of a job")
    kind = deferred(function)
    if kind is None:
        return Threads(function, name, count, listener)
    if kind == COROUTINE:
        return EventLoop(function, name, count, listener)
    raise BadHandler(f"{name} is {kind}, of which a call runs nothing: give a plain function or an `async def`")

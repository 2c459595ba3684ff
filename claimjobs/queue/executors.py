"""Executors call the handler of a JobPool: in threads, or in an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from claimjobs.callables import checked_kind, require_finished
from claimjobs.claim.strategy import ClaimResult
from claimjobs.errors import BadHandler
from claimjobs.job import Job
from claimjobs.log_events import LOOP_BLOCKED
from claimjobs.signals import end_if_forked

WATCH_EVERY: Final = 0.5
"""Seconds between two checks of whether the event loop runs."""
BLOCKED_SECONDS: Final = 0.5
"""Seconds by which such a check may be late. Other work of a busy machine delays it by less."""
TASKS_END_SECONDS: Final = 5.0
"""Seconds for the tasks of an event loop to end when they are cancelled."""

log = logging.getLogger("claimjobs.executors")


@dataclass(slots=True, eq=False)
class PooledJob:
    """A job of the pool, from its claim to its settle."""

    claim: ClaimResult
    job: Job
    since: float
    """When the job was claimed, by this machine's clock."""
    begun: bool = False
    """Whether a handler has begun it."""
    cancelled: bool = False
    """Whether nobody waits for its end any more: it was released, or given to others. It gets no outcome."""
    error: BaseException | None = None
    """What the handler raised."""
    result: Any = None
    """What the handler returned."""


class Pool(Protocol):
    """What an executor tells of its jobs, in its threads."""

    def begin_job(self, item: PooledJob) -> bool:
        """A handler is about to begin this job, and the time until it hangs begins. Returns False if the handler must
        not: the job is not held any more, or it is to be released, after `stop` and while the queue is paused.
        """

    def end_job(self, item: PooledJob) -> None:
        """The handler has ended or raised `item.error`. However long the job waits for its settle, it does not hang."""


class Threads:
    """Calls a plain function in `count` threads. A call cannot be cancelled: its thread ends after it."""

    is_blocked = False
    """Whether no job can begin now."""

    def __init__(self, function: Callable[[Job], Any], name: str, count: int, pool: Pool) -> None:
        self._function, self._name, self._count, self._pool = function, name, count, pool
        self._waiting: SimpleQueue[PooledJob | None] = SimpleQueue()
        self._context = contextvars.copy_context()
        """What each call begins with, as if the caller of the pool called the function."""
        self._threads, self._process = 0, os.getpid()

    def start(self, items: Iterable[PooledJob]) -> None:
        """Handle these, in their order, after those that wait already."""
        for item in items:
            self._waiting.put(item)
        while self._threads < self._count:
            self._threads += 1
            threading.Thread(target=self._run, name=f"claimjobs {self._name}", daemon=True).start()

    def take_back(self) -> list[PooledJob]:
        """Take back the jobs that no handler has begun."""
        waiting = list[PooledJob | None]()
        with suppress(Empty):
            while True:
                waiting.append(self._waiting.get_nowait())
        return [item for item in waiting if item is not None]

    def give_up(self, item: PooledJob) -> None:
        """Another thread replaces the one that hangs, which ends after this call."""
        self._threads -= 1
        self.start(())

    def close(self) -> None:
        """Begin nothing any more."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not self._pool.begin_job(item):
                continue
            try:
                item.result = self._context.copy().run(self._function, item.job)
                require_finished(item.result, self._name)
            except BaseException as error:  # SystemExit, too: it ends no thread of the pool
                end_if_forked(self._process, error)
                item.error = error
            self._pool.end_job(item)
            if item.cancelled:
                return


class EventLoop:
    """Awaits an `async def` function in `count` tasks of one event loop, which has a thread of its own."""

    def __init__(self, function: Callable[[Job], Awaitable[Any]], name: str, count: int, pool: Pool) -> None:
        self._function, self._name, self._count, self._pool = function, name, count, pool
        self._waiting: deque[PooledJob] = deque()
        self._tasks: dict[PooledJob, asyncio.Task[None]] = {}
        self._context = contextvars.copy_context()
        """What each task begins with. Else it were that of the task that ended before."""
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ran_at, self._has_warned = time.monotonic(), False
        self._thread = threading.Thread(target=self._run, name=f"claimjobs {name}", daemon=True)
        self._thread.start()

    def start(self, items: Iterable[PooledJob]) -> None:
        self._waiting.extend(items)
        self._loop.call_soon_threadsafe(self._fill)

    def take_back(self) -> list[PooledJob]:
        waiting = []
        with suppress(IndexError):
            while True:
                waiting.append(self._waiting.popleft())
        return waiting

    @property
    def is_blocked(self) -> bool:
        return time.monotonic() - self._ran_at > WATCH_EVERY + BLOCKED_SECONDS

    def give_up(self, item: PooledJob) -> None:
        self._loop.call_soon_threadsafe(self._cancel, item)

    def close(self) -> None:
        """Begin nothing any more, and cancel all tasks."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(TASKS_END_SECONDS)

    def _run(self) -> None:
        """Called in the thread of the event loop, as all methods below."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # it cancels what is left at its end
            main = runner.get_loop().create_task(self._until_ended())
            while not (main.done() and self._ended.is_set()):
                if main.done():  # a handler has cancelled all tasks of the loop
                    main = self._loop.create_task(self._until_ended())
                # A task that a handler has made ends the loop by the first two. The handler gets them, too, where it
                # awaits it. RuntimeError: a handler has stopped the loop.
                with suppress(SystemExit, KeyboardInterrupt, RuntimeError, asyncio.CancelledError):
                    self._loop.run_until_complete(main)

    async def _until_ended(self) -> None:
        """Wait for `close`. Meanwhile warn once if the handler keeps the loop from its other tasks."""
        while not self._ended.is_set():
            self._ran_at = time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), WATCH_EVERY)
            late = time.monotonic() - self._ran_at - WATCH_EVERY
            if late > BLOCKED_SECONDS and not self._has_warned:
                self._has_warned = True
                words = "%s kept its event loop from all other jobs for %.1f s: await what takes long, or use a thread"
                fields = {"event": LOOP_BLOCKED, "seconds": round(late, 1)}
                log.warning(words, self._name, late, extra=fields)
        for task in self._tasks.values():
            task.cancel()

    def _fill(self) -> None:
        """Begin as many of those that wait as there may be."""
        while len(self._tasks) < self._count and not self._ended.is_set():
            try:
                item = self._waiting.popleft()
            except IndexError:
                return
            if self._pool.begin_job(item):
                self._tasks[item] = self._loop.create_task(
                    self._handle(item), name=f"claimjobs {self._name}", context=self._context.copy()
                )

    async def _handle(self, item: PooledJob) -> None:
        try:
            item.result = await self._function(item.job)
            require_finished(item.result, self._name)
        except BaseException as error:  # a task that is cancelled must tell it, and the loop goes on after SystemExit
            item.error = error
        self._pool.end_job(item)
        self._tasks.pop(item, None)
        self._fill()

    def _cancel(self, item: PooledJob) -> None:
        task = self._tasks.pop(item, None)  # one that does not end is not counted
        if task is not None:
            task.cancel()
            self._fill()


def executor_of(function: Any, count: int, pool: Pool) -> Threads | EventLoop:
    """The executor of a function of a job. Raises BadHandler for one that cannot be called so."""
    name = getattr(function, "__qualname__", type(function).__name__)
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise BadHandler(
            f"{name} would be handled in the thread of a running event loop, which it blocks: "
            "`await asyncio.to_thread(queue.work, ...)` within `stop_on_signals(queue)`, or with `queue.stop()` in a "
            "`finally`, because a cancel does not end a thread; or loop over `queue.abatches()`"
        )
    if checked_kind(function, f"handler {name!r}") is None:
        return Threads(function, name, count, pool)
    return EventLoop(function, name, count, pool)

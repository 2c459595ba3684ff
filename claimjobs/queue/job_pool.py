"""JobPool: keeps many jobs going at once. It claims ahead, and settles outcomes in groups as they come.

An executor calls the handler, in threads or in an event loop. All that is sent to the database is sent in the thread
that runs the loop. Each job is held by itself, so a slow one delays no other, and only one that hangs is given up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.batch import Batch
from claimjobs.batch.hold import Following
from claimjobs.callables import checked_kind, require_finished
from claimjobs.claim.strategy import NOTHING, ClaimResult
from claimjobs.errors import BadHandler, ClaimjobsError, NothingDone, OutcomeRefused, UnfitTable
from claimjobs.job import Done, Job
from claimjobs.key_text import text_of
from claimjobs.log_events import HANDLER_FAILED, LOOP_BLOCKED
from claimjobs.options import Backoff
from claimjobs.queue.batch_loop import FRUITLESS, BatchLoop, Drain, fields_of, log, log_lost, log_refused
from claimjobs.queue.consumer import Consumer
from claimjobs.signals import Cancelled
from claimjobs.table.predicates import Where

TOGETHER: Final = 0.02
"""Seconds for which the first outcome of a group waits for others."""
CHECK: Final = 1.0
"""The longest pause in seconds between two checks of which jobs are still held."""
FIRST_PAUSE: Final = 0.02
"""Seconds until the next claim after an empty one, while jobs are in hand; doubled for each further one."""

WATCH_EVERY: Final = 0.5
"""Seconds between two checks of whether the event loop runs."""
BLOCKED: Final = 0.5
"""Seconds by which such a check may be late. Other work of a busy machine delays it by less."""
END: Final = 5.0
"""Seconds for the tasks of an event loop to end when they are cancelled."""

executor_log = logging.getLogger("claimjobs.executors")


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


class PoolObserver:
    """Is told what a pool does. This one ignores it."""

    def note_held(self, items: Collection[PooledJob]) -> None:
        """Called when other jobs are in hand: with all of these."""

    def settled(self, batch: Batch) -> None:
        """Called when a group of jobs is settled."""


class JobPool(BatchLoop):
    """A loop that hands out its batches job by job. At most two jobs for each place, and one batch, are in hand."""

    def __init__(
        self,
        consumer: Consumer,
        handler: Callable[[Job], Any],
        size: int,
        where: Where,
        *,
        count: int,
        drain: Drain,
        poll: float,
        idle: float | None,
        observer: PoolObserver,
    ) -> None:
        """`count`: how many jobs are handled at once. The others are those of BatchLoop. Raises BadHandler."""
        super().__init__(consumer, size, where, drain=drain, poll=poll, idle=idle)
        self._hold, self._observer = consumer.hold, observer
        self._table = consumer.access.backend.source.name
        self._most = 2 * count + size
        self._size = max(size, count // 2)
        """How many are claimed at once, when there is room for them, and how many outcomes are worth a settle."""
        self._following = Following(consumer.plans, self._size, where, self._control)
        self._items: set[PooledJob] = set()
        self._ended: deque[PooledJob] = deque()
        """The jobs whose handlers have ended, in any thread, and that are not settled yet."""
        self._wake_at: float = math.inf
        """How many ended jobs wake the thread of the loop."""
        self._backoff, self._claim_at = Backoff(FIRST_PAUSE, max(poll, FIRST_PAUSE)), 0.0
        self._looked_at = 0.0
        self._fruitless = 0
        self._is_cancelled = False
        self._executor = executor_of(handler, count, self)

    # --- what executors tell, in their threads -----------------------------------------------------------

    def begin_job(self, item: PooledJob) -> bool:
        """A handler is about to begin this job, and the time until it hangs begins. Returns False if the handler must
        not: the job is not held any more, or it is to be released, after `stop` and while the queue is paused.
        """
        self._hold.progress(item.claim)
        must_not = item.job.is_lost or self._control.stopping or self._control.paused
        item.begun = not must_not and self._hold.is_held(item.claim)
        if not item.begun:
            item.cancelled = True  # no handler decides it, so its settle writes no outcome
            self.end_job(item)
        return item.begun

    def end_job(self, item: PooledJob) -> None:
        """The handler has ended; `item.error` is what it raised. However long the job waits for its settle, it does not
        hang.
        """
        self._hold.rest(item.claim)
        self._ended.append(item)
        if len(self._ended) >= self._wake_at:
            self._control.wake()

    # --- the loop ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Handle jobs until the loop ends."""
        try:
            for batch in self._batches():
                self._hold = self._consumer.made_hold or self._hold  # a new one, if the Queue was closed meanwhile
                since = time.monotonic()
                items = [PooledJob(claim, job, since) for claim in batch.split(self) for job in claim.jobs]
                self._items.update(items)
                self._observer.note_held(self._items)
                self._executor.start(items)
        except (Cancelled, KeyboardInterrupt):
            self._is_cancelled = True
            raise
        finally:
            self.close()

    def next_batch(self) -> Batch:
        """The next claim, when there is room for it. It is empty only if no job is in hand, or after `stop`."""
        while not self._control.stopping:
            if self._control.paused:
                self._release(self._executor.take_back())
            if self._may_claim:
                batch = self._consumer.claim(self._size, self._where, ahead=True)
                if batch:
                    self._backoff.reset()
                    self._claim_at = 0.0
                    return batch
                self._pause_claims()
                if not self._items:
                    return batch
            self._wait()
            following = self._settle()
            if following:
                return following
        return self._consumer.batch(NOTHING)

    def close(self) -> None:
        """Release the jobs that no handler has begun, wait for those that were begun, and settle them."""
        try:
            with closing(self._executor):
                super().close()
                self._release(self._executor.take_back())
                while self._items and not (self._is_cancelled or self._control.expired):
                    if not self._ended:
                        time.sleep(TOGETHER)  # after `stop` no wait for a wake lasts
                    self._give_up_lost()
                    self._settle()
        finally:
            self._is_cancelled = True  # the executor was closed: what it cancelled has ended
            with suppress(ClaimjobsError, sa.exc.SQLAlchemyError):  # else they are released when the Queue is closed
                self._settle()
                self._release(list(self._items))

    @property
    def _is_low(self) -> bool:
        """Whether there is room that is worth a claim."""
        return self._most - len(self._items) >= self._size

    @property
    def _may_claim(self) -> bool:
        """Whether jobs may be claimed now. A handler that blocks its event loop keeps all others from the new ones."""
        is_due = not self._items or (self._is_low and time.monotonic() >= self._claim_at)
        return is_due and not self._executor.is_blocked

    def _pause_claims(self) -> None:
        """The next claim waits, while jobs are in hand. Without any, the loop itself waits."""
        self._claim_at = time.monotonic() + self._backoff.pause()

    # --- waiting -----------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until a group of outcomes is complete, until a claim is due, or until the queue is told something."""
        if not self._ended:
            claim_in = max(0.0, self._claim_at - time.monotonic()) if self._is_low else CHECK
            self._wait_for(1, min(CHECK, claim_in))
        if self._ended:
            self._wait_for(min(self._size, len(self._items)), TOGETHER)
        self._give_up_lost()

    def _wait_for(self, ended: int, seconds: float) -> None:
        self._control.clear_wake()
        self._wake_at = ended
        if len(self._ended) < ended:  # after `_wake_at` was set: whoever ends now wakes this thread
            self._control.woken(seconds)
        self._wake_at = math.inf

    def _give_up_lost(self) -> None:
        """Wait no more for jobs that were cancelled, given to others because their handler hangs, or released at a
        deadline. It looks for them now and then."""
        if time.monotonic() - self._looked_at < CHECK:
            return
        self._looked_at = time.monotonic()
        begun = [item for item in self._items if item.begun]
        lost = [item for item in begun if item.job.is_lost or not self._hold.is_held(item.claim)]
        ended = set(self._ended)
        for item in lost:
            if item not in ended:
                item.cancelled = True
                self._executor.give_up(item)
                self._ended.append(item)
        if lost and self._executor.is_blocked:  # by a handler that hangs: nobody would begin the jobs that wait
            self._release(self._executor.take_back())

    # --- settling ----------------------------------------------------------------------------------------

    def _settle(self) -> Batch | None:
        """Settle the jobs whose handlers have ended. Returns what was claimed with them; None: nothing."""
        groups = self._taken([self._ended.popleft() for _ in range(len(self._ended))])
        for items in groups:
            self._settle_group(items)
        if not groups or self._following is None:
            return None
        self._idleness.worked()
        self._observer.note_held(self._items)
        claimed = self._following.take()
        return self._consumer.batch(claimed, ahead=True) if self._hold.take_following(claimed) else None

    def _release(self, items: Iterable[PooledJob]) -> None:
        for some in self._taken(items):
            for item in some:
                item.cancelled = True
            claimed = self._hold.join([item.claim for item in some])
            if claimed.jobs:
                self._consumer.batch(claimed, since=some[0].since).settle()

    def _taken(self, items: Iterable[PooledJob]) -> Collection[list[PooledJob]]:
        """Those of these jobs that were in hand, and are not any more: a group for each owner that has claimed some."""
        groups: defaultdict[int, list[PooledJob]] = defaultdict(list)
        for item in items:
            if item in self._items:  # else it was given up before it ended
                self._items.discard(item)
                groups[item.claim.owner].append(item)
        return groups.values()

    def _settle_group(self, items: list[PooledJob]) -> None:
        claimed = self._hold.join([item.claim for item in items])
        held = set(claimed.jobs)
        lost = [item.job for item in items if item.job not in held]
        self._consumer.access.report.lost += len(lost)
        if claimed.jobs:
            since = min(item.since for item in items)
            batch = self._consumer.batch(claimed, self._following if self._may_claim else None, since=since)
            unfit: UnfitTable | None = None
            try:
                with batch:
                    unfit = self._decide(batch, [item for item in items if item.job in held])
            except OutcomeRefused as error:
                log_refused(self._table, batch, error)
            self._note_fruitless(batch, unfit)
            lost.extend(batch.lost)
            self._observer.settled(batch)
        log_lost(self._table, lost)

    def _decide(self, batch: Batch, items: Iterable[PooledJob]) -> UnfitTable | None:
        """Give each job its outcome. One whose handler was interrupted gets none, and is released; so is one whose
        failure the table cannot store: returns why.
        """
        unfit, done = None, list[Job]()
        interrupts = (Cancelled, asyncio.CancelledError) if self._is_cancelled else Cancelled
        for item in items:
            if item.cancelled or isinstance(item.error, interrupts):
                continue
            try:
                if item.error is not None:
                    batch.fail(item.job, item.error)
                elif isinstance(item.result, Done):
                    batch.done(item.job, **item.result.columns)
                else:
                    done.append(item.job)
            except UnfitTable as error:
                unfit = error
            except ValueError as error:  # what it raised asks for a retry at no time, or it returned other columns
                batch.fail(item.job, error if item.error is None else f"{text_of(item.error)}; {error}")
        if done:
            batch.done(*done)
        return unfit

    def _note_fruitless(self, batch: Batch, unfit: UnfitTable | None) -> None:
        """Pause after a group of which a failure could not be stored. Raises NothingDone if a drain gets nowhere."""
        self._fruitless = self._fruitless + 1 if unfit and batch.outcomes.only_released else 0
        if unfit is None:
            return
        log.error("%s", unfit, extra=fields_of(HANDLER_FAILED, self._table, batch, unfit))
        self._pause_claims()
        if self._fruitless >= FRUITLESS and (self._drain or self._control.draining):
            raise NothingDone(f"no job of {FRUITLESS} batches in a row was done, because of this: {unfit}") from unfit


# --- executors ---------------------------------------------------------------------------------------------------


class Threads:
    """Calls a plain function in `count` threads. A call cannot be cancelled: its thread ends after it."""

    is_blocked = False
    """Whether no job can begin now."""

    def __init__(self, function: Callable[[Job], Any], name: str, count: int, pool: JobPool) -> None:
        self._function, self._name, self._count, self._pool = function, name, count, pool
        self._waiting: SimpleQueue[PooledJob | None] = SimpleQueue()
        self._threads = 0

    def start(self, items: Iterable[PooledJob]) -> None:
        """Handle these, in their order, after those that wait already."""
        for item in items:
            self._waiting.put(item)
        while self._threads < self._count:
            self._begin_thread()

    def take_back(self) -> list[PooledJob]:
        """Take back the jobs that no handler has begun."""
        waiting = list[PooledJob | None]()
        with suppress(Empty):
            while True:
                waiting.append(self._waiting.get_nowait())
        return [item for item in waiting if item is not None]

    def give_up(self, item: PooledJob) -> None:
        """Another thread takes the place of the one that hangs, which ends after this call."""
        self._threads -= 1
        self._begin_thread()

    def close(self) -> None:
        """Begin nothing any more."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _begin_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name=f"claimjobs {self._name}", daemon=True).start()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not self._pool.begin_job(item):
                continue
            try:
                item.result = self._function(item.job)
                require_finished(item.result, self._name)
            except BaseException as error:  # SystemExit, too: it ends no thread of the pool
                item.error = error
            self._pool.end_job(item)
            if item.cancelled:
                return


class EventLoop:
    """Awaits an `async def` function in `count` tasks of one event loop, which has a thread of its own."""

    def __init__(self, function: Callable[[Job], Awaitable[Any]], name: str, count: int, pool: JobPool) -> None:
        self._function, self._name, self._count, self._pool = function, name, count, pool
        self._waiting: deque[PooledJob] = deque()
        self._tasks: dict[PooledJob, asyncio.Task[None]] = {}
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
        return time.monotonic() - self._ran_at > WATCH_EVERY + BLOCKED

    def give_up(self, item: PooledJob) -> None:
        self._loop.call_soon_threadsafe(self._cancel, item)

    def close(self) -> None:
        """Begin nothing any more, and cancel all tasks."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(END)

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
            if late > BLOCKED and not self._has_warned:
                self._has_warned = True
                words = "%s kept its event loop from all other jobs for %.1f s: await what takes long, or use a thread"
                fields = {"event": LOOP_BLOCKED, "seconds": round(late, 1)}
                executor_log.warning(words, self._name, late, extra=fields)
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
                self._tasks[item] = self._loop.create_task(self._handle(item), name=f"claimjobs {self._name}")

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
        task = self._tasks.pop(item, None)  # one that does not end takes no place
        if task is not None:
            task.cancel()
            self._fill()


def executor_of(function: Any, count: int, pool: JobPool) -> Threads | EventLoop:
    """The executor of a function of a job. Raises BadHandler for one that cannot be called so."""
    name = getattr(function, "__qualname__", type(function).__name__)
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise BadHandler(
            f"{name} would be handled in the thread of a running event loop, which it blocks: "
            "`await asyncio.to_thread(queue.work, ...)`, or loop over `queue.abatches()`"
        )
    if checked_kind(function, f"handler {name!r}") is None:
        return Threads(function, name, count, pool)
    return EventLoop(function, name, count, pool)

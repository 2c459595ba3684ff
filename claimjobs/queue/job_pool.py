"""JobPool: keeps many jobs going at once. It claims ahead, and settles outcomes in groups as they come.

An executor (executors.py) calls the handler, in threads or in an event loop. All that is sent to the database is sent
in the thread that runs the loop. Each job is held by itself, so a slow one delays no other, and only one that hangs is
given up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from typing import Any, Final

import sqlalchemy as sa

from claimjobs.batch.batch import Batch
from claimjobs.batch.hold import NextClaim
from claimjobs.claim.strategy import NOTHING
from claimjobs.errors import ClaimjobsError, NothingDone, OutcomeRefused, UnfitTable
from claimjobs.job import Done, Job
from claimjobs.key_text import text_of
from claimjobs.log_events import HANDLER_FAILED
from claimjobs.options import Backoff
from claimjobs.queue.batch_loop import VAIN_BATCHES, BatchLoop, Drain, fields_of, log, log_lost, log_refused
from claimjobs.queue.consumer import Consumer
from claimjobs.queue.executors import PooledJob, executor_of
from claimjobs.signals import Cancelled
from claimjobs.table.predicates import Where

GROUP_SECONDS: Final = 0.02
"""Seconds for which the first outcome of a group waits for others."""
HELD_CHECK_SECONDS: Final = 1.0
"""The longest pause in seconds between two checks of which jobs are still held."""
FIRST_PAUSE: Final = 0.02
"""Seconds until the next claim after an empty one, while jobs are in hand; doubled for each further one."""


class PoolObserver:
    """Is told what a pool does. This one ignores it."""

    def note_held(self, items: Collection[PooledJob]) -> None:
        """Called when other jobs are in hand: with all of these."""

    def settled(self, batch: Batch) -> None:
        """Called when a group of jobs is settled."""


class JobPool(BatchLoop):
    """A loop that hands out its batches job by job. At most twice `concurrency` jobs, and one batch, are in hand."""

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
        self._next_claim = NextClaim(consumer.plans, self._size, where, self._control)
        self._items: set[PooledJob] = set()
        self._ended: deque[PooledJob] = deque()
        """The jobs whose handlers have ended, in any thread, and that are not settled yet."""
        self._wake_at: float = math.inf
        """How many ended jobs wake the thread of the loop."""
        self._backoff, self._claim_at = Backoff(FIRST_PAUSE, max(poll, FIRST_PAUSE)), 0.0
        """The next claim waits until then, while jobs are in hand. Without any, the loop itself waits."""
        self._looked_at = 0.0
        self._fruitless = 0
        self._is_cancelled = False
        self._executor = executor_of(handler, count, self)

    # --- what executors tell, in their threads: see `Pool` -------------------------------------------------

    def begin_job(self, item: PooledJob) -> bool:
        self._hold.progress(item.claim)
        must_not = item.job.is_lost or self._control.stopping or self._control.paused
        item.begun = not must_not and self._hold.is_held(item.claim)
        if not item.begun:
            item.cancelled = True  # no handler decides it, so its settle writes no outcome
            self.end_job(item)
        return item.begun

    def end_job(self, item: PooledJob) -> None:
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
                self._claim_at = time.monotonic() + self._backoff.pause()
                if not self._items:
                    return batch
            self._wait()
            next_claim = self._settle()
            if next_claim:
                return next_claim
        return self._consumer.batch(NOTHING)

    def close(self) -> None:
        """Release the jobs that no handler has begun, wait for those that were begun, and settle them."""
        try:
            with closing(self._executor):
                super().close()
                self._release(self._executor.take_back())
                while self._items and not (self._is_cancelled or self._control.expired):
                    if not self._ended:
                        time.sleep(GROUP_SECONDS)  # after `stop` no wait for a wake lasts
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

    # --- waiting -----------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until a group of outcomes is complete, until a claim is due, or until the queue is told something."""
        if not self._ended:
            claim_in = max(0.0, self._claim_at - time.monotonic()) if self._is_low else HELD_CHECK_SECONDS
            self._wait_for(1, min(HELD_CHECK_SECONDS, claim_in))
        if self._ended:
            self._wait_for(min(self._size, len(self._items)), GROUP_SECONDS)
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
        if time.monotonic() - self._looked_at < HELD_CHECK_SECONDS:
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
        if not groups or self._next_claim is None:
            return None
        self._idleness.worked()
        self._observer.note_held(self._items)
        claimed = self._next_claim.take()
        return self._consumer.batch(claimed, ahead=True) if self._hold.confirm_next(claimed) else None

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
            batch = self._consumer.batch(claimed, self._next_claim if self._may_claim else None, since=since)
            unfit: UnfitTable | None = None
            try:
                with batch:
                    unfit = self._decide(batch, [item for item in items if item.job in held])
            except OutcomeRefused as error:
                log_refused(self._table, batch, error)
            self._fruitless = self._fruitless + 1 if unfit and batch.outcomes.only_released else 0
            if unfit is not None:  # a failure could not be stored
                log.error("%s", unfit, extra=fields_of(HANDLER_FAILED, self._table, batch, unfit))
                self._claim_at = time.monotonic() + self._backoff.pause()
                if self._fruitless >= VAIN_BATCHES and (self._drain or self._control.draining):
                    vain = f"no job of {VAIN_BATCHES} batches in a row was done, because of this: {unfit}"
                    raise NothingDone(vain) from unfit
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

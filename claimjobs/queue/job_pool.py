"""JobPool: keeps many jobs going at once. It claims ahead, and settles outcomes in groups as they come.

An executor calls the handler, in threads or in an event loop. All that is sent to the database is sent in the thread
that runs the loop. Each job is held by itself, so a slow one delays no other, and only one that hangs is given up.
"""

from __future__ import annotations

import logging
import math
import time
from asyncio import CancelledError
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from typing import Final

import sqlalchemy as sa

from claimjobs.backoff import Backoff
from claimjobs.batch.batch import Batch
from claimjobs.batch.hold import Following
from claimjobs.claim.strategy import NOTHING
from claimjobs.database.error_translation import reason
from claimjobs.errors import BadArgument, ClaimjobsError, NothingDone, OutcomeRefused, UnfitTable
from claimjobs.job import Done, Job
from claimjobs.key_text import text_of
from claimjobs.log_events import HANDLER_FAILED, JOBS_LOST, OUTCOME_REFUSED
from claimjobs.queue.consumer import Consumer
from claimjobs.queue.executors import Executor, PooledJob
from claimjobs.signals import Cancelled
from claimjobs.table.predicates import Where

TOGETHER: Final = 0.02
"""Seconds for which the first outcome of a group waits for others."""
CHECK: Final = 1.0
"""The longest pause in seconds between two looks at which jobs are still held."""
FIRST_PAUSE: Final = 0.02
"""Seconds until the next claim after an empty one, while jobs are in hand; doubled for each further one."""
FRUITLESS: Final = 5
"""Groups in a row without any job done or failed, after which draining ends."""
NEVER: Final = math.inf

log = logging.getLogger("claimjobs.consumer")


class PoolObserver:
    """Is told what a pool does. This one ignores it."""

    def note_held(self, items: Collection[PooledJob]) -> None:
        """These jobs are in hand now."""

    def settled(self, batch: Batch) -> None:
        """A group of jobs is settled."""


class JobPool:
    """The jobs of one pool. At most two for each place, and one batch, are in hand.

    It is the source of a BatchLoop, which waits while no job is due, and `take` hands the loop's batches out.
    """

    executor: Executor

    def __init__(
        self, consumer: Consumer, size: int, where: Where, count: int, *, poll: float, observer: PoolObserver
    ) -> None:
        """`count`: how many jobs are handled at once. `size`: of a claim; it is larger if many are handled at once."""
        self._consumer, self._control, self._hold = consumer, consumer.control, consumer.hold
        self.where, self._observer = where, observer
        self._most = 2 * count + size
        self._group = max(size, count // 2)
        """How many are claimed at once, when there is room for them, and how many outcomes are worth a settle."""
        self._following = Following(consumer.plans, self._group, where, self._control)
        self._items: set[PooledJob] = set()
        self._ended: deque[PooledJob] = deque()
        """Those whose handlers have ended, in any thread, and that are not settled yet."""
        self._wake_at: float = NEVER
        """So many of them wake the thread of the loop."""
        self._backoff, self._claim_at = Backoff(FIRST_PAUSE, max(poll, FIRST_PAUSE)), 0.0
        self._looked_at = 0.0
        self._fruitless = 0
        self._has_worked = False
        self.drains = False
        """Whether the loop of this pool ends when no job is due."""
        self._is_cancelled = False

    # --- what executors tell, in their threads -----------------------------------------------------------

    def begin(self, item: PooledJob) -> bool:
        """As `executors.Listener`. The time until it hangs begins."""
        item.begun = True
        self._hold.progress(item.claim)
        if self._holds(item):
            return True
        self.end(item)
        return False

    def end(self, item: PooledJob) -> None:
        """As `executors.Listener`. Such a job does not hang, however long it waits for its settle."""
        self._hold.rest(item.claim)
        self._ended.append(item)
        if len(self._ended) >= self._wake_at:
            self._control.wake()

    # --- the source of a loop ----------------------------------------------------------------------------

    def next_batch(self) -> Batch:
        """The next claim, when there is room for it. It is empty only if no job is in hand, or after `stop`."""
        try:
            while not self._control.stopping:
                if self._control.paused:
                    self._release(self.executor.take_back())
                if self._has_room():
                    batch = self._claim()
                    if batch or not self._items:
                        return batch
                self._wait()
                following = self._settle()
                if following:
                    return following
        except (Cancelled, KeyboardInterrupt):
            self._is_cancelled = True
            raise
        return self._consumer.batch(NOTHING)

    def has_worked(self) -> bool:
        worked, self._has_worked = self._has_worked, False
        return worked

    def take(self, batch: Batch) -> None:
        """Let the handler have the jobs of a batch."""
        try:
            since = time.monotonic()
            items = [PooledJob(part, since) for part in batch.split(self)]
            self._items.update(items)
            self._observer.note_held(self._items)
            self.executor.start(items)
        except (Cancelled, KeyboardInterrupt):
            self._is_cancelled = True
            raise

    def close(self) -> None:
        """Release the jobs that no handler has begun, wait for those that were begun, and settle them."""
        self._following.is_over = True
        try:
            with closing(self.executor):
                self._release(self.executor.take_back())
                while self._items and not (self._is_cancelled or self._control.expired):
                    self._wait()
                    self._settle()
        finally:
            self._is_cancelled = True  # the executor was closed: what it cancelled has ended
            with suppress(ClaimjobsError, sa.exc.SQLAlchemyError):  # else they are released when the Queue is closed
                self._settle()
                self._release(self._items)

    @property
    def _is_low(self) -> bool:
        """Whether there is room that is worth a claim."""
        return self._most - len(self._items) >= self._group

    def _has_room(self) -> bool:
        return not self._items or (self._is_low and time.monotonic() >= self._claim_at)

    def _claim(self) -> Batch:
        batch = self._consumer.claim(self._group, self.where, ahead=True)
        self._note_claim(found=bool(batch))
        return batch

    def _note_claim(self, *, found: bool) -> None:
        """After an empty claim the next one waits, while jobs are in hand. Without any, the loop itself waits."""
        if found:
            self._backoff.reset()
        self._claim_at = 0.0 if found else time.monotonic() + self._backoff.pause()

    # --- waiting -----------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until a group of outcomes is complete, until a claim is due, or until the queue is told something."""
        if not self._ended:
            claim_in = max(0.0, self._claim_at - time.monotonic()) if self._is_low else CHECK
            self._wait_for(1, min(CHECK, claim_in))
        if self._ended and not self._control.stopping:
            self._wait_for(min(self._group, len(self._items)), TOGETHER)
        if time.monotonic() - self._looked_at >= CHECK:
            self._give_up_lost()

    def _wait_for(self, ended: int, seconds: float) -> None:
        self._control.clear_wake()
        self._wake_at = ended
        if len(self._ended) < ended:  # after `_wake_at` was set: whoever ends now wakes this thread
            self._control.woken(seconds)
        self._wake_at = NEVER

    def _give_up_lost(self) -> None:
        """Wait no more for jobs that were cancelled, given to others because their handler hangs, or released at a
        deadline."""
        self._looked_at = time.monotonic()
        lost = [item for item in self._items if item.begun and not self._holds(item)]
        ended = set(self._ended)
        for item in lost:
            if item not in ended:
                item.cancelled = True
                self.executor.give_up(item)
                self._ended.append(item)

    def _holds(self, item: PooledJob) -> bool:
        return not item.job.is_lost and self._hold.is_held(item.claim)

    # --- settling ----------------------------------------------------------------------------------------

    def _settle(self) -> Batch | None:
        """Settle the jobs whose handlers have ended. Returns what was claimed with them; None: nothing."""
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        by_owner: defaultdict[int, list[PooledJob]] = defaultdict(list)
        for item in ended:
            if item in self._items:  # else it was given up before it ended
                self._items.discard(item)
                by_owner[item.claim.owner].append(item)
        for items in by_owner.values():
            self._settle_group(items)
        if not by_owner:
            return None
        self._has_worked = True
        self._observer.note_held(self._items)
        claimed = self._following.take()
        return self._consumer.batch(claimed, ahead=True) if self._hold.take_following(claimed) else None

    def _settle_group(self, items: list[PooledJob]) -> None:
        claimed = self._hold.join([item.claim for item in items])
        held = {job.key for job in claimed.jobs}
        lost = [item.job for item in items if item.job.key not in held]
        if claimed.jobs:
            since = min(item.since for item in items)
            batch = self._consumer.batch(claimed, self._following if self._has_room() else None, since=since)
            self._settle_batch(batch, [item for item in items if item.job.key in held])
            lost.extend(batch.lost)
            self._observer.settled(batch)
        if lost:
            fields = {"event": JOBS_LOST, "queue": self._consumer.access.backend.source.name}
            keys = [job.key for job in lost]
            words = "%d jobs were lost to another owner; their outcome was not written"
            log.warning(words, len(lost), extra={**fields, "keys": keys})

    def _settle_batch(self, batch: Batch, items: list[PooledJob]) -> None:
        unfit: UnfitTable | None = None
        try:
            with batch:
                for item in items:
                    if item.error is not None and not self._was_cancelled(item):
                        unfit = self._fail(batch, item) or unfit
                done = [item for item in items if item.error is None and not item.cancelled]
                if plain := [item.job for item in done if not isinstance(item.result, Done)]:
                    batch.done(*plain)
                for item in done:
                    if isinstance(item.result, Done):
                        self._write_columns(batch, item.job, item.result)
        except OutcomeRefused as error:
            if not (error.others or error.are_duplicates):  # the table may refuse the outcome of every job
                raise
            log.error("%s", error, extra=self._fields(OUTCOME_REFUSED, batch, error))  # noqa: TRY400 - it says all
        self._fruitless = self._fruitless + 1 if unfit and not (batch.outcomes.done or batch.outcomes.errors) else 0
        if unfit is not None:
            log.error("%s", unfit, extra=self._fields(HANDLER_FAILED, batch, unfit))
            self._note_claim(found=False)
            if self._fruitless >= FRUITLESS and (self.drains or self._control.draining):
                raise NothingDone(
                    f"no job of {FRUITLESS} groups in a row was done, because of this: {unfit}"
                ) from unfit

    def _was_cancelled(self, item: PooledJob) -> bool:
        """Whether its handler was interrupted by this pool: then its job is released."""
        return item.cancelled or (self._is_cancelled and isinstance(item.error, CancelledError))

    def _fail(self, batch: Batch, item: PooledJob) -> UnfitTable | None:
        """Make a job failed. If the table cannot store that, it has no outcome, and is released."""
        try:
            batch.fail(item.job, item.error or "")
        except UnfitTable as unfit:
            return unfit
        except ValueError as error:  # what the handler raised asks for a retry at no time
            batch.fail(item.job, f"{text_of(item.error)}; {error}")
        return None

    def _write_columns(self, batch: Batch, job: Job, done: Done) -> None:
        try:
            batch.done(job, **done.columns)
        except BadArgument as error:
            batch.fail(job, error)

    def _release(self, items: Iterable[PooledJob]) -> None:
        """Release jobs without an outcome."""
        by_owner: defaultdict[int, list[PooledJob]] = defaultdict(list)
        for item in list(items):
            self._items.discard(item)
            item.cancelled = True
            by_owner[item.claim.owner].append(item)
        for some in by_owner.values():
            claimed = self._hold.join([item.claim for item in some])
            if claimed.jobs:
                self._consumer.batch(claimed, since=some[0].since).settle()

    def _fields(self, event: str, batch: Batch, error: BaseException) -> dict[str, object]:
        cause = f"{type(error).__name__}: {reason(error)}"
        return {"event": event, "queue": self._consumer.access.backend.source.name, "jobs": len(batch), "error": cause}

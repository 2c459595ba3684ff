"""BatchLoop: claims batch after batch, and waits while no job is due."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, Literal

import sqlalchemy as sa

from claimjobs.batch.batch import Batch
from claimjobs.batch.hold import NextClaim
from claimjobs.database.error_translation import reason
from claimjobs.errors import (
    BadArgument,
    BatchMisused,
    ClaimjobsError,
    OutcomeRefused,
    ReadOnly,
    ServerUnreachable,
    StatementTimedOut,
)
from claimjobs.job import Job
from claimjobs.lease.sleeper import WakeCondition
from claimjobs.log_events import JOBS_LOST, OUTCOME_REFUSED
from claimjobs.options import LARGEST_BATCH, Backoff
from claimjobs.queue.consumer import Consumer
from claimjobs.statements.owners import resumed
from claimjobs.table.predicates import Where

Drain = bool | Literal["retries"]

FIRST_CHECK: Final = 0.05
"""Seconds from the beginning of a sleep to its first check for work; then the pauses double. The first checks find rows
that were just being committed."""
RARER: Final = 3
"""The longest pause between the checks of a sleeping loop, as a multiple of `poll`: a wake comes earlier."""
HEARTBEAT_CHECK_SECONDS: Final = 5.0
"""Seconds after which a sleeping loop checks that the heartbeat's thread is active."""

SHORTEST_POLL: Final = 0.02
"""The pause after the first empty claim, in seconds; it doubles with each one up to `poll`."""
SHORT_SLEEP_SECONDS: Final = 0.1
"""A sleep of fewer seconds was not worth its two writes: the loop stays awake for a while before the next one."""
REST_FACTOR: Final = 10
"""While others have locked all jobs, a loop pauses for at least so many times as long as a claim takes. So claims that
read many locked rows take at most about one part in so many of the time."""
LONGEST_REST: Final = 5.0
"""The longest such pause in seconds."""
LONGEST_WAIT: Final = 1.0
"""The longest time in seconds that a loop stays awake between two sleeps."""

VAIN_BATCHES: Final = 5
"""Batches in a row without any job done or failed, after which draining ends."""

log = logging.getLogger("claimjobs.consumer")


class BatchLoop:
    """The batches of one loop, without empty ones. Iterate over it once.

    Leaving a batch settles it and claims the next one, in one transaction. A batch that the loop does not ask for is
    released when the loop ends, or after half a lease.
    """

    def __init__(
        self,
        consumer: Consumer,
        size: int,
        where: Where,
        *,
        drain: Drain,
        poll: float,
        idle: float | None,
        kept_alive: object = None,
    ) -> None:
        """The loop ends after `control.stop`; with `drain`, or after `control.drain`, when no job is due; and after
        `idle` seconds without a batch. `poll`: the longest pause between two claims, in seconds. `kept_alive`: while
        the loop runs.
        """
        check_size(size)
        if drain not in (True, False, "retries"):
            raise BadArgument(f"drain={drain!r}: choose True, False or 'retries'")
        self._consumer, self._control = consumer, consumer.control
        self._size, self._where = size, where
        self._drain, self._poll, self._kept_alive = drain, poll, kept_alive
        self._next_claim: NextClaim | None = None
        self.is_over = False
        """Whether `end` was called."""
        self._idleness = IdleBackoff(poll, math.inf if idle is None else idle)

    def end(self) -> None:
        """End this loop alone, in any thread; it has a thread of its own. The caller gets no batch any more: one that
        is being claimed is released when the generator is closed.
        """
        self.is_over = True
        self._control.wake()

    def __iter__(self) -> Generator[Batch, None, None]:
        """Raises BatchMisused if the last batch is still open, and the errors of a claim."""
        with contextlib.closing(self):
            yield from self._batches()

    def _batches(self) -> Generator[Batch, None, None]:
        self._idleness.worked()
        while not self._control.stopping:
            began = time.monotonic()
            try:
                batch = self.next_batch()
            except (sa.exc.DBAPIError, ReadOnly, ServerUnreachable, StatementTimedOut):
                if self._control.stopping:
                    return
                raise
            if batch:
                try:
                    yield batch
                except GeneratorExit:
                    if self.is_over:  # whoever called `end` does not get it
                        with contextlib.suppress(ClaimjobsError, sa.exc.SQLAlchemyError):  # else it is released later
                            batch.settle()
                    raise
                if not batch.settled:
                    batch.settle()
                    raise BatchMisused(
                        "the last batch was still open when the next one was asked for, so it was settled: the "
                        "outcomes of its jobs were written, and jobs without one were released; put the work in "
                        "`with batch:`"
                    )
                self._idleness.worked()
            elif self._is_last(batch):
                return
            else:
                rests = batch.contended or self._drains_retries  # it has counted jobs, which may be many
                self._idleness.met_locked_jobs(time.monotonic() - began if rests else 0.0)
                if self._drains_retries or not self._slept(batch):
                    self._control.wait(self._idleness.pause())

    def next_batch(self) -> Batch:
        """The batch that was claimed with the last settle, or else a new claim. It may be empty."""
        hold = self._consumer.hold
        if self._next_claim is None:
            self._next_claim = NextClaim(self._consumer.plans, self._size, self._where, self._control)
        if self._control.paused:
            self._release_next(self._next_claim)
        claimed = self._next_claim.take()
        if hold.confirm_next(claimed):
            return self._consumer.batch(claimed, self._next_claim, hold=hold)
        return self._consumer.claim(self._size, self._where, self._next_claim)

    def close(self) -> None:
        """Release the batch that was not asked for. The settle of an open batch claims no next one any more."""
        if self._next_claim is not None:
            self._next_claim.is_over = True
            self._release_next(self._next_claim)

    def _release_next(self, next_claim: NextClaim) -> None:
        claimed, hold = next_claim.take(), self._consumer.made_hold
        if claimed.jobs and hold is not None:
            hold.release_next(claimed)

    def _is_last(self, empty: Batch) -> bool:
        """Whether the loop ends after this empty batch. A drain goes on while others have locked the candidates, and
        while the queue is paused: nobody knows then whether a job is due.
        """
        if self._control.stopping or self._idleness.seconds_left <= 0:
            return True
        drained = (self._drain or self._control.draining) and not (empty.contended or self._control.paused)
        if not (drained and self._drains_retries):
            return bool(drained)
        retries = self._consumer.retries(self._where)
        return retries.jobs + retries.due == 0  # one may have come due since the last claim

    @property
    def _drains_retries(self) -> bool:
        """Such a loop does not sleep: no wake comes when another consumer has done the last job."""
        return self._drain == "retries" or self._control.waits_for_retries

    def _slept(self, empty: Batch) -> bool:
        """Sleep until there may be work. Returns False if a sleep is not possible, or not worth its cost."""
        consumer, control, idleness = self._consumer, self._control, self._idleness
        sleeper = consumer.hold.sleeper
        if empty.contended and not consumer.hold.keeps_locks:
            return False
        if sleeper is None or not sleeper.can_sleep() or not idleness.may_sleep:
            return False
        # A scalar that is NULL when no job is due, or the queue is paused. None if only a claim finds out whether there
        # is work: then a claim follows after a pause as usual. So it is, too, while transactions of others hold jobs,
        # which look unclaimed.
        has_work = None
        if control.paused and not empty.contended:
            backend = consumer.access.backend
            has_work = resumed(backend.queues, backend.roles.recorded_as)
        elif not empty.contended:
            has_work = consumer.plans.has_work(self._where)
        if has_work is None:
            pause = idleness.pause()
            condition = WakeCondition(None, pause, pause)
        else:
            condition = WakeCondition(has_work, FIRST_CHECK, self._poll * RARER)
        deadline = time.monotonic() + consumer.plans.longest_sleep
        with idleness.asleep(), sleeper.waiting(condition):
            while not control.woken(min(HEARTBEAT_CHECK_SECONDS, max(0.0, idleness.seconds_left))):
                if idleness.seconds_left <= 0 or not sleeper.is_active or time.monotonic() > deadline:
                    break
        control.clear_wake()
        consumer.expects_pause = True
        return True


class IdleBackoff:
    """The pauses and sleeps of one loop. One of them follows each claim that found nothing."""

    def __init__(self, poll: float, idle: float) -> None:
        """`poll`: the longest pause in seconds. `idle`: the seconds without work after which the loop ends."""
        self._backoff = Backoff(min(SHORTEST_POLL, poll), poll)
        self._idle = idle
        self._took = self._rest = 0.0
        self._awake_for = 0.0
        self._awake_since = time.monotonic()
        self.worked()

    def worked(self) -> None:
        """Begin again: the loop had a batch."""
        self._backoff.reset()
        self._took = self._rest = 0.0
        self._deadline = time.monotonic() + self._idle

    def met_locked_jobs(self, seconds: float) -> None:
        """Note how long the last claim took, which met only jobs that others have locked. The shorter of two counts:
        the first claim of a consumer connects, too.
        """
        self._rest = min(REST_FACTOR * min(seconds, self._took), LONGEST_REST)
        self._took = seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the loop ends."""
        return self._deadline - time.monotonic()

    def pause(self) -> float:
        """Seconds until the next claim. They double each time, with jitter, so that loops claim at different times."""
        return min(max(self._backoff.pause(), self._rest), max(self.seconds_left, SHORTEST_POLL))

    @property
    def may_sleep(self) -> bool:
        """Whether a sleep is worth its two writes. After short sleeps it is not for a while: a few claims cost less."""
        return time.monotonic() - self._awake_since >= self._awake_for

    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        """A `with` block in which the loop sleeps."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._awake_since = time.monotonic()
            short = self._awake_since - began < SHORT_SLEEP_SECONDS
            self._awake_for = min(LONGEST_WAIT, max(SHORTEST_POLL, 2 * self._awake_for)) if short else 0.0


def check_size(size: Any) -> None:
    """Raise BadArgument for what is no number of jobs."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_BATCH:
        what = f"a batch of {size!r} jobs cannot be claimed"
        raise BadArgument(f"{what}: give a whole number from 1 to {LARGEST_BATCH:,}, and claim several batches")


# --- what is told of a batch -------------------------------------------------------------------------------------


def fields_of(event: str, table: str, batch: Batch, error: BaseException) -> dict[str, object]:
    """The fields of a record of the log about an error of a batch."""
    return {"event": event, "queue": table, "jobs": len(batch), "error": f"{type(error).__name__}: {reason(error)}"}


def log_refused(table: str, batch: Batch, error: OutcomeRefused) -> None:
    """Log that outcomes were refused. Raises the error if the table may refuse the outcome of every job."""
    if not (error.others or error.are_duplicates):
        raise error
    log.error("%s", error, extra=fields_of(OUTCOME_REFUSED, table, batch, error))


def log_lost(table: str, jobs: Sequence[Job]) -> None:
    """Log which jobs were lost, if any were."""
    if jobs:
        fields = {"event": JOBS_LOST, "queue": table, "keys": [job.key for job in jobs]}
        log.warning("%d jobs were lost to another owner; their outcome was not written", len(jobs), extra=fields)

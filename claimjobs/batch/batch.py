"""Batch: the jobs of one claim and, as they become known, their outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from claimjobs.batch.hold import Hold, SettlesBatch
from claimjobs.batch.orm_instances import instances
from claimjobs.batch.settle import Outcomes
from claimjobs.claim.strategy import ClaimResult
from claimjobs.dialects import Key
from claimjobs.errors import BatchSettled, NotInBatch, OutcomeRefused, TooLate, Unreadable
from claimjobs.job import Job, claim_of
from claimjobs.options import Retry, bounded
from claimjobs.table.columns import DEAD
from claimjobs.table.roles import Roles

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Batch:
    """Jobs that only this process holds, in the order in which they were claimed.

    Use it once, as a context manager: leaving the block settles the batch. Inside it a job counts as done when a
    loop over the batch has moved past it; `done`, `fail` and `release` say it outright. Whatever has no outcome
    when the block is left, by its end, a `break` or a `return`, is released. After an exception it is released as
    suspect: see `blame`.
    """

    def __init__(
        self,
        claimed: ClaimResult,
        hold: Hold,
        roles: Roles,
        retry: Retry,
        *,
        source: SettlesBatch | None = None,
        entity: type[Any] | None = None,
    ) -> None:
        """`source`: what settles the batch when its block is left without an exception, in place of the hold."""
        self._claimed = claimed
        self._jobs = {job.key: job for job in claimed.jobs}
        self._order = tuple(claimed.jobs)
        self._undecided = dict(self._jobs)
        self._outcomes = Outcomes(jobs=self._jobs)
        self._roles = roles
        self._hold = hold
        self._source = source
        self._retry = retry
        self._entity = entity
        self._current: Job | None = None
        self._kept: set[Key] = set()
        self.kept_alive: object = None
        """What releases the jobs when it is garbage-collected: an open batch keeps it alive."""
        self.lost: tuple[Job, ...] = ()
        """After the settle: jobs that this owner no longer held, so that their outcome was not written."""
        self.settled = False
        """Whether the outcomes are in the database."""
        self.contended = False
        """Whether jobs were there, all of them held by others: an empty batch then does not mean an empty queue."""

    # --- reading ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Job:
        return self._order[index]

    def __contains__(self, job: object) -> bool:
        return job in self._order

    def __iter__(self) -> Iterator[Job]:
        """Each job that has no outcome yet. Asking for the next one makes the one before it done."""
        for job in self._order:
            if job.key in self._undecided:
                self._begin(job)
                yield job
                if not self.settled and job.key in self._undecided:
                    self.done(job)
        if not self.settled:
            self._finish()

    @property
    def connection(self) -> sa.Connection:
        """The connection whose open transaction holds these jobs: what is written through it and the completion
        commit together, when the block is left. Its transaction is the batch's: no commit, rollback or close of one's
        own. After one of these the locks are gone, and NoOpenTransaction is raised, at the latest by the settle.

        What a job wrote that then fails, or is released, is undone, and the rest commits. Raises NoOpenTransaction
        where the Queue was not made with `hold="transaction"`.
        """
        return self._hold.connection(self._claimed)

    def session(self, **options: Any) -> Session:
        """A Session on `connection`: flushed when a job's work is kept, rolled back when it is undone.

        One that you make yourself knows nothing of jobs: what it has not flushed when a job fails would be written
        for another one. Use such a one for a single job, and commit it there. `options` are those of Session.
        """
        return self._hold.session(self._claimed, **options)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, to be read without saying anything about them."""
        return self._order

    def instances(self, session: Session) -> tuple[Any, ...]:
        """The jobs as instances of the Queue's mapped class, bound to this session, in the order of the jobs.

        As of `jobs`, nothing is said about them: `for job, order in zip(batch, batch.instances(session))`. With
        `hold="transaction"` take `batch.session()`, which writes into the batch's own transaction. Raises TypeError
        where the Queue was not made with a mapped class, LookupError where a row is gone.
        """
        if self._entity is None:
            raise TypeError("only a Queue of a mapped class has instances: make it with the class as its table")
        return instances(session, self._entity, self._roles, self._order)

    @property
    def undecided(self) -> tuple[Job, ...]:
        """The jobs that have no outcome yet."""
        return tuple(self._undecided.values())

    # --- deciding --------------------------------------------------------------------------------------

    def done(self, *jobs: Job) -> None:
        """These jobs are done; without arguments, all that have no outcome yet."""
        self._outcomes.done.extend(self._decide(jobs))

    def release(self, *jobs: Job) -> None:
        """Release these jobs at once, for any consumer; without arguments, all that have no outcome yet."""
        self._undo(jobs)
        self._outcomes.released.extend(self._decide(jobs))

    def fail(self, job: Job, error: BaseException | str, *, retry_in: float | None = None, retry: bool = True) -> None:
        """This job failed: it runs again after its back-off, or after `retry_in` seconds; dead if out of attempts.

        `retry=False` makes it dead at once. Raises NotInBatch for a job of another batch, ColumnMissing for a table
        that cannot hold a failure, TooLate for a job whose writes through `connection` can be undone no more.
        """
        failures = self._roles.value_of("attempts", claim_of(job), 0) if job.key in self._jobs else 0
        is_last = not retry or (self._roles.attempts is not None and self._retry.is_last(failures))
        self._check_failure(is_last)
        self._undo([job])
        [key] = self._decide([job])
        wait = self._retry.wait(failures) if retry_in is None else bounded(retry_in)
        self._outcomes.fail(key, self._roles.kept_of(_text_of(error)), None if is_last else wait)

    def _check_failure(self, is_last: bool) -> None:
        if is_last:
            self._roles.need_state(DEAD, "keeping a job that failed for the last time")
        else:
            self._roles.need("attempts", "counting a failed attempt")
            self._roles.need("run_at", "retrying a failed job later")

    def blame(self, error: BaseException | str) -> None:
        """Something went wrong that names no job: any of those without an outcome may be why.

        One alone failed, as by `fail`. Several are released as suspects, not charged with an attempt: after a
        back-off they are claimed again, half as many at a time as they were, until the bad one is alone. A column that
        could not be read (Unreadable) names its job: that one failed, and the others are released. An exception
        that leaves the `with` block is the same. A table that cannot hold the mark has them released.
        """
        self._undo_what_raised()
        culprit = self._undecided.get(error.key) if isinstance(error, Unreadable) else None
        if culprit is not None and self._can_fail():
            self.fail(culprit, error)  # the others had no part in it, and are released
        elif len(self._undecided) == 1 and self._can_fail():
            [job] = self._undecided.values()
            self.fail(job, error)
            self._outcomes.isolated.add(job.key)
        elif self._undecided and self._roles.can_suspect:
            self._suspect(error)

    def _suspect(self, error: BaseException | str) -> None:
        jobs = self.undecided
        self._undo(jobs)
        for key, job in zip(self._decide(jobs), jobs, strict=True):
            self._outcomes.errors[key] = self._roles.kept_of(_text_of(error))
            self._outcomes.suspects[key] = self._retry.wait(self._roles.value_of("attempts", claim_of(job), 0))

    def _can_fail(self) -> bool:
        return self._roles.can_retry and self._roles.can_be_dead

    def extend(self) -> None:
        """Say that the work on this batch goes on, where that takes long and no job passes meanwhile."""
        self._must_be_open()
        self._hold.progress()

    def _decide(self, jobs: Sequence[Job]) -> list[Key]:
        """Take jobs from the undecided; a later word on a job replaces the earlier one."""
        keys = self._keys_of(jobs)
        self._hold.progress()
        if not jobs:
            self._undecided.clear()
            return keys
        for key in keys:
            if self._undecided.pop(key, None) is None:
                self._outcomes.forget(key)
        return keys

    # --- what a job in work writes, where it writes into the transaction that holds it ---------------------

    def _begin(self, job: Job) -> None:
        self._finish()
        self._current = job
        self._hold.begin_job(self._claimed)

    def _finish(self) -> None:
        """The work on a job is over: what it wrote stays if it is done. Until now that could be taken back."""
        if self._current is None:
            return
        if self._current.key in self._undecided:
            self._hold.undo_job(self._claimed)
        elif self._hold.keep_job(self._claimed):
            self._kept.add(self._current.key)
        self._current = None

    def _undo(self, jobs: Sequence[Job]) -> None:
        """These jobs are not done: what the one in work wrote is undone, before anything is said of it."""
        keys = self._keys_of(jobs)
        for key in keys:
            if key in self._kept:
                raise TooLate(key)
        if self._current is not None and self._current.key in keys:
            self._hold.undo_job(self._claimed)
            self._current = None

    # --- settling --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._must_be_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if isinstance(error, Exception):
            self.blame(error)
        elif error is not None:
            self._undo_what_raised()
        self._settle(self._source if error is None else None)

    def _undo_what_raised(self) -> None:
        """Nobody knows which job wrote what was written outside of any job's work: all is undone, and no job done."""
        if self._current is None and self._hold.undo_all(self._claimed):
            self._undecided = dict(self._jobs)
            self._outcomes = Outcomes(jobs=self._jobs)
            self._kept.clear()

    @property
    def outcomes(self) -> Outcomes:
        """What became of the jobs, as far as it is decided."""
        return self._outcomes

    def settle(self) -> None:
        """Write the outcomes now, releasing what has none. Raises BatchSettled the second time.

        Where a transaction holds the jobs: BatchRolledBack if that is gone.
        """
        self._settle(None)

    def _settle(self, source: SettlesBatch | None) -> None:
        self._must_be_open()
        if self._undecided:
            self.release()
        self._finish()
        if not any((self._outcomes.done, self._outcomes.errors)):
            self._hold.undo_all(self._claimed)  # nothing came of them, so nothing may come of what was written for them
        try:
            if not self._order:
                lost: set[Key] = set()
            elif source is None:
                lost = self._hold.settle(self._claimed, self._outcomes)
            else:
                lost = source.settle(self._hold, self._claimed, self._outcomes)
        except BaseException as error:
            if self._hold.settle_is_final or isinstance(error, OutcomeRefused):  # all others are written
                self._is_settled()
            raise
        self._is_settled()
        self.lost = tuple(job for job in self._order if job.key in lost)

    def _is_settled(self) -> None:
        self.settled = True
        self.kept_alive = None

    def _keys_of(self, jobs: Sequence[Job]) -> list[Key]:
        """The keys of these jobs; of none: of all without an outcome."""
        self._must_be_open()
        if not jobs:
            return list(self._undecided)
        keys = list(dict.fromkeys(job.key for job in jobs))
        for key in keys:
            if key not in self._jobs:
                raise NotInBatch(key)
        return keys

    def _must_be_open(self) -> None:
        if self.settled:
            raise BatchSettled

    def __repr__(self) -> str:
        state = "settled" if self.settled else f"{len(self._undecided)} undecided"
        return f"<Batch of {len(self)} jobs, {state}>"


def _text_of(error: BaseException | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    # Postgres holds no NUL, and nothing sends half a surrogate pair: neither may keep a batch from being settled.
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()

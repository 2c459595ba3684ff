"""Batch: the jobs of one claim and, as they become known, their outcomes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, overload

import sqlalchemy as sa

from claimjobs import tracing
from claimjobs.batch.hold import Hold, NextClaim
from claimjobs.callables import in_thread
from claimjobs.claim.strategy import ClaimResult
from claimjobs.database.clock import DatabaseClock, in_seconds
from claimjobs.dialects import Key, dialect_of
from claimjobs.errors import BatchMisused, BatchRolledBack, Fail, OutcomeRefused, Unreadable
from claimjobs.job import Job, entry_of, key_of
from claimjobs.key_text import key_in_message, text_of
from claimjobs.options import Retry, bounded
from claimjobs.report import Report
from claimjobs.settle.failures import Failures
from claimjobs.settle.outcomes import Outcomes
from claimjobs.signals import shielded
from claimjobs.statements.settle import Failure
from claimjobs.table.columns import DEAD
from claimjobs.table.roles import ColumnRoles

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

SAMPLES: Final = 4
"""Jobs of each batch whose time from due to claimed is measured. To read `run_at` of each job would cost a few percent
of a consumer's time."""


class Batch:
    """Jobs that only this process holds, in the order in which they were claimed.

    Use it once, as a context manager: leaving the block settles the batch. Inside the block a job is done when a
    loop over the batch asks for the next one, or when `done` is called; see also `fail` and `release`. Jobs without an
    outcome are released when the block is left by its end, a `break` or a `return`. After an exception they are
    suspects: see `blame`.
    """

    def __init__(
        self,
        claimed: ClaimResult,
        hold: Hold,
        roles: ColumnRoles,
        retry: Retry,
        *,
        next_claim: NextClaim | None = None,
        entity: type[Any] | None = None,
        failures: Failures | None = None,
        timer: BatchTimer | None = None,
        since: float | None = None,
    ) -> None:
        """`next_claim`: what is claimed with the settle, if the block is left without an exception.

        `failures` reports the failed jobs after the settle. `timer`: measures the batch; None: nobody wants to know.
        `since`: when the first of these jobs was claimed, if they were measured then, in other batches.
        """
        self._claimed = claimed
        self._order = tuple(claimed.jobs)
        self._jobs = {job.key: job for job in self._order}
        self._undecided = dict(self._jobs)
        self._outcomes = Outcomes(jobs=self._jobs)
        self._roles, self._hold, self._retry = roles, hold, retry
        self._writes = hold.writes_of(claimed)
        self._next_claim, self._entity = next_claim, entity
        self._failures, self._timer = failures, timer
        self._since = since or (timer.claimed(self._order) if timer is not None and self._order else 0.0)
        self._span: AbstractContextManager[Any] = tracing.NOTHING
        self._current: Job | None = None
        self._kept: set[Key] = set()
        self.kept_alive: object = None
        """An open batch keeps this alive: the jobs are released when it is garbage-collected."""
        self.lost: tuple[Job, ...] = ()
        """After the settle: the jobs whose outcome was refused, because this owner no longer held them."""
        self.settled = False
        """Whether the outcomes are in the database."""
        self.contended = False
        """Whether the batch is empty because others hold all jobs that were found. Then the queue is not empty."""

    # --- reading ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Job, ...]: ...
    def __getitem__(self, index: int | slice) -> Job | tuple[Job, ...]:
        return self._order[index]

    def __contains__(self, job: object) -> bool:
        return job in self._order

    def __iter__(self) -> Iterator[Job]:
        """Each job without an outcome that is not cancelled. When the next job is asked for, the one before is done."""
        try:
            for job in self._order:
                if job.key in self._undecided and not job.is_lost:
                    self._finish()
                    self._writes.begin_job()
                    self._current = job
                    yield job
                    if not self.settled and job.key in self._undecided:
                        self.done(job)
        finally:
            self._writes.in_loop = False
        if not self.settled:
            self._finish()

    @property
    def connection(self) -> sa.Connection:
        """The connection whose open transaction holds these jobs. What you write through it is committed together
        with the outcomes, when the block is left. Do not commit, roll back or close it: the locks would be gone, and
        the settle raises NoOpenTransaction.

        If a job fails or is released, its writes are undone, and those of the other jobs are committed. So before the
        first statement of a job a savepoint is set. A statement that you send through the driver's own connection is
        not seen: read `batch.connection` in that job before. What you write before or after the loop may be for any
        job, so from then on no single one can fail or be released: BatchMisused. Raises NoOpenTransaction unless the
        Queue was made with `hold="transaction"`.
        """
        return self._writes.connection

    def session(self, **options: Any) -> Session:
        """A Session on `connection`. It is flushed when a job is done, and rolled back when a job is undone.

        A session that you make yourself is not: what it has not flushed when a job fails would be written for the next
        job. Use it for a single job, and commit it there. `options` are those of Session.
        """
        return self._writes.session(**options)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs. To read them gives them no outcome."""
        return self._order

    def instances(self, session: Session) -> tuple[Any, ...]:
        """The jobs as instances of the Queue's mapped class, bound to this session, in the order of the jobs.

        This gives them no outcome; for that use `for job, order in zip(batch, batch.instances(session))`. With
        `hold="transaction"` take `batch.session()`, which writes in the batch's own transaction. Raises TypeError
        if the Queue was not made with a mapped class, LookupError if a row is gone.
        """
        if self._entity is None:
            raise TypeError("only a Queue of a mapped class has instances: make it with the class as its table")
        mapper = sa.inspect(self._entity)
        column_of = {column.name: column for column in mapper.local_table.columns}
        names = [mapper.get_property_by_column(column_of[name]).key for name in self._roles.key_names]
        parts = zip(names, self._roles.key, strict=True)
        columns = [sa.type_coerce(getattr(self._entity, name), part.type) for name, part in parts]
        dialect = dialect_of(session.connection(bind_arguments={"mapper": mapper}))  # it may have another engine
        chosen = dialect.listed(columns, sa.bindparam("claimjobs_keys", list(self._jobs), expanding=True))
        statement = sa.select(self._entity).where(chosen).execution_options(populate_existing=True)
        found = {key_of([getattr(row, name) for name in names]): row for row in session.scalars(statement).unique()}
        if gone := [key for key in self._jobs if key not in found]:
            what = f"the row of job {key_in_message(gone[0])} is gone"
            raise LookupError(f"{what}: it was deleted while the job was claimed")
        return tuple(found[key] for key in self._jobs)

    def holds(self, job: Job) -> bool:
        """Whether this process still holds a job, as far as it knows from its last heartbeat (2 s). It asks nobody.

        False: the job was cancelled, or given to others, and its outcome will be refused. Raises BatchMisused.
        """
        self._keys_of([job])
        return not job.is_lost and self._hold.is_held(self._claimed)

    @property
    def undecided(self) -> tuple[Job, ...]:
        """The jobs that have no outcome yet."""
        return tuple(self._undecided.values())

    # --- deciding --------------------------------------------------------------------------------------

    def done(self, *jobs: Job, **columns: Any) -> None:
        """Make these jobs done; without jobs, all that have no outcome yet. `done(*good)` with an empty list is without
        jobs: write `if good:` before it.

        `columns` are values of columns of your own, which the settle writes with the outcome, where done jobs are kept:
        `batch.done(job, result="sent")`. Raises BadArgument for a column that is not there, or has a role. Then nothing
        is decided.
        """
        if columns:
            self._hold.settler.check_columns(columns)
        keys = self._decide(jobs)
        self._outcomes.done.update(dict.fromkeys(keys))
        if columns:
            self._outcomes.columns.update(dict.fromkeys(keys, columns))

    def release(self, *jobs: Job) -> None:
        """Release these jobs, for any consumer; without jobs, all that have no outcome yet (see `done`)."""
        self._undo(jobs)
        self._outcomes.released.update(dict.fromkeys(self._decide(jobs)))

    def fail(self, job: Job, error: BaseException | str, *, retry_in: float | None = None, retry: bool = True) -> None:
        """Make this job failed. It runs again after its back-off, or after `retry_in` seconds; it is dead if it is out
        of attempts, or with `retry=False`. A `Fail` or `RetryLater` says that itself.

        Raises BatchMisused for a job of another batch, or if the job's writes through `connection` can no longer be
        undone, ColumnMissing if the table cannot store a failure, ValueError if `retry_in` is no number. Then nothing
        is decided.
        """
        if isinstance(error, Fail):
            retry, retry_in = retry and error.retry, error.retry_in if retry_in is None else retry_in
        self._keys_of([job])
        failures = self._roles.value_of("attempts", entry_of(job), 0)
        is_last = not retry or (self._roles.attempts is not None and self._retry.is_last(failures))
        if is_last:
            self._roles.need_state(DEAD, "keeping a job that failed for the last time")
        else:
            self._roles.need("attempts", "counting a failed attempt")
            self._roles.need("run_at", "retrying a failed job later")
        # All that can raise comes first: a job that is decided, and has no outcome, would stay claimed.
        wait = self._retry.wait(failures) if retry_in is None else bounded(retry_in)
        said = self._roles.kept_of(_said_by(error))
        self._undo([job])
        [key] = self._decide([job])
        failed = self._outcomes.dead if is_last else self._outcomes.retried
        failed[key] = Failure(said, wait, raised=error if isinstance(error, BaseException) else None)

    def blame(self, error: BaseException | str) -> None:
        """Report an error of which no job is known to be the cause: any job without an outcome may be it.

        If there is one such job, it failed, as by `fail`. If there are several, they are suspects: it costs them no
        attempt, and after a back-off they are claimed again, half as many at a time, until the bad job is alone. An
        Unreadable names its job: that job failed, and the others are released. An exception that leaves the `with`
        block has the same effect. If the table cannot store suspects, the jobs are released.
        """
        self._undo_what_raised()
        culprit = self._undecided.get(error.key) if isinstance(error, Unreadable) else None
        if culprit is not None and self._can_fail():
            self.fail(culprit, error)  # the other jobs have no outcome, and are released
        elif len(self._undecided) == 1 and self._can_fail():
            [job] = self._undecided.values()
            self.fail(job, error)
            self._outcomes.failures[job.key].group = 1
        elif self._undecided and self._roles.can_suspect:
            jobs, said = self.undecided, self._roles.kept_of(_said_by(error))
            waits = [self._retry.wait(self._roles.value_of("attempts", entry_of(job), 0)) for job in jobs]
            self._undo(jobs)
            for key, wait in zip(self._decide(jobs), waits, strict=True):
                self._outcomes.suspects[key] = Failure(said, wait)

    def _can_fail(self) -> bool:
        return self._roles.can_retry and self._roles.can_be_dead

    def extend(self) -> None:
        """Report progress, so that a batch whose single jobs take long is not taken for a hang."""
        self._must_be_open()
        self._hold.progress(self._claimed)

    def _decide(self, jobs: Sequence[Job]) -> list[Key]:
        """The keys of jobs that get an outcome now. An earlier outcome of a job is removed."""
        keys = self._keys_of(jobs)
        self._hold.progress(self._claimed)
        if not jobs:
            self._undecided.clear()
            return keys
        for key in keys:
            if self._undecided.pop(key, None) is None:
                self._outcomes.forget(key)
        return keys

    # --- what the current job writes in the transaction that holds it --------------------------------------

    def _finish(self) -> None:
        """End the current job. Its writes stay if it is done, and are undone if it has no outcome. If the database
        refuses what its session writes only now, it failed, as if its handler had raised that.
        """
        job, self._current = self._current, None
        if job is None:
            return
        if job.key in self._undecided:
            self._writes.undo_job()
            return
        try:
            if self._writes.keep_job():
                self._kept.add(job.key)
        except sa.exc.SQLAlchemyError as error:
            self._writes.undo_job()
            if self._can_fail():
                self.fail(job, error)
            else:
                self.release(job)

    def _undo(self, jobs: Sequence[Job]) -> None:
        """Undo the writes of these jobs, which are not done. Raises BatchMisused if that is not possible."""
        keys = self._keys_of(jobs)
        for key in keys:
            if key in self._kept:
                raise BatchMisused(
                    f"the writes for job {key_in_message(key)} were kept when the loop moved on, and cannot be undone "
                    "alone: put the work in `with batch:`, and fail or release the job while the loop is at it"
                )
        self._writes.undo_outside(of_all=len(keys) == len(self._jobs))
        if self._current is not None and self._current.key in keys:
            self._writes.undo_job()
            self._current = None

    # --- settling --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._must_be_open()
        column = self._roles.traceparent
        contexts = () if column is None else filter(None, (job.shown(column.name) for job in self._order))
        self._span = tracing.span("batch", self._roles.name, len(self._order), of=contexts)
        self._span.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self.settled:
                self._leave(error)
        finally:
            self._span.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        """As `with`, for a loop of asyncio."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `with`. The settle runs in a thread; a cancellation waits for its end."""
        try:
            if not self.settled:
                await in_thread(self._leave, error)
        finally:
            self._span.__exit__(kind, error, trace)

    def split(self, keeper: object) -> list[ClaimResult]:
        """Give up the batch, and hold each of its jobs by itself: a claim for each. They are released when `keeper` is
        garbage-collected. For `claimjobs.queue.job_pool`.
        """
        self._must_be_open()
        self.settled, self.kept_alive = True, None
        return self._hold.split(self._claimed, keeper)

    def _undo_what_raised(self) -> None:
        """After an exception or a write outside of a job no write is known to be of one: undo all; no job is done."""
        if (self._current is None or self._writes.wrote_outside) and self._writes.undo_all():
            self._undecided = dict(self._jobs)
            self._outcomes = Outcomes(jobs=self._jobs)
            self._kept.clear()

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes until now; after the settle, those that were written."""
        return self._outcomes

    def settle(self) -> None:
        """Write the outcomes; jobs without one are released. Raises BatchMisused at the second call.

        Raises BatchRolledBack if an open transaction held the jobs and was rolled back.
        """
        self._must_be_open()
        self._leave(None, claims_next=False)

    def _leave(self, error: BaseException | None, *, claims_next: bool = True) -> None:
        """Give each job an outcome, and write them all. `error`: the exception that ended the block."""
        if isinstance(error, Exception):
            self.blame(error)
        elif error is not None:
            self._undo_what_raised()
        if self._undecided:
            try:
                self.release()
            except BatchMisused as misused:
                self._leave(misused)
                raise
        if len(self._outcomes) < len(self._jobs):  # an exception came between the decision and the outcome
            self._outcomes.released.update(dict.fromkeys(self._jobs.keys() - set(self._outcomes.keys())))
        for failure in self._outcomes.suspects.values():
            failure.group = len(self._outcomes.suspects)
        self._finish()
        if self._outcomes.only_released:
            self._writes.undo_all()  # none of their writes may be committed
        try:
            with shielded():  # what is committed is noted before `Cancelled` is raised
                if self._order:
                    with tracing.span("settle", self._roles.name, len(self._order)):
                        next_claim = self._next_claim if claims_next and error is None else None
                        lost = self._hold.settle(self._claimed, self._outcomes, next_claim)
                        self.lost = tuple(job for job in self._order if job.key in lost) if lost else ()
                self._mark_settled()
        except BaseException as raised:
            self._note_unwritten(raised)
            raise
        self._report_failures()

    def _note_unwritten(self, error: BaseException) -> None:
        """After an error of the settle. Some outcomes may be written all the same."""
        refused = isinstance(error, OutcomeRefused)
        wrote = self.settled or refused or (isinstance(error, BatchRolledBack) and error.isolates)
        if not self.settled and (self._hold.keeps_locks or refused):
            self._mark_settled()
        if wrote:
            self._report_failures()
        elif self.settled:
            self._outcomes = Outcomes(released=dict.fromkeys(self._jobs), jobs=self._jobs)

    def _report_failures(self) -> None:
        failed = self._outcomes.failures
        if self._failures is not None and failed:
            self._failures.report(self._outcomes)
        for failure in failed.values():
            failure.raised = None  # a traceback refers to frames, and their variables to this batch

    def _mark_settled(self) -> None:
        if self._timer is not None and self._order:
            self._timer.settled(len(self._order), self._since)
        self.settled = True
        self.kept_alive = None

    def _keys_of(self, jobs: Sequence[Job]) -> list[Key]:
        """The keys of these jobs; without jobs, the keys of all without an outcome."""
        self._must_be_open()
        if not jobs:
            return list(self._undecided)
        keys: dict[Key, None] = {}  # this runs for each job: a generator would take as long as the rest
        for job in jobs:
            if not isinstance(job, Job) or job.key not in self._jobs:
                what = f"job {key_in_message(job.key)}" if isinstance(job, Job) else f"{job!r:.60}"
                raise BatchMisused(f"{what} is not in this batch: give a job that came from it")
            keys[job.key] = None
        return list(keys)

    def _must_be_open(self) -> None:
        if self.settled:
            raise BatchMisused("this batch is settled, its outcomes are written: claim another one")

    def __repr__(self) -> str:
        state = "settled" if self.settled else f"{len(self._undecided)} undecided"
        return f"<Batch of {len(self)} jobs, {state}>"


def _said_by(error: BaseException | str) -> str:
    said = text_of(error) if isinstance(error, str) else f"{type(error).__name__}: {text_of(error)}"
    # Postgres stores no NUL, and no driver sends half a surrogate pair. A settle must not fail because of them.
    return said.replace("\0", "\\0").encode(errors="backslashreplace").decode()


class BatchTimer:
    """Adds sizes and times of batches to a report."""

    def __init__(self, report: Report, roles: ColumnRoles, clock: DatabaseClock) -> None:
        """`roles`: those of the table with `run_at`. Without one nothing tells how long a job has been due."""
        self._times = report.times
        self._run_at = None if roles.run_at is None else roles.run_at.name
        self._clock = clock

    def claimed(self, jobs: Sequence[Job]) -> float:
        """Measure jobs that were just claimed; return when that was, for `settled`."""
        self._times.batch_jobs.observe(len(jobs))
        if self._run_at is not None and (now := self._clock.now()) is not None:
            for job in jobs[:: -(-len(jobs) // SAMPLES)]:
                with suppress(Unreadable):
                    due = job[self._run_at]
                    if isinstance(due, datetime):  # NULL: due since nobody knows when
                        self._times.due_to_claimed.observe(max(0.0, now - in_seconds(due)))
        return time.monotonic()

    def settled(self, jobs: int, since: float) -> None:
        """Measure so many jobs that were claimed at `since` and are settled now."""
        self._times.claimed_to_settled.observe(time.monotonic() - since, jobs)

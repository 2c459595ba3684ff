"""Queue: the public interface of the library.

`claimjobs/__init__.py` shows the way of a job through the folders; the `__init__.py` of each one says which file does
what.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self

import sqlalchemy as sa

from claimjobs import tracing
from claimjobs.batch.batch import Batch
from claimjobs.callables import GENERATOR, deferred, enqueue_slot, in_thread
from claimjobs.claim.locking import Locking
from claimjobs.control import Control
from claimjobs.database.connect import Bind, engine_of
from claimjobs.database.transactions import CallersTransaction, connection_in, session_of
from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.enqueue.enqueuer import OnBad, Rows
from claimjobs.enqueue.recurring import OnTick, RecurringRows, Schedule
from claimjobs.enqueue.unique_key import OnDuplicate
from claimjobs.errors import BadArgument
from claimjobs.job import Job
from claimjobs.options import INSTEAD, ClaimsKind, HoldKind, Liveness, PerKey, Retry, SideCar
from claimjobs.queue.access import Access
from claimjobs.queue.batch_loop import BatchLoop, Drain, check_size
from claimjobs.queue.consumer import Consumer
from claimjobs.queue.job_pool import JobPool, PoolObserver
from claimjobs.queue.operations import QueueOperations
from claimjobs.report import Report
from claimjobs.settings import Settings, must_work_when_called
from claimjobs.settle.failures import Hook, Hooks
from claimjobs.settle.settler import OnDone
from claimjobs.table.columns import Columns
from claimjobs.table.definitions import DEFAULT_TABLE
from claimjobs.table.predicates import OrderBy, Where
from claimjobs.table.reflection import TableLike

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session


class Queue(QueueOperations):
    """A table, a predicate and an order: its rows are jobs, which are claimed in batches. Only one live consumer holds
    a job at a time.

    `bind` is a URL or an engine; of an AsyncEngine the URL is used. `table` is a name, a `Table` or a mapped class.
    `where` is a predicate over its columns: an expression, or SQL as after WHERE; or a callable that returns one for
    each claim. `order_by` defaults to priority (lower first) and key. As text it is a column's name, `-name` for the
    highest first, or SQL; `()` means any order. `columns` says which column plays which role, if the names differ from
    those of claimjobs.

    `hold="lease"`: a claim is committed, and stands while its owner lives. `hold="transaction"`: the row locks of an
    open transaction are the claim. What you write through `batch.connection` is committed together with the outcomes.

    `claims="rows"`: a claim by lease writes the owner into the row of each job. `claims="batches"`: it writes one row
    for all jobs of the batch into `claimjobs_batches`, and none of the jobs: their columns say `unclaimed` until they
    are settled. That is less work for the database. The default is "rows", and "batches" with a side-car. All
    consumers of a table need the same value (ClaimsDiffer).

    `on_done="delete"` deletes done jobs, `"keep"` keeps them in the table as `done`. A function is called with the
    connection of the settle and the jobs, and returns one of the two. Default: done jobs are deleted if claimjobs made
    the table, and kept if a status means `done`; otherwise the first claim raises DoneUndecided. `"leave"` writes
    nothing, for a handler that makes `where` false itself. Jobs that are still due then are reported, and this Queue
    does not claim them again; StillDue is raised if there are too many of them.

    `on_retry` and `on_dead` are called with each job that failed, and its error (the exception, or a text if there is
    none), when its outcome is committed: `on_retry(job, error)` if it runs again later, `on_dead(job, error)` if it is
    dead. What they raise is logged. They are not called for a lost job.

    `locking` finds and locks jobs in another way than by row locks, as `claimjobs.contrib.advisory_locks` does, or
    finds them elsewhere, as `claimjobs.contrib.replica` does. All consumers of a table need a locking that excludes
    those of the others.

    `per_key` limits how many jobs of each value of a column are claimed at once, or how often, keeps their order, and
    lets the values take turns: see PerKey. It needs `hold="lease"`, a table of keys, which `setup-tables` makes, and
    an index that begins with the status and these columns. All consumers of a table need the same columns there.

    `side_car=True` is for a table that must not be altered: failures and done jobs are stored in a second table,
    `<table>_claims`, and nothing is written into the table itself. It needs `hold="lease"`. The default of `on_done` is
    `"keep"` then; `"delete"` deletes the row and the claim in one transaction. `side_car="NAME"` gives
    that table another name, perhaps in another schema.

    Nothing is sent to the database before the first use. That raises ConnectionFailed, ServerUnfit or UnfitTable
    (TableMissing, ColumnMissing, ...) if it cannot work. A Queue that holds by lease registers as one owner at its
    first claim. Several threads may use it at once, and each batch is for one of them at a time; another process needs
    a Queue of its own (CrossedFork).
    """

    def __init__(  # noqa: PLR0913 - by name only, each a choice of its own
        self,
        bind: Bind,
        table: TableLike = DEFAULT_TABLE,
        *,
        columns: Columns | None = None,
        where: Where = None,
        order_by: OrderBy = None,
        locking: Locking | None = None,
        per_key: PerKey | None = None,
        hold: HoldKind = "lease",
        claims: ClaimsKind | None = None,
        side_car: str | bool | SideCar = False,
        retry: Retry | None = None,
        liveness: Liveness | None = None,
        on_done: OnDone | None = None,
        on_retry: Hook | None = None,
        on_dead: Hook | None = None,
        dialect: Dialect | None = None,
        now: sa.ColumnElement[Any] | None = None,
        **unknown: Never,
    ) -> None:
        """`dialect` overrides the detected capabilities of the server; `now` is an instant that tests inject."""
        for name in unknown:
            instead = f": {INSTEAD[name]}" if name in INSTEAD else ""
            raise TypeError(f"Queue has no parameter {name!r}{instead}")
        self.engine = engine_of(bind)
        self.report = Report()
        """Counts of what this Queue has done so far."""
        beside = side_car if isinstance(side_car, SideCar) else SideCar(name=side_car)
        also = beside.also_writes
        self.settings = Settings(
            table=table,
            columns=columns,
            where=where,
            order_by=order_by,
            locking=locking,
            per_key=per_key,
            hold=hold,
            claims=claims,
            side_car=beside.name,
            also_writes=(also,) if isinstance(also, str) else also,
            retry=retry or Retry(),
            liveness=liveness or Liveness(),
            on_done=on_done,
            dialect=dialect,
            now=database_now() if now is None else now,
            hooks=Hooks(on_retry, on_dead),
        )
        self._control = Control(self)
        self._access = Access(self.engine, self.settings, self.report, self._control)
        self._consumer = Consumer(self._access)
        self._on_hang: Callable[[], None] = lambda: None

    @property
    def on_hang(self) -> Callable[[], None]:
        """Called in another thread when a batch makes no progress for longer than `liveness.max_batch_time`. To set an
        `async def` raises ValueError."""
        return self._on_hang

    @on_hang.setter
    def on_hang(self, function: Callable[[], None]) -> None:
        must_work_when_called(function, "on_hang")
        self._on_hang = function

    # --- enqueueing ------------------------------------------------------------------------------------

    def enqueue(
        self,
        rows: Rows,
        connection: CallersTransaction | None = None,
        *,
        on_bad: OnBad | None = None,
        unique: str | Sequence[str] = (),
        on_duplicate: OnDuplicate = "skip",
    ) -> int:
        """Insert jobs, given as one mapping of columns or an iterable of mappings; return how many were inserted. The
        commit wakes idle consumers.

        With a Connection, Session or scoped_session the rows are part of its transaction, and you commit; without one
        all rows are committed here, or none. Raises BadArgument for any other object, such as an AsyncSession, and
        for a connection in AUTOCOMMIT, before anything is sent.

        Raises BadRow with the number of the first row that does not fit. The rows before it stay in your transaction:
        roll it back, or commit them. What only the commit here refuses is a BadRow with the number 0. With `on_bad`,
        that is called for each such row instead, and the other rows are enqueued. An error that may be about every row,
        such as one of a trigger, is raised if it refuses the first five rows, or all: `on_bad` is not called for these.
        A time limit of the server is raised, too: it is no row's fault.

        `unique` names columns with a unique index (else UnfitTable). Rows whose values of them are in the table,
        in any state, are left out, also if another transaction is about to commit them. Without a connection, conflicts
        with such a transaction are tried again here; with one they may raise, like any conflict of your transaction.

        With `on_duplicate` the jobs that are there are changed, and counted, too. "replace" writes the row into a job
        that waits, which has all its attempts again; "postpone" writes its `run_at` there. "again" makes a done or dead
        job unclaimed, and lets a claimed one run once more after its settle: that needs the column `run_again`. A job
        that an open transaction holds is waited for, unless `connection` is that of the transaction. Raises
        ColumnMissing, BadArgument with a side-car or AdvisoryLocks, and UnfitTable for an index in which NULL equals
        NULL.
        """
        must_work_when_called(on_bad, "on_bad")
        if on_duplicate != "skip":
            self.settings.require("on_duplicate")
        caller = None if connection is None else connection_in(connection, self.settings.table)
        backend = self._access.backend
        names = (unique,) if isinstance(unique, str) and unique else tuple(unique)
        with backend.tables_in_use.naming_what_is_missing(), tracing.span("enqueue", backend.source.name):
            count = self._access.enqueuer.enqueue(rows, caller, on_bad=on_bad, unique=names, on_duplicate=on_duplicate)
        self.report.enqueued += count
        if self._consumer.made_hold is not None:
            self._consumer.made_hold.restart_from_head()
        return count

    async def aenqueue(
        self,
        rows: Rows,
        connection: AsyncSession | AsyncConnection | async_scoped_session[Any] | None = None,
        *,
        on_bad: OnBad | None = None,
        unique: str | Sequence[str] = (),
        on_duplicate: OnDuplicate = "skip",
    ) -> int:
        """As `enqueue`, for asyncio. With an AsyncSession, async_scoped_session or AsyncConnection the rows are part of
        its transaction, and you commit; without one a thread inserts and commits. Raises as `enqueue` does.
        """
        how: dict[str, Any] = {"on_bad": on_bad, "unique": unique, "on_duplicate": on_duplicate}
        if connection is None:
            async with enqueue_slot():
                return await in_thread(partial(self.enqueue, rows, **how))
        given: Any = session_of(connection)
        if not hasattr(given, "run_sync"):
            connection_in(given, self.settings.table)  # raises for what is no connection
            raise BadArgument("`aenqueue` was given no AsyncSession or AsyncConnection: give it one, or call `enqueue`")
        await in_thread(lambda: self._access.enqueuer)  # the first time it reads the table, by its own connection
        count: int = await given.run_sync(lambda sync: self.enqueue(rows, sync, **how))
        return count

    def enqueue_every(
        self,
        schedule: str | timedelta,
        rows: Rows | Callable[[datetime], Rows],
        *,
        tick: str,
        unique: str | Sequence[str],
        zone: str = "UTC",
        on_tick: OnTick | None = None,
    ) -> None:
        """Enqueue rows for each tick of a schedule until `stop`, in any number of processes: each tick once.

        `schedule`: a cron expression such as "0 6 * * 1", in this time zone; or an interval, as a timedelta or as
        "15m". `rows`: as of `enqueue`, or a function of the tick that returns them. `tick` names the column that gets
        the tick, in UTC. It is one of the columns `unique`, which have a unique index, so that one process inserts.

        The rows of a tick are inserted when the tick before is over, or 5 s ahead, with the tick as their `run_at`. So
        they wait in the table, and are there also if no process runs at the tick itself. The time is the database's. A
        tick that begins while no process runs, and none had run since the tick before, is left out; if the database's
        clock is set back, a process goes on after the last tick that it knows. An outage is waited for. `on_tick` is
        called with each tick, and how many rows this process has inserted for it.

        Raises BadArgument, ColumnMissing for a table without `run_at`, and as `enqueue`.
        """
        must_work_when_called(on_tick, "on_tick")
        if deferred(rows) != GENERATOR:
            must_work_when_called(rows, "rows")
        names = (unique,) if isinstance(unique, str) else tuple(unique)
        plan = Schedule(schedule, zone)
        recurring = RecurringRows(self._access.enqueuer, plan, rows, tick=tick, unique=names)
        with self._access.connector() as connector:
            recurring.run(connector, self._control, on_tick)

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int = 100, where: Where = None) -> Batch:
        """Claim the next jobs: at most `size`, perhaps none, and none while the queue is paused. This Queue holds them
        until the batch is settled. A batch that you drop without a settle is released.

        `where` narrows this claim further. Raises BadArgument, BadPredicate.
        """
        check_size(size)
        return self._consumer.claim(size, where)

    def batches(
        self,
        size: int = 100,
        where: Where = None,
        *,
        drain: Drain = False,
        poll: float = 1.0,
        idle: float | None = None,
    ) -> Generator[Batch, None, None]:
        """Batches of claimed jobs, one after the other: `for batch in queue.batches(): with batch: ...`.

        Leaving a batch settles it and claims the next one in the same transaction. That one is released if the loop
        does not ask for it. The loop ends after `stop()`; with `drain` when no job is due that could be claimed, with
        `drain="retries"` when also no failed job waits for its next attempt; with `idle` after so many seconds without
        a batch. Without work it sleeps until an `enqueue` wakes it, and checks for work by itself after three times
        `poll` seconds at the latest. If it cannot be woken, it claims after a pause that grows to `poll` seconds.

        One consumer gets its jobs in order, except for jobs that appear before its cursor: enqueued with a higher
        priority, retried, or due only now. Each claim begins at the cursor, after the last job of the claim before. A
        claim begins at the head of the queue again after ten times as long as the last such claim took, and after 2
        seconds at the latest. Raises BatchMisused if a batch is still open when the next one is asked for.
        """
        return iter(BatchLoop(self._consumer, size, where, drain=drain, poll=poll, idle=idle, kept_alive=self))

    async def abatches(
        self,
        size: int = 100,
        where: Where = None,
        *,
        drain: Drain = False,
        poll: float = 1.0,
        idle: float | None = None,
    ) -> AsyncGenerator[Batch, None]:
        """As `batches`, for asyncio: `async for batch in queue.abatches(): async with batch: ...`.

        All that is sent to the database is sent in a thread. In the block it is as in `with batch`: a job is done when
        `for job in batch` asks for the next one. Raises BadArgument with `hold="transaction"`, whose connection blocks.
        """
        self.settings.require("abatches")
        loop = BatchLoop(self._consumer, size, where, drain=drain, poll=poll, idle=idle, kept_alive=self)
        batches = iter(loop)
        with ThreadPoolExecutor(1, "claimjobs batches", self._control.follow, (loop,)) as thread:
            try:
                while (batch := await in_thread(next, batches, None, executor=thread, interrupt=loop.end)) is not None:
                    yield batch
            finally:
                await in_thread(batches.close, executor=thread)

    def work(
        self,
        handler: Callable[[Job], Any],
        *,
        concurrency: int = 10,
        size: int = 100,
        where: Where = None,
        drain: Drain = False,
        poll: float = 1.0,
        idle: float | None = None,
        observer: PoolObserver | None = None,
    ) -> None:
        """Call a function for each job, `concurrency` at once, until the loop ends as that of `batches` does.

        A plain function runs in so many threads, an `async def` in so many tasks of one event loop. A job is done when
        its call returns. If it raises, the job failed: see `Batch.fail`, and `RetryLater` and `Fail`, which say how.
        Outcomes are settled in groups as they come, so a slow job delays no other. At most twice `concurrency` jobs
        and `size` more are held; `size` is how many are claimed at once, or half of `concurrency` if that is more.

        After `stop()` jobs that were not begun are released, and it waits for the others. After its `timeout` these are
        released, too, and the tasks of an `async def` are cancelled; threads cannot be. A job that hangs for longer
        than `Liveness.max_batch_time` is given to others, and its task is cancelled. If this process dies, the jobs in
        hand are suspects. Raises BadArgument with `hold="transaction"`, which handles one job after the other, and
        BadHandler.
        """
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
            raise BadArgument(f"concurrency={concurrency!r}: give a whole number from 1")
        self.settings.require("work")
        more: dict[str, Any] = {"drain": drain, "poll": poll, "idle": idle, "observer": observer or PoolObserver()}
        JobPool(self._consumer, handler, size, where, count=concurrency, **more).run()

    def stop(self, timeout: float | None = None) -> None:
        """End `batches` after the current batch. May be called from any thread or signal handler; returns at once.

        `timeout`: what this Queue still holds after so many seconds is released, and costs no attempt. A handler that
        is still running is not interrupted: when its batch is settled, its jobs are in `batch.lost`, and with
        `hold="transaction"` BatchRolledBack is raised. From then on this Queue claims nothing. Of several calls the
        earliest deadline counts. Raises ValueError for a negative number.
        """
        if timeout is not None:
            self._consumer.release_after(timeout)
        self._control.stop()

    def drain(self, *, retries: bool = False) -> None:
        """End `batches` when no job is due. May be called from any thread or signal handler.

        With `retries` they go on while a failed job waits for its next attempt.
        """
        self._control.drain(retries=retries)

    @property
    def stopping(self) -> bool:
        """Whether `stop()` was called."""
        return self._control.stopped

    @property
    def draining(self) -> bool:
        """Whether `drain()` was called."""
        return self._control.draining

    def use_hooks(self, hooks: Hooks) -> None:
        """Replace `on_retry` and `on_dead`. Call it before the first claim."""
        own = self.settings.hooks
        own.on_retry, own.on_dead = hooks.on_retry, hooks.on_dead

    def wait(self, seconds: float) -> None:
        """Pause for so many seconds; `stop()` and `drain()` end the pause."""
        self._control.wait(seconds)

    @property
    def owner_id(self) -> int:
        """The id in `owner_id` of every job that this Queue holds. Registers the owner if that was not done yet.

        0 with `hold="transaction"`, which has no owner.
        """
        return self._consumer.hold.owner_id

    def close(self) -> None:
        """Release all held jobs, remove the owner, close the connection. The Queue can be used again."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

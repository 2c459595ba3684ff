"""Queue: the front door of the library."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs.admin import stats as statistics
from claimjobs.admin.dead_jobs import DeadJobs
from claimjobs.admin.purge import Kept, Purge
from claimjobs.admin.stats import Retries, Stats
from claimjobs.batch.batch import Batch
from claimjobs.batch.settle import OnDone
from claimjobs.control import Control
from claimjobs.database.connect import connected, engine_of
from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.enqueue.bulk_insert import Row
from claimjobs.enqueue.insert import OnBad
from claimjobs.errors import BadSize
from claimjobs.instants import age_of
from claimjobs.options import HoldKind, Liveness, LockKind, Retry, SideCar
from claimjobs.queue.batch_loop import BatchLoop, BatchSource, Drain, PrefetchSource
from claimjobs.queue.parts import QueueParts
from claimjobs.queue.settings import Settings
from claimjobs.report import Report
from claimjobs.table.backend import TableLike
from claimjobs.table.columns import Columns
from claimjobs.table.definitions import DEFAULT_TABLE
from claimjobs.table.predicates import OrderBy, Where
from claimjobs.table.roles import Roles


class Queue:
    """A table, a predicate and an order: jobs to be claimed in batches, each in one hand at a time.

    `bind` is a URL or an engine; `table` a name, a `Table` or a mapped class. `where` is a predicate over its
    columns, or a callable that returns one for each claim. `order_by` defaults to priority (lower first) and key; as
    text it is a column's name, `-name` for the highest first, or SQL; `()` takes jobs in any order. `columns` says
    which column plays which role, where they have other names than ours.

    `hold="lease"`: a claim is committed, and stands while its owner lives. `hold="transaction"`: the locks of an open
    transaction are the claim, which is `batch.connection`; what is written through it and the completion commit
    together.

    `on_done="delete"` deletes done jobs, `"keep"` leaves them in the table as `done`; a function is called with the
    connection of the settle and the jobs, and returns which of the two it is to be. It may be left out where claimjobs
    made the table: done jobs are deleted then; and where a status says `done`: they are kept. Else the first claim
    raises DoneUndecided. `"leave"` writes nothing, for a handler that makes `where` false itself: what is still due
    then is reported, and not claimed again by this Queue; StillDue is raised where these are too many.

    `lock="advisory"` keeps others away by advisory locks on the keys in place of row locks; `claim` raises
    SessionsNotOurs where there can be none. With `hold="transaction"` the two kinds know nothing of each other, and
    the same job can be in the hands of one consumer of each: all consumers of such a table need the same `lock`.
    Where all hold by lease they may differ: the claim itself stands in the row.

    `side_car=True` is for a table that must not be altered: claims, failures and what is done stand in a table beside
    it, `<table>_claims`, and nothing is written into the table itself. There `on_done="keep"` is the default;
    `"delete"` deletes the row and the claim in one transaction. `SideCar(...)` has options.

    Nothing is sent to the database before the first use, which raises ConnectionFailed, ServerTooOld or UnfitTable
    (TableMissing, ColumnMissing, ...) where it cannot work. A Queue that holds by lease registers as one owner when it
    first claims. Its threads take turns; another process needs a Queue of its own (CrossedFork).
    """

    def __init__(  # noqa: PLR0913 - by name only, each a choice of its own
        self,
        bind: str | sa.URL | sa.Engine,
        table: TableLike = DEFAULT_TABLE,
        *,
        columns: Columns | None = None,
        where: Where = None,
        order_by: OrderBy = None,
        lock: LockKind = "rows",
        hold: HoldKind = "lease",
        side_car: SideCar | bool = False,
        retry: Retry | None = None,
        liveness: Liveness | None = None,
        on_done: OnDone | None = None,
        dialect: Dialect | None = None,
        now: sa.ColumnElement[Any] | None = None,
    ) -> None:
        """`dialect` overrides what the server is found to be capable of; `now` is the instant that tests inject."""
        self.engine = engine_of(bind)
        self.report = Report()
        """What this Queue has done so far, in numbers."""
        beside = SideCar() if side_car is True else side_car or None
        self._chosen = Settings(
            table=table,
            columns=columns,
            where=where,
            order_by=order_by,
            lock=lock,
            hold=hold,
            side_car=beside,
            retry=retry or Retry(),
            liveness=liveness or Liveness(),
            on_done=on_done,
            dialect=dialect,
            now=database_now() if now is None else now,
        )
        self._control = Control(self)
        self._parts = QueueParts(self.engine, self._chosen, self.report, self._control)
        self.on_hang: Callable[[], None] = lambda: None
        """Called, in a thread, when a batch makes no progress for longer than `liveness.max_batch_time`."""

    # --- producing -------------------------------------------------------------------------------------

    def enqueue(
        self,
        rows: Row | Iterable[Row],
        connection: sa.Connection | Session | None = None,
        *,
        on_bad: OnBad | None = None,
        unique: str | Sequence[str] = (),
    ) -> int:
        """Insert jobs, given as one mapping of columns or any number of them; return how many came in. Consumers
        that sleep are called when they are committed.

        With a Connection or Session they become part of its transaction, and its caller commits; without one
        they are committed here, all or none. Raises BadRow with the number of the first row that does not fit; with
        `on_bad` that is called with each of them instead, and all others are enqueued.

        `unique` names columns of the payload over which the table has a unique index (else NotUnique): rows whose
        values of them are in the table already, in whatever state, are left out, also when another transaction is
        about to commit them. Without a connection a conflict with that is settled here; with one it may raise, like
        any conflict of the caller's transaction.
        """
        backend = self._parts.backend
        names = (unique,) if isinstance(unique, str) and unique else tuple(unique)
        enqueuer = self._parts.enqueuer
        with backend.tables_in_use.naming_what_is_missing():
            if connection is not None:
                count = enqueuer.insert_into(connection, rows, on_bad, names)
            else:
                count = enqueuer.insert_and_commit(rows, on_bad, names)
        self.report.enqueued += count
        self._parts.restart_from_head()
        return count

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int = 100, where: Where = None) -> Batch:
        """The next `size` jobs, or fewer, or none: claimed and committed, in this owner's hand until settled.

        `where` narrows this claim further. Raises BadSize, BadPredicate or BadOrder where the database cannot read it.
        """
        _check_size(size)
        return self._parts.claim(size, where)

    def batches(
        self,
        size: int = 100,
        where: Where = None,
        *,
        drain: Drain = False,
        poll: float = 1.0,
        idle: float | None = None,
        prefetch: int = 0,
    ) -> Generator[Batch, None, None]:
        """Batches that hold something, one after the other: `for batch in queue.batches(): with batch: ...`.

        Leaving a batch settles it, and in the same transaction claims the next one, which is released if nobody asks
        for it. Ends after `stop()`; with `drain` also when no job is due that anybody could claim, and with
        `drain="retries"` no job that failed waits for its next attempt either; with `idle` also when there was no batch
        for so many seconds. Without work it sleeps until an `enqueue` calls it, and looks by
        itself every three times `poll` seconds at the latest (5.4 times where many sleep); where it cannot be called,
        after a pause that grows to `poll` seconds.

        `prefetch` is for handlers that take longer than a claim: so many batches are claimed while one is worked on,
        in a thread, and are in hand until they are asked for or the loop ends; each is settled by itself.

        One consumer sees its jobs in order, but for those that appear before what it claimed last (enqueued with a
        higher priority, run again, due at last): every claim begins where the last one ended, and looks from the head
        of the queue after ten times as long as that took last, and after 2 seconds at most.
        Raises BatchNotSettled when a batch is left open.
        """
        _check_size(size)
        if prefetch < 0:
            raise ValueError(f"prefetch={prefetch}: give a number of batches, 0 or more")
        source: BatchSource | PrefetchSource = BatchSource(self._parts, size, where, self._control)
        if prefetch:
            source = PrefetchSource(self._parts, size, where, self._control, count=prefetch)
        return self._run(BatchLoop(self._parts, source, self._control, drain=drain, poll=poll, idle=idle))

    def _run(self, loop: BatchLoop) -> Generator[Batch, None, None]:
        """A method of its own, so that the loop keeps its queue, and with it `on_hang`, while nobody else does."""
        yield from loop

    def stop(self) -> None:
        """Let `batches` end after the batch in hand, from any thread or signal handler."""
        self._control.stop()

    def drain(self, *, retries: bool = False) -> None:
        """Let `batches` end once no job is due that anybody could claim, from any thread or signal handler.

        With `retries` they go on while a job that failed waits for its next attempt.
        """
        self._control.drain(retries=retries)

    @property
    def stopping(self) -> bool:
        """Whether `stop()` was called."""
        return self._control.stopping

    @property
    def draining(self) -> bool:
        """Whether `drain()` was called."""
        return self._control.draining

    def wait(self, seconds: float) -> None:
        """Pause, but not beyond `stop()` or `drain()`."""
        self._control.wait(seconds)

    @property
    def owner_id(self) -> int:
        """The id that stands in `owner_id` of every job this Queue holds; registers if that was not done yet.

        0 where the locks of a transaction hold them: nobody is registered then.
        """
        return self._parts.hold.owner_id

    @property
    def hold(self) -> HoldKind:
        """What holds a claim while the work is done."""
        return self._chosen.hold

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def table(self) -> sa.Table:
        """The table as it is in the database."""
        return self._parts.backend.source.table

    @property
    def roles(self) -> Roles:
        """Which column of the table plays which role, and what names a row."""
        return self._parts.backend.roles

    def stats(self) -> Stats:
        """Jobs by status, the age of the oldest, and the owners. All rows of the table, also where `where` does not
        hold."""
        backend = self._parts.backend
        with backend.tables_in_use.naming_what_is_missing(), connected(self.engine) as connection:
            return statistics.read_stats(connection, backend, self._chosen.now)

    def retries(self, where: Where = None) -> Retries:
        """How many jobs failed and wait for their next attempt, and when the first of them is due. Raises BadPredicate.

        Those of this queue's predicate alone, and of `where`.
        """
        return self._parts.retries(where)

    def now(self) -> datetime:
        """This moment by the database's clock, in UTC: what `run_at` is compared with."""
        with self._parts.connector() as connector:
            moment: datetime = connector.transaction(lambda c: c.execute(sa.select(self._chosen.now)).scalar_one())
            return moment

    @property
    def dead(self) -> DeadJobs:
        """The jobs that are out of attempts: to be looked at, run again or dropped."""
        return DeadJobs(self._parts.backend, self._chosen.now, self._parts.connector)

    def purge(
        self, older_than: timedelta | float, *, status: Kept = "done", where: Where = None, dry_run: bool = False
    ) -> int:
        """Delete jobs that have been done, or dead, for so long by the database's clock; return how many.

        `older_than` is a timedelta or seconds. `where` narrows what is meant; the queue's own predicate does not count
        here. They are deleted and committed 1,000 at a time; with `dry_run` they are only counted. Done jobs are there
        only with `on_done="keep"`. Raises ColumnMissing for a table without `owner_date`, and BadPredicate; ValueError
        where a side-car holds them: a row whose key is kept no more would be a new job.
        """
        age = age_of(older_than)
        if self._chosen.side_car is not None:
            raise ValueError(
                "what a side-car keeps tells that a row was done: delete the row, and it is no job any more"
            )
        with self._parts.connector() as connector:
            return Purge(connector, self._parts.backend, status).run(
                self._chosen.now, age, where=where, dry_run=dry_run
            )

    @property
    def done_jobs(self) -> str:
        """What becomes of done jobs, as a sentence. Raises DoneUndecided where nobody has said it."""
        return self._parts.done_jobs

    @property
    def payload(self) -> tuple[str, ...]:
        """The names of the table's columns that are the user's own."""
        return tuple(column.name for column in self._parts.backend.source.payload)

    def check(self) -> None:
        """Find out now whether this queue can work: server, table, columns, predicate, order. Claims nothing."""
        self._parts.must_claim()
        self._parts.settler()
        selector = self._parts.selector
        with selector.understood(None):
            selector.trial(None, ordered=True)

    # --- handing back ----------------------------------------------------------------------------------

    def reclaim_owner(self, owner_id: int) -> int:
        """Reclaim from an owner whose process is known to have ended; how many jobs were handed back.

        Nothing is to be done where transactions hold the jobs: the server has rolled back.

        A supervisor calls this after it has seen the process end. For an owner that still lives it would put jobs
        in two hands; its outcomes for them would be refused.
        """
        if self._chosen.hold == "transaction":
            return 0
        with self._parts.reaper() as reaper:
            return reaper.reclaim_by_id(owner_id)

    def reclaim(self) -> int:
        """Reclaim from all owners of this table that are dead by now; how many jobs were handed back.

        Every consumer does this all the time; it needs to be called only where none runs.
        """
        if self._chosen.hold == "transaction":
            return 0
        with self._parts.reaper() as reaper:
            return reaper.reclaim_dead()

    def reclaim_ownerless(self) -> int:
        """Free the jobs that are claimed by nobody (`stats().ownerless`); how many.

        No claim leaves such a job behind: its row was written by another program, or by hand. Make sure that none of
        them claims in this way, and is at work.
        """
        with self._parts.reaper() as reaper:
            return reaper.reclaim_ownerless()

    def close(self) -> None:
        """Hand back what is still held, leave the owners and close the connection. The Queue can be used again."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_size(size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise BadSize(size)

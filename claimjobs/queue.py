"""Queue: the front door of the library."""

from __future__ import annotations

import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs import advisory
from claimjobs import stats as statistics
from claimjobs.anti_join import anti_join
from claimjobs.assign import Assigner, Assignment, Way
from claimjobs.backend import Backend, TableLike, leased, look_at
from claimjobs.batch import Batch, Grip
from claimjobs.claim import HOLDS, LOCKS, Algorithm, Hold, Lock, algorithm
from claimjobs.columns import Columns
from claimjobs.connect import connected, engine_of
from claimjobs.connector import Connector
from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.enqueue import Insert, OnBad, Row, enqueue
from claimjobs.errors import BadSize, BatchNotSettled, CrossedFork, ServerUnreachable
from claimjobs.graveyard import Graveyard
from claimjobs.hand import Hand
from claimjobs.instants import age_of
from claimjobs.janitor import Janitor
from claimjobs.liveness import Liveness
from claimjobs.purge import Kept, Purge
from claimjobs.report import Report
from claimjobs.retry import Retry
from claimjobs.roles import Roles
from claimjobs.schema import DEFAULT_TABLE
from claimjobs.selection import OrderBy, Predicate, Where, order_of, predicates_of
from claimjobs.settle import OnDone, Settler
from claimjobs.side_car import SideCar
from claimjobs.statements.find import Selection
from claimjobs.stats import Stats
from claimjobs.transaction import TransactionHold
from claimjobs.translate import predicate_errors
from claimjobs.unique import ThroughConflicts, UniqueInsert, UniqueKeys

SHORTEST_POLL = 0.02
"""Seconds an idle consumer waits after its first empty claim; doubled with each one up to `poll`."""


class Queue:
    """A table, a predicate and an order: jobs to be claimed in batches, each in one hand at a time.

    `bind` is a URL or an engine; `table` a name, a `Table` or a mapped class. `where` is a predicate over its
    columns, or a callable that returns one for each claim. `order_by` defaults to priority (lower first) and key; as
    text it is a column's name, `-name` for the highest first, or SQL; `()` takes jobs in any order. `columns` says
    which column plays which role, where they have other names than ours.

    `hold="lease"`: a claim is committed, and stands while its owner lives. `hold="transaction"`: the locks of an open
    transaction are the claim, which is `batch.connection`; what is written through it and the completion commit
    together. `on_done="keep"` leaves done jobs in the table as `done`; a function is called with the connection of
    the settle and the jobs, and returns which of the two it is to be.

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
        lock: Lock = "rows",
        hold: Hold = "lease",
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
        self._table = table
        self._entity = table if isinstance(table, type) else None
        self._columns = columns
        self._lock: Lock = _one_of(lock, LOCKS, "lock")
        self._hold: Hold = _one_of(hold, HOLDS, "hold")
        self._where = where
        self._order_by = order_by
        self._retry = retry or Retry()
        self._liveness = liveness or Liveness()
        self._side_car = SideCar() if side_car is True else side_car or None
        self._on_done: OnDone = on_done or ("delete" if self._side_car is None else "keep")
        _check_side_car(self._side_car, self._lock, self._hold, self._on_done)
        self._dialect = dialect
        self._now: sa.ColumnElement[Any] = database_now() if now is None else now
        self._process = os.getpid()
        self.on_hang: Callable[[], None] = lambda: None
        """Called, in a thread, when a batch makes no progress for longer than `liveness.max_batch_time`."""
        self._stopped = threading.Event()
        self._draining = False
        self._wake = threading.Event()
        self._preparing = threading.RLock()
        self._unique_keys = UniqueKeys()
        self._backend: Backend | None = None
        self._built: tuple[Where, Algorithm] | None = None
        self._hand: Hand | TransactionHold | None = None
        self._assigner: Assigner | None = None
        self._way: tuple[Where, Way] | None = None
        self._finalizers: list[Callable[[], Any]] = []

    # --- producing -------------------------------------------------------------------------------------

    def enqueue(
        self,
        rows: Row | Iterable[Row],
        connection: sa.Connection | Session | None = None,
        *,
        on_bad: OnBad | None = None,
        unique: str | Sequence[str] = (),
    ) -> int:
        """Insert jobs, given as one mapping of columns or any number of them; return how many came in.

        With a Connection or Session they become part of its transaction, and its caller commits; without one
        they are committed here, all or none. Raises BadRow with the number of the first row that does not fit; with
        `on_bad` that is called with each of them instead, and all others are enqueued.

        `unique` names columns of the payload over which the table has a unique index (else NotUnique): rows whose
        values of them are in the table already, in whatever state, are left out, also when another transaction is
        about to commit them. Without a connection a conflict with that is settled here; with one it may raise, like
        any conflict of the caller's transaction.
        """
        backend = self._ready()
        inserting = partial(UniqueInsert, unique=self._unique_keys.of(unique)) if unique else Insert
        insert = partial(enqueue, roles=backend.source, dialect=backend.dialect, inserting=inserting)
        if unique and connection is None:
            again = ThroughConflicts(backend.dialect, self._liveness.patience, self.report)
            count = again(partial(self._in_transaction, None, insert), rows, on_bad)
        else:
            count = self._in_transaction(connection, insert, rows, on_bad)
        self.report.enqueued += count
        return count

    def _in_transaction(
        self, connection: sa.Connection | Session | None, insert: Callable[..., int], rows: Any, on_bad: OnBad | None
    ) -> int:
        if connection is not None:
            given = connection.connection() if isinstance(connection, Session) else connection
            return insert(given, rows=rows, on_bad=on_bad)
        with connected(self.engine) as own:
            # Also where the engine's default is AUTOCOMMIT, in which nothing could be taken back.
            own.execution_options(isolation_level=self._ready().dialect.isolation)
            with own.begin():
                return insert(own, rows=rows, on_bad=on_bad)

    # --- claiming --------------------------------------------------------------------------------------

    def claim(self, size: int = 100, where: Where = None) -> Batch:
        """The next `size` jobs, or fewer, or none: claimed and committed, in this owner's hand until settled.

        `where` narrows this claim further. Raises BadSize, or BadPredicate where the database cannot read it.
        """
        _check_size(size)
        backend, hand = self._ready(), self._ready_hand()
        with predicate_errors(backend.dialect):
            claimed, grip = hand.claim(size, self._algorithm(where))
        batch = Batch(claimed.jobs, backend.roles, grip, self._retry, entity=self._entity)
        batch.contended = bool(claimed.found) and not claimed.jobs
        return batch

    def batches(
        self, size: int = 100, where: Where = None, *, drain: bool = False, poll: float = 1.0, idle: float | None = None
    ) -> Iterator[Batch]:
        """Batches that hold something, one after the other: `for batch in queue.batches(): with batch: ...`.

        Ends after `stop()`; with `drain` also when no job is due that anybody could claim; with `idle` also when there
        was no batch for so many seconds. Without work it looks again after a pause that grows to `poll` seconds.
        Raises BatchNotSettled when a batch is left open.
        """
        _check_size(size)
        return self._batches(size, where, drain, poll=poll, idle=math.inf if idle is None else idle)

    def _batches(self, size: int, where: Where, drain: bool, *, poll: float, idle: float) -> Iterator[Batch]:
        pause, ends = SHORTEST_POLL, time.monotonic() + idle
        while not self.stopping:
            batch = self._claim_unless_stopped(size, where)
            left = ends - time.monotonic()
            if batch:
                yield batch
                _must_be_settled(batch)
                pause, ends = SHORTEST_POLL, time.monotonic() + idle
            elif self.stopping or left <= 0 or ((drain or self._draining) and not batch.contended):
                return
            else:
                self.wait(min(pause, poll, max(left, SHORTEST_POLL)) * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, poll)

    def _claim_unless_stopped(self, size: int, where: Where) -> Batch:
        """A batch; an empty one where the database cannot be reached and nobody wants to wait for it any more."""
        try:
            return self.claim(size, where)
        except (sa.exc.DBAPIError, ServerUnreachable):
            if not self.stopping:
                raise
            return Batch((), self._ready().roles, Grip(lambda _: set()), self._retry)

    def stop(self) -> None:
        """Let `batches` end after the batch in hand, from any thread or signal handler."""
        self._stopped.set()
        self._wake.set()

    def drain(self) -> None:
        """Let `batches` end once no job is due that anybody could claim, from any thread or signal handler."""
        self._draining = True
        self._wake.set()

    @property
    def stopping(self) -> bool:
        """Whether `stop()` was called."""
        return self._stopped.is_set()

    def wait(self, seconds: float) -> None:
        """Pause, but not beyond `stop()` or `drain()`."""
        self._wake.wait(seconds)
        if not self.stopping:
            self._wake.clear()

    @property
    def owner_id(self) -> int:
        """The id that stands in `owner_id` of every job this Queue holds; registers if that was not done yet.

        0 where the locks of a transaction hold them: nobody is registered then.
        """
        return self._ready_hand().owner_id

    @property
    def hold(self) -> Hold:
        """What holds a claim while the work is done."""
        return self._hold

    # --- assigning -------------------------------------------------------------------------------------

    def assign(self, worker: Any, where: Where = None) -> Assignment:
        """Give a worker a row of its own, for as long as it wants: its value is written into the column `assignee`.

        A worker has one row at most, and a row one worker at most; there is no lease, and no owner. `where` narrows
        which rows may be had. The row is any free one; with `order_by`, the first of the first 64 that are not locked.
        It is waited for others that write the same value at this moment, but not for long: see `Assignment.outcome`.
        Raises NoAssignee, or NotUnique where no index keeps the promise.
        """
        assigner = self._ready_assigner()
        with predicate_errors(self._ready().dialect):
            return assigner.assign(worker, self._way_for(assigner, where))

    def unassign(self, worker: Any) -> bool:
        """Set the row free that a worker has; whether it had one."""
        return self._ready_assigner().unassign(worker)

    def pair(self, values: Row) -> Assignment:
        """Insert a row with a new key and its worker (`{"tid": 1, "taskid": 2}`), where neither is in the table yet.

        `already assigned` if either is, with the row where it was found; `busy` if somebody else has written either,
        and has not committed for a while. Each of the columns must be unique by itself (NotUnique).
        """
        return self._ready_assigner().pair(values)

    def _way_for(self, assigner: Assigner, where: Where) -> Way:
        if callable(self._where) or callable(where) or self._way is None or self._way[0] is not where:
            order = () if self._order_by is None else order_of(self._order_by, self._ready().roles)
            self._way = (where, assigner.way(Selection(self._ready_jobs(where), order)))
        return self._way[1]

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def table(self) -> sa.Table:
        """The table as it is in the database."""
        return self._ready().source.table

    @property
    def roles(self) -> Roles:
        """Which column of the table plays which role, and what names a row."""
        return self._ready().roles

    def stats(self) -> Stats:
        """Jobs by status, the age of the oldest, and the owners."""
        backend = self._ready()
        with connected(self.engine) as connection:
            return statistics.read(connection, backend, self._now)

    def now(self) -> datetime:
        """This moment by the database's clock, in UTC: what `run_at` is compared with."""
        self._ready()
        with connected(self.engine) as connection:
            return connection.execute(sa.select(self._now)).scalar_one()  # type: ignore[no-any-return]

    @property
    def dead(self) -> Graveyard:
        """The jobs that are out of attempts: to be looked at, run again or dropped."""
        return Graveyard(self._ready(), self._now, self._connector)

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
        if self._side_car is not None:
            raise ValueError(
                "what a side-car keeps tells that a row was done: delete the row, and it is no job any more"
            )
        with self._connector() as connector:
            return Purge(connector, self._ready(), status).run(self._now, age, where=where, dry_run=dry_run)

    @property
    def payload(self) -> tuple[str, ...]:
        """The names of the table's columns that are the user's own."""
        return tuple(column.name for column in self._ready().source.payload)

    def check(self) -> None:
        """Find out now whether this queue can work: server, table, columns, predicate, order. Claims nothing."""
        backend = self._ready()
        self._settler(backend)
        with predicate_errors(backend.dialect), connected(self.engine) as connection:
            selected = self._selection(None)
            found = sa.select(*backend.source.key).where(selected.ready).order_by(*selected.order)
            connection.execute(found.limit(0))

    # --- handing back ----------------------------------------------------------------------------------

    def give_back(self, owner_id: int) -> int:
        """Reclaim from an owner whose process is known to have ended; how many jobs were handed back.

        Nothing is to be done where transactions hold the jobs: the server has rolled back.

        A supervisor calls this after it has seen the process end. For an owner that still lives it would put jobs
        in two hands; its outcomes for them would be refused.
        """
        if self._hold == "transaction":
            return 0
        with self._janitor() as janitor:
            return janitor.reclaim_by_id(owner_id)

    def reclaim(self) -> int:
        """Reclaim from all owners of this table that are dead by now; how many jobs were handed back.

        Every consumer does this all the time; it needs to be called only where none runs.
        """
        if self._hold == "transaction":
            return 0
        with self._janitor() as janitor:
            return janitor.reclaim_dead()

    @contextmanager
    def _janitor(self) -> Iterator[Janitor]:
        backend = self._ready_to_claim()
        with self._connector() as connector:
            yield Janitor(connector, backend, self._settler(backend), self._retry)

    @contextmanager
    def _connector(self) -> Iterator[Connector]:
        """A connection apart from the one that claims, for as long as it is needed."""
        connector = Connector(self.engine, self._ready().dialect, self._liveness, self.report)
        try:
            yield connector
        finally:
            connector.close()

    def close(self) -> None:
        """Hand back what is still held, leave the owners and close the connection. The Queue can be used again."""
        while self._finalizers:
            self._finalizers.pop()()
        self._hand = self._assigner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ----------------------------------------------------------------------------------------

    def _ready(self) -> Backend:
        if self._process != os.getpid():
            raise CrossedFork
        with self._preparing:
            if self._backend is None:
                by_lease = self._hold == "lease"
                given: dict[str, Any] = {"columns": self._columns, "by_lease": by_lease, "side_car": self._side_car}
                self._backend = look_at(self.engine, self._table, self._dialect, **given)
            return self._backend

    def _ready_hand(self) -> Hand | TransactionHold:
        self._ready()
        with self._preparing:
            if self._hand is None:
                backend = self._ready_to_claim()
                self._hand = (self._new_hand if self._hold == "lease" else self._new_transactions)(backend)
                self._hand.unwanted = self._stopped.is_set
                self._finalizers.append(weakref.finalize(self, self._hand.close))
            return self._hand

    def _ready_to_claim(self) -> Backend:
        """Of a table whose rows are assigned, what a lease takes is looked at when the first job is claimed."""
        backend = self._ready()
        if self._hold == "lease" and not backend.by_lease:
            with connected(self.engine) as connection:
                backend = self._backend = leased(connection, backend)
        return backend

    def _ready_assigner(self) -> Assigner:
        backend = self._ready()
        with self._preparing:
            if self._assigner is None:
                connector = Connector(self.engine, backend.dialect, self._liveness, self.report)
                self._finalizers.append(weakref.finalize(self, connector.close))
                self._assigner = Assigner(connector, backend)
            return self._assigner

    def _new_hand(self, backend: Backend) -> Hand:
        settler = self._settler(backend)
        hand = Hand(self.engine, backend, settler, liveness=self._liveness, retry=self._retry, report=self.report)
        queue = weakref.ref(self)  # the heart's thread must not keep a queue alive that nobody else knows of
        hand.heart.on_reclaimed = self._wake.set
        hand.heart.on_hang = lambda: _hangs(queue())
        return hand

    def _new_transactions(self, backend: Backend) -> TransactionHold:
        settler = self._settler(backend)
        return TransactionHold(self.engine, backend, settler, liveness=self._liveness, report=self.report)

    def _settler(self, backend: Backend) -> Settler:
        given: dict[str, Any] = {"locked": self._hold == "transaction", "source": backend.apart}
        return Settler(backend.roles, backend.dialect, self._now, self._on_done, **given)

    def _algorithm(self, where: Where) -> Algorithm:
        """Built once for a predicate that stays the same; anew for each claim where a callable gives it."""
        if callable(self._where) or callable(where):
            return self._build(where)
        if self._built is None or self._built[0] is not where:
            self._built = (where, self._build(where))
        return self._built[1]

    def _build(self, where: Where) -> Algorithm:
        backend, selection = self._ready(), self._selection(where)
        if self._lock == "advisory":
            declared = self._liveness.session_lock
            return advisory.algorithm(backend, selection, self._now, self._hold, session_lock=declared)
        choose = algorithm if backend.apart is None else anti_join
        return choose(backend, selection, self._now, self._hold)

    def _selection(self, where: Where) -> Selection:
        return Selection(self._ready_jobs(where), order_of(self._order_by, self._ready().source))

    def _ready_jobs(self, where: Where) -> Predicate:
        roles = self._ready().source
        return sa.and_(roles.due(self._now), *predicates_of(self._where, roles), *predicates_of(where, roles))


def _hangs(queue: Queue | None) -> None:
    if queue is not None:
        queue.on_hang()


def _one_of(given: Any, allowed: tuple[Any, ...], name: str) -> Any:
    if given not in allowed:
        raise ValueError(f"{name}={given!r}: give one of {', '.join(map(repr, allowed))}")
    return given


def _check_side_car(side_car: SideCar | None, lock: Lock, hold: Hold, on_done: OnDone) -> None:
    if side_car is not None and lock == "advisory":
        raise ValueError("lock='advisory' is not for a side-car, whose unique key keeps others away: leave it out")
    if side_car is None or side_car.lock_source:
        return
    if hold == "transaction":
        raise ValueError("hold='transaction' is a lock on the row: it needs SideCar(lock_source=True)")
    if on_done == "delete":
        raise ValueError("on_done='delete' writes into the table: it needs SideCar(lock_source=True)")


def _check_size(size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise BadSize(size)


def _must_be_settled(batch: Batch) -> None:
    if not batch.settled:
        batch.settle()
        raise BatchNotSettled

"""Queue: the front door of the library."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.orm import Session

from claimjobs import stats as statistics
from claimjobs.anti_join import anti_join
from claimjobs.backend import Backend, TableLike, look_at
from claimjobs.batch import Batch, Grip
from claimjobs.claim import HOLDS, Algorithm, Hold, algorithm
from claimjobs.columns import Columns
from claimjobs.connect import connected, engine_of
from claimjobs.connector import Connector
from claimjobs.dialects import Dialect
from claimjobs.dialects.types import database_now
from claimjobs.enqueue import OnBad, Row, enqueue
from claimjobs.errors import BadSize, BatchNotSettled, CrossedFork, ServerUnreachable
from claimjobs.graveyard import Graveyard
from claimjobs.hand import Hand
from claimjobs.janitor import Janitor
from claimjobs.liveness import Liveness
from claimjobs.report import Report
from claimjobs.retry import Retry
from claimjobs.schema import DEFAULT_TABLE
from claimjobs.selection import Predicate, Where, order_of, predicates_of
from claimjobs.settle import OnDone, Settler
from claimjobs.side_car import SideCar
from claimjobs.statements.find import Selection
from claimjobs.stats import Stats
from claimjobs.transaction import TransactionHold
from claimjobs.translate import predicate_errors

SHORTEST_POLL = 0.02
"""Seconds an idle consumer waits after its first empty claim; doubled with each one up to `poll`."""


class Queue:
    """A table, a predicate and an order: jobs to be claimed in batches, each in one hand at a time.

    `bind` is a URL or an engine; `table` a name, a `Table` or a mapped class. `where` is a predicate over its
    columns, or a callable that returns one for each claim. `order_by` defaults to priority (lower first) and key;
    `()` takes jobs in any order. `columns` says which column plays which role, where they have other names than ours.

    `hold="lease"`: a claim is committed, and stands while its owner lives. `hold="transaction"`: the locks of an open
    transaction are the claim, which is `batch.connection`; what is written through it and the completion commit
    together. `on_done="keep"` leaves done jobs in the table as `done`; a function is called with the connection of
    the settle and the jobs, and returns which of the two it is to be.

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
        order_by: sa.ColumnElement[Any] | Sequence[sa.ColumnElement[Any]] | None = None,
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
        self._hold: Hold = _one_of(hold, HOLDS, "hold")
        self._where = where
        self._order_by = order_by
        self._retry = retry or Retry()
        self._liveness = liveness or Liveness()
        self._side_car = SideCar() if side_car is True else side_car or None
        self._on_done: OnDone = on_done or ("delete" if self._side_car is None else "keep")
        _check_side_car(self._side_car, self._hold, self._on_done)
        self._dialect = dialect
        self._now: sa.ColumnElement[Any] = database_now() if now is None else now
        self._process = os.getpid()
        self.on_hang: Callable[[], None] = lambda: None
        """Called, in a thread, when a batch makes no progress for longer than `liveness.max_batch_time`."""
        self._stopped = threading.Event()
        self._draining = False
        self._wake = threading.Event()
        self._preparing = threading.RLock()
        self._backend: Backend | None = None
        self._built: tuple[Where, Algorithm] | None = None
        self._hand: Hand | TransactionHold | None = None
        self._finalize: Callable[[], Any] | None = None

    # --- producing -------------------------------------------------------------------------------------

    def enqueue(
        self,
        rows: Row | Iterable[Row],
        connection: sa.Connection | Session | None = None,
        *,
        on_bad: OnBad | None = None,
    ) -> int:
        """Insert jobs, given as one mapping of columns or any number of them; return how many.

        With a Connection or Session they become part of its transaction, and its caller commits; without one
        they are committed here, all or none. Raises BadRow with the number of the first row that does not fit; with
        `on_bad` that is called with each of them instead, and all others are enqueued.
        """
        backend = self._ready()
        insert = partial(enqueue, roles=backend.source, dialect=backend.dialect, rows=rows, on_bad=on_bad)
        if connection is None:
            with connected(self.engine) as own:
                # Also where the engine's default is AUTOCOMMIT, in which nothing could be taken back.
                own.execution_options(isolation_level=backend.dialect.isolation)
                with own.begin():
                    count = insert(own)
        else:
            count = insert(connection.connection() if isinstance(connection, Session) else connection)
        self.report.enqueued += count
        return count

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
        self, size: int = 100, where: Where = None, *, drain: bool = False, poll: float = 1.0
    ) -> Iterator[Batch]:
        """Batches that hold something, one after the other: `for batch in queue.batches(): with batch: ...`.

        Ends after `stop()`; with `drain` also when no job is due that anybody could claim. Without work it looks
        again after a pause that grows to `poll` seconds. Raises BatchNotSettled when a batch is left open.
        """
        _check_size(size)
        return self._batches(size, where, drain, poll)

    def _batches(self, size: int, where: Where, drain: bool, poll: float) -> Iterator[Batch]:
        pause = SHORTEST_POLL
        while not self.stopping:
            batch = self._claim_unless_stopped(size, where)
            if batch:
                pause = SHORTEST_POLL
                yield batch
                _must_be_settled(batch)
            elif self.stopping or ((drain or self._draining) and not batch.contended):
                return
            else:
                self.wait(min(pause, poll) * random.uniform(0.5, 1.0))  # noqa: S311
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

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def table(self) -> sa.Table:
        """The table as it is in the database."""
        return self._ready().source.table

    def stats(self) -> Stats:
        """Jobs by status, the age of the oldest, and the owners."""
        backend = self._ready()
        with connected(self.engine) as connection:
            return statistics.read(connection, backend, self._now)

    @property
    def dead(self) -> Graveyard:
        """The jobs that are out of attempts: to be looked at, run again or dropped."""
        return Graveyard(self._ready(), self._now, self._connector)

    @property
    def payload(self) -> tuple[str, ...]:
        """The names of the table's columns that are the user's own."""
        return tuple(column.name for column in self._ready().source.payload)

    def check(self) -> None:
        """Find out now whether this queue can work: server, table, columns and predicate. Claims nothing."""
        backend = self._ready()
        with predicate_errors(backend.dialect), connected(self.engine) as connection:
            connection.execute(sa.select(*backend.source.key).where(self._ready_jobs(None)).limit(0))

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
        backend = self._ready()
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
        if self._finalize is not None:
            self._finalize()
        self._hand = self._finalize = None

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
        backend = self._ready()
        with self._preparing:
            if self._hand is None:
                self._hand = (self._new_hand if self._hold == "lease" else self._new_transactions)(backend)
                self._hand.unwanted = self._stopped.is_set
                self._finalize = weakref.finalize(self, self._hand.close)
            return self._hand

    def _new_hand(self, backend: Backend) -> Hand:
        settler = self._settler(backend)
        hand = Hand(self.engine, backend, settler, liveness=self._liveness, retry=self._retry, report=self.report)
        queue = weakref.ref(self)  # the heart's thread must not keep a queue alive that nobody else knows of
        hand.heart.on_reclaimed = self._wake.set
        hand.heart.on_hang = lambda: _hangs(queue())
        return hand

    def _new_transactions(self, backend: Backend) -> TransactionHold:
        settler = self._settler(backend, locked=True)
        return TransactionHold(self.engine, backend, settler, liveness=self._liveness, report=self.report)

    def _settler(self, backend: Backend, *, locked: bool = False) -> Settler:
        given: dict[str, Any] = {"locked": locked, "source": backend.apart}
        return Settler(backend.roles, backend.dialect, self._now, self._on_done, **given)

    def _algorithm(self, where: Where) -> Algorithm:
        """Built once for a predicate that stays the same; anew for each claim where a callable gives it."""
        if callable(self._where) or callable(where):
            return self._build(where)
        if self._built is None or self._built[0] is not where:
            self._built = (where, self._build(where))
        return self._built[1]

    def _build(self, where: Where) -> Algorithm:
        backend = self._ready()
        selection = Selection(self._ready_jobs(where), order_of(self._order_by, backend.source))
        choose = algorithm if backend.apart is None else anti_join
        return choose(backend, selection, self._now, self._hold)

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


def _check_side_car(side_car: SideCar | None, hold: Hold, on_done: OnDone) -> None:
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

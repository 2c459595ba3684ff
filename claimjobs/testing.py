"""For tests of one's own handlers: `run` works off what is due in the test's own process, as the command does, and
returns what became of each job.

pytest finds the fixture `claimjobs_database` by itself: see `claimjobs.pytest_plugin`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from claimjobs.batch.batch import Batch
from claimjobs.callables import COROUTINE, deferred
from claimjobs.database.transactions import CallersTransaction, connection_in
from claimjobs.dialects import Key, dialect_named_by
from claimjobs.dialects.types import Instant, database_now, statement_now
from claimjobs.errors import BadArgument, BadHandler, NothingDone
from claimjobs.job import Job
from claimjobs.options import SideCar
from claimjobs.queue.queue import Queue
from claimjobs.settle.outcomes import OUTCOME_KINDS, OutcomeWord
from claimjobs.signals import Cancelled
from claimjobs.table.columns import ENDED
from claimjobs.workers.consumer import BatchObserver, consume
from claimjobs.workers.handlers import handler_of

QUIET_SECONDS: Final = 0.5
"""Seconds without a job after which no job is taken for due, if a rate holds jobs back."""

IF_ASYNC: Final = "give a Connection or a Session of `queue.engine` to `run`, and enqueue in it"
"""What to do with an AsyncSession: its driver is not that of a Queue."""

OURS: Final = "claimjobs_test_"
"""What the names of our savepoints begin with."""


class Clock:
    """A clock that a test moves, so that it need not wait for retries and delayed jobs: `clock.move(hours=1)`.

    It goes on as the database's clock does, and is ahead of it by `ahead`.
    """

    def __init__(self) -> None:
        self.ahead = timedelta()

    def move(self, **times: float) -> None:
        """Move it on. `times` are those of `datetime.timedelta`: `seconds=30`, `days=1`."""
        self.ahead += timedelta(**times)


@dataclass(frozen=True)
class JobResult:
    """What became of a job in one run of its handler."""

    job: Job
    state: OutcomeWord
    """What became of it."""
    error: str | None = None
    """What is stored as its last error, if it failed."""
    retry_in: float | None = None
    """Seconds until it runs again, if it is to run again later."""


def run(
    queue: Queue,
    handler: Callable[..., Any],
    *,
    connection: CallersTransaction | None = None,
    clock: Clock | None = None,
    size: int = 100,
) -> list[JobResult]:
    """Call a handler for all jobs of a queue that are due, as `claimjobs start-processing` does: a function of a batch,
    of a job, or an `async def`. Returns what became of each job, in the order of the settles. A job that fails and is
    due again at once has more than one result; one that the handler releases is not handled again. `queue` only says
    what is done, and how: the run has a Queue of its own, and a stopped one is worked off, too.

    `connection`: a Connection or Session with an open transaction, in which the test has enqueued. The jobs are
    claimed and settled in it, as by `hold="transaction"`, and nothing is committed: if you roll it back, nothing was
    done. Raises BadArgument if no transaction is open, and for a queue with a side-car or `per_key`.

    `clock` decides what is due; without it, the queue's own clock does. A job that the rate of a key holds back is not
    due. Of an async handler ten calls run at once.

    Nothing is held, and no connection of the queue is open, when it returns. Raises BadHandler as the command,
    NothingDone if the handler gives no job an outcome, and BadArgument for a queue that is paused. What the handler
    raises that is neither an Exception nor SystemExit is raised again, such as Ctrl-C and `pytest.fail`; jobs that it
    had not handled then are released.
    """
    name = getattr(handler, "__qualname__", repr(handler))
    if deferred(handler) == COROUTINE:
        if connection is not None:
            raise BadHandler(
                f"handler {name!r} is async, and in the transaction of a `connection` jobs are handled one after the "
                "other: leave out `connection`, and commit what the test enqueues, or give a plain function"
            )
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise BadHandler(
                f"handler {name!r} is async, and this test has a running event loop, which `run` would block: give it "
                "a thread, `await asyncio.to_thread(run, queue, handler)`"
            )
    queue = _queue_of_run(queue, connection, clock)
    in_transaction = not queue.settings.by_lease
    handler_of(handler, name, in_transaction=in_transaction)  # the signature of what is called below fits every call
    ends: list[BaseException] = []
    what = handler_of(_ending(handler, ends, queue), name, in_transaction=in_transaction)
    results = _Results(queue)
    try:
        if queue.backlog(1).paused:
            raise BadArgument(
                f"queue {queue.table.fullname!r} is paused, and no job of it is claimed: call its `resume` before `run`"
            )
        per_key = queue.settings.per_key
        idle = QUIET_SECONDS if per_key is not None and per_key.pace is not None else None
        if what.concurrency is not None:
            queue.work(what.function, concurrency=what.concurrency, size=size, drain=True, idle=idle, observer=results)
        else:
            with suppress(Cancelled):
                results.finish(partial(consume, queue, what, size=size, drain=True, idle=idle, observer=results))
    finally:
        queue.close()
    if ends:
        raise ends[0]
    return results.found


def _ending(handler: Callable[..., Any], ends: list[BaseException], queue: Queue) -> Callable[..., Any]:
    """The handler, which no job is given any more after it has raised what ends a test. `ends` gets that, and the queue
    is stopped: a consumer takes it for the failure of a job, as the command must.
    """

    @contextmanager
    def noting() -> Iterator[None]:
        if ends:
            raise Cancelled
        try:
            yield
        except (Exception, SystemExit, Cancelled, asyncio.CancelledError):
            raise
        except BaseException as error:
            ends.append(error)
            queue.stop()
            raise Cancelled from error

    @wraps(handler)
    async def await_call(*given: Any, **named: Any) -> Any:
        with noting():
            return await handler(*given, **named)

    return await_call if deferred(handler) == COROUTINE else noting()(handler)


def _queue_of_run(queue: Queue, connection: CallersTransaction | None, clock: Clock | None) -> Queue:
    """A Queue for this run alone: to stop it stops no Queue of the caller's, and one that was stopped is worked off."""
    chosen = queue.settings
    if connection is not None and isinstance(chosen.now, database_now):
        # The time of an open transaction is that of its beginning: what a handler delays by nothing would not be due.
        chosen = replace(chosen, now=statement_now())
    if clock is not None:
        ahead = dialect_named_by(queue.engine).later(chosen.now, sa.literal(clock.ahead.total_seconds(), sa.Float))
        chosen = replace(chosen, now=sa.type_coerce(ahead, Instant()))
    if connection is not None:
        liveness = replace(chosen.liveness, session_lock=False, patience=0)
        try:
            chosen = replace(chosen, hold="transaction", claims=None, liveness=liveness)
        except ValueError as error:
            raise BadArgument(
                f"the jobs of this queue cannot be held by the transaction of the test ({error}): leave out "
                "`connection`, and commit what the test enqueues"
            ) from error
    bind = queue.engine if connection is None else engine_within(connection_in(connection, chosen.table, IF_ASYNC))
    if isinstance(connection, Session | scoped_session):
        connection.flush()  # the claim is sent by an engine, which does not know what the Session has not written yet
    given = {option: value for option, value in vars(chosen).items() if option not in ("hooks", "also_writes")}
    if chosen.also_writes:
        given["side_car"] = SideCar(chosen.also_writes, chosen.side_car)
    return Queue(bind, **given, **vars(chosen.hooks))


class _Results(BatchObserver):
    def __init__(self, queue: Queue) -> None:
        self.found: list[JobResult] = []
        self._queue = queue
        self._batch: Batch
        self._released: list[Key] = []

    def finish(self, consume: Callable[[], None]) -> None:
        """Consume until no job is due but those that the handler has released. Raises NothingDone."""
        while True:
            try:
                return consume()
            except NothingDone:
                if not self._released:
                    raise

    def begun(self, batch: Batch) -> None:
        self._batch = batch

    def ended(self) -> None:
        """Claim no more what the handler has released: it is due at once, and the run would not end."""
        self._released = [*self._batch.outcomes.released]
        for key in self._released:
            self._queue._consumer.plans.leave(key)

    def settled(self, batch: Batch) -> None:
        outcomes = batch.outcomes
        states: dict[Key, OutcomeWord] = {
            **{key: OUTCOME_KINDS[kind] for kind, keys in outcomes.kinds.items() for key in keys},
            **dict.fromkeys((job.key for job in batch.lost), "lost"),
        }
        for job in batch.jobs:
            state = states.get(job.key, "released")
            failure = outcomes.failures.get(job.key) if state != "lost" else None
            error = None if failure is None else failure.error
            wait = None if failure is None or state in ENDED else failure.wait
            self.found.append(JobResult(job, state, error, wait))


# --- an engine that works in the open transaction of a test -----------------------------------------------------


def engine_within(connection: sa.Connection) -> sa.Engine:
    """An engine that works in the open transaction of a connection: it commits nothing, and closes no connection.

    It is for one thread, which ends its transactions in the reverse order. Raises BadArgument if none is open.
    """
    if not connection.in_transaction():
        raise BadArgument("the connection has no open transaction: call its `begin`, and enqueue in it, before `run`")
    driver_connection = connection.connection.dbapi_connection
    dialect = copy.copy(connection.dialect)
    savepoints = _Savepoints()
    closes = ("do_close", "do_terminate", "set_isolation_level", "reset_isolation_level")
    nested = ("do_savepoint", "do_rollback_to_savepoint", "do_release_savepoint")
    vars(dialect).update(
        do_begin=savepoints.begin,
        do_commit=savepoints.commit,
        do_rollback=savepoints.roll_back,
        **dict.fromkeys(closes, lambda *_: None),  # the connection is left as the test has made it
        **{method: _renaming(getattr(dialect, method)) for method in nested},
    )
    pool = sa.pool.NullPool(lambda: driver_connection, reset_on_return=None, dialect=dialect)  # type: ignore[arg-type]
    return sa.Engine(pool, dialect, connection.engine.url)


class _Savepoints:
    """What a SQLAlchemy dialect does at the ends of a transaction, with savepoints."""

    _open = 0

    def begin(self, connection: Any) -> None:
        self._open += 1
        self._send(connection, "SAVEPOINT")

    def commit(self, connection: Any) -> None:
        if self._open:
            self._send(connection, "RELEASE SAVEPOINT")
            self._open -= 1

    def roll_back(self, connection: Any) -> None:
        if self._open:
            self._send(connection, "ROLLBACK TO SAVEPOINT")
            self.commit(connection)

    def _send(self, connection: Any, statement: str) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"{statement} {OURS}{self._open}")


def _renaming(send: Callable[[sa.Connection, str], None]) -> Callable[[sa.Connection, str], None]:
    """Each connection of SQLAlchemy numbers its savepoints from 1, and the test may have one with this number: a second
    savepoint of a name ends the first one on MySQL, and hides it on Postgres.
    """
    return lambda connection, name: send(connection, f"{OURS}{name}")

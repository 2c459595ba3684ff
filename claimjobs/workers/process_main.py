"""The main functions of the supervisor's processes: a consumer, a generator."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import string
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection

import sqlalchemy as sa

from claimjobs.batch.batch import Batch
from claimjobs.database.connect import connected
from claimjobs.database.error_translation import lasting, reason
from claimjobs.enqueue.rows import Row
from claimjobs.errors import BadHandler, ClaimjobsError, NothingDone, ReferenceNotFound, TableMissing, UnfitTable
from claimjobs.log_events import CONSUMER_CANCELLED, CONSUMER_FAILED
from claimjobs.log_records import LogFormat
from claimjobs.options import Liveness
from claimjobs.queue.map_file import Described, load, queue_of
from claimjobs.queue.queue import Queue
from claimjobs.report import Report
from claimjobs.settle.failures import Hooks
from claimjobs.signals import STOPPING, Cancelled, allow_cancel, exit_despite_threads, handle, refuse_cancel
from claimjobs.table.definitions import DEFAULT_TABLE, DEMONSTRATION, MADE_BY
from claimjobs.table.reflection import is_made_by_us
from claimjobs.workers.consumer import consume
from claimjobs.workers.handlers import Handler, Per, entered, function_named, handler_of
from claimjobs.workers.supervisor_pipe import (
    SOONEST_SECONDS,
    Ended,
    GaveUp,
    LogToSupervisor,
    OpenJobs,
    ProcessState,
    Reporter,
    SupervisorPipe,
)

log = logging.getLogger("claimjobs.process_main")

ARTICLE_PAYLOAD = {"d", "e"}
"""The payload columns of the article's jobs, which generators make and the demonstration may consume."""

HUNG = 75
"""Exit code of a process whose handler hangs. The process is replaced like one that was killed."""

DEMONSTRATION_PAUSE = 0.1
"""Seconds that the article's consumers spend on a batch."""

GENERATED_AT_ONCE = 10
"""Jobs that a generator enqueues in one transaction."""

PAYLOAD_CHARACTERS = 64
"""Characters of each payload column, as many as the article's columns hold."""


@dataclass(frozen=True)
class Plan:
    """What the processes are to do: plain values that are sent to a new process."""

    url: str = field(repr=False)  # holds a password
    described: Described = field(default_factory=dict)
    """The parameters of the Queue that are plain data."""
    handler: str | None = None
    per: Per | None = None
    size: int = 100
    poll: float = 1.0
    concurrency: int | None = None
    """Jobs that a consumer handles at once; None: 1, or several with an async function."""
    liveness: Liveness = field(default_factory=Liveness)
    on_retry: str | None = None
    on_dead: str | None = None
    """MODULE:FUNCTION of the hooks."""
    setup: str | None = None
    """MODULE:FUNCTION of a context manager that each consumer enters before its first batch."""
    observed: bool = False
    """Whether metrics or health are served: then consumers measure their batches."""
    verbose: bool = False
    """Whether every failure is logged, with its traceback."""
    log_format: LogFormat = "text"
    """How a process writes its log on standard error when its supervisor has died."""

    def queue(self) -> Queue:
        return queue_of(self.url, self.described, liveness=self.liveness)

    def check(self, generators: int) -> None:
        """Check the table and the handler before a process is started. Raises ClaimjobsError."""
        with self.queue() as queue, contextlib.ExitStack() as after:
            after.callback(queue.engine.dispose)
            queue.check()
            self.load_handler()
            self.load_hooks()
            function_named(self.setup, "--setup")
            payload = set(queue.payload)
            is_demonstration = self.handler is None and payload == ARTICLE_PAYLOAD
            if is_demonstration:
                with connected(queue.engine) as connection:
                    is_demonstration = is_made_by_us(connection, queue.table, f"{DEMONSTRATION}, {MADE_BY}")
        table = str(self.described.get("table", DEFAULT_TABLE))
        if generators and not payload >= ARTICLE_PAYLOAD:
            raise UnfitTable(f"generators fill columns d and e, which table {table!r} has not: give --generators 0")
        if self.handler is None and not is_demonstration:
            raise UnfitTable(
                f"table {table!r} was not made for the demonstration, which throws jobs away after 0.1 s: "
                "name the MODULE:FUNCTION that handles its jobs, or let `claimjobs setup-tables --table NAME` make "
                "another table"
            )

    def load_handler(self) -> Handler:
        """The user's function, or the demonstration's."""
        if self.handler is None:
            return Handler(demonstrate, "the demonstration", "batch")
        in_transaction = self.described.get("hold") == "transaction"
        return handler_of(
            load(self.handler), self.handler, self.per, in_transaction=in_transaction, concurrency=self.concurrency
        )

    def load_hooks(self) -> Hooks:
        """The user's functions that are called after a settle. Raises ReferenceNotFound or BadHandler."""
        return Hooks(
            function_named(self.on_retry, "--on-retry", "job", "error"),
            function_named(self.on_dead, "--on-dead", "job", "error"),
        )


def demonstrate(batch: Batch) -> None:
    """The article's consumer: waits a moment, then marks the whole batch done."""
    time.sleep(DEMONSTRATION_PAUSE)
    batch.done()


def article_rows() -> Iterator[Row]:
    """Endless jobs like the article's: random lower-case letters in `d` and `e`."""
    while True:
        yield {c: "".join(random.choices(string.ascii_lowercase, k=PAYLOAD_CHARACTERS)) for c in "de"}  # noqa: S311 - no secret


def run_consumer(plan: Plan, reports_begin: bool, open_jobs: OpenJobs, pipe: Connection) -> None:
    """Run a consumer process. With `reports_begin` it sends its state before and after each batch.

    It notes in `open_jobs` what it has in hand.
    """
    hung = threading.Event()
    with _working(plan, pipe) as (queue, supervisor), contextlib.ExitStack() as setup:
        supervisor.start()
        with supervisor.ends_at_once():
            handler = plan.load_handler()
            queue.use_hooks(plan.load_hooks())
            setup.enter_context(entered(plan.setup))
        if plan.observed:
            queue.measure_batches()
        supervisor.send(ProcessState(Report(), queue.owner_id or None))
        with Reporter(queue, supervisor, open_jobs, soonest=0.0 if reports_begin else SOONEST_SECONDS) as reporter:
            if handler.concurrency is None:
                consume(queue, handler, size=plan.size, poll=plan.poll, observer=reporter)
            else:

                def settle_the_others() -> None:
                    hung.set()
                    queue.stop()

                queue.on_hang = settle_the_others
                many = handler.concurrency
                queue.work(handler.function, concurrency=many, size=plan.size, poll=plan.poll, observer=reporter)
        if hung.is_set():
            sys.exit(HUNG)


def run_generator(plan: Plan, jobs: int | None, rate: float | None, pipe: Connection) -> None:
    """Run a generator process: `jobs` rows, or rows until it is stopped; at most `rate` a second."""
    with _working(plan, pipe) as (queue, supervisor):
        supervisor.start()
        rows, due = islice(article_rows(), jobs), time.monotonic()
        while not queue.stopping and (chunk := list(islice(rows, GENERATED_AT_ONCE))):
            if rate is not None:
                due = max(due, time.monotonic() - 1.0)  # a delay of up to a second is caught up
                queue.wait(max(0.0, due - time.monotonic()))
                due += len(chunk) / rate
            if not queue.stopping:
                queue.enqueue(chunk)
                supervisor.send(ProcessState(queue.report))


@contextmanager
def _working(plan: Plan, pipe: Connection) -> Iterator[tuple[Queue, SupervisorPipe]]:
    """A queue and a pipe to the supervisor, to be started in the block: a `cancel` that has come already is raised in
    it. At the end no job is held, and the last report is sent.
    """
    queue = plan.queue()
    queue.on_hang = lambda: os._exit(HUNG)
    # Ctrl-C reaches the whole foreground group, and a service manager's SIGTERM every process of the service.
    # The supervisor decides what that means, and sends a command through the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = SupervisorPipe(pipe, queue)
    handle(signal.SIGTERM, supervisor.stop_by_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    allow_cancel()
    handlers = [LogToSupervisor(supervisor, plan.log_format)]
    logging.basicConfig(level=logging.INFO if plan.verbose else logging.WARNING, handlers=handlers, force=True)
    log_details(plan.verbose, plan.handler)
    code = 0
    try:
        yield queue, supervisor
    except Cancelled:
        log.warning("cancelled: a batch that is not settled is released", extra={"event": CONSUMER_CANCELLED})
        supervisor.was_signalled = supervisor.was_signalled or not queue.stopping  # the supervisor stops it before
    except Exception as error:
        code, words = 1, f"{type(error).__name__}: {reason(error)}"
        is_missing = isinstance(error, TableMissing)  # the supervisor logs it, once for all processes
        if not is_missing:
            is_known = isinstance(error, (ClaimjobsError, sa.exc.DBAPIError))
            fields = {"event": CONSUMER_FAILED, "error": words}
            log.exception("ended by %s", words, extra=fields, exc_info=None if is_known else error)
        kind = lasting(error, queue.engine)
        if isinstance(error, (ReferenceNotFound, BadHandler)):  # the supervisor could import the module
            kind = type(error).__name__
        if kind is not None:
            at_once = is_missing or isinstance(error, NothingDone)
            supervisor.send(GaveUp(kind, words, at_once=at_once, table_missing=is_missing))
    finally:
        refuse_cancel()  # it would interrupt the release of what is held, and the last report
        queue.close()
        queue.engine.dispose()
        supervisor.send(ProcessState(queue.report))
    if supervisor.died:
        code = 1  # if it lives, and only the pipe is broken, it starts another process
    else:
        supervisor.send(Ended(by_signal=supervisor.was_signalled))
    exit_despite_threads(code)
    if code:
        sys.exit(code)


def log_details(verbose: bool, handler: str | None = None) -> None:
    """Show the messages of claimjobs, if `verbose` with those for debugging, and those of the package of the handler.
    Other libraries show theirs from WARNING on: a client of a service may log a line for each call.
    """
    logging.getLogger("claimjobs").setLevel(logging.DEBUG if verbose else logging.INFO)
    if handler is not None:
        logging.getLogger(handler.partition(":")[0].partition(".")[0]).setLevel(logging.INFO)

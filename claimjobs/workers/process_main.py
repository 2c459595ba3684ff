"""Worker: what runs in a process of its own, a consumer or a generator."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
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
from claimjobs.errors import BadTable, ClaimjobsError, NothingDone
from claimjobs.options import Liveness, Retry
from claimjobs.queue.config import Shape
from claimjobs.queue.queue import Queue
from claimjobs.queue.references import load
from claimjobs.signals import Cancelled, can_be_taken_back, leave_threads_behind, let_through
from claimjobs.table.reflection import is_demonstrations
from claimjobs.workers.consumer import consume
from claimjobs.workers.demo import article_rows, produce
from claimjobs.workers.handlers import Handler, Per, handler_of
from claimjobs.workers.supervisor_pipe import (
    Began,
    Ended,
    GaveUp,
    LogToSupervisor,
    Progress,
    Registered,
    SupervisorPipe,
)

log = logging.getLogger("claimjobs.worker")

ARTICLE_PAYLOAD = {"d", "e"}
"""The payload of the article's jobs: what generators make and the demonstration may consume."""

HUNG = 75
"""Exit code of a process whose handler hangs: it is ended like one that was killed, and replaced."""

DEMONSTRATION_PAUSE = 0.1
"""Seconds that the article's consumers spend on a batch."""


@dataclass(frozen=True)
class Plan:
    """What the processes are to do; plain values, to be handed to a new process."""

    url: str = field(repr=False)  # holds a password
    shape: Shape = field(default_factory=Shape)
    handler: str | None = None
    per: Per | None = None
    size: int = 100
    poll: float = 1.0
    prefetch: int = 0
    liveness: Liveness = field(default_factory=Liveness)
    retry: Retry = field(default_factory=Retry)
    commit_every: int = 10
    verbose: bool = False
    """Whether every failure is told, with where it was raised."""

    def queue(self) -> Queue:
        """A Queue of this process's own."""
        return self.shape.queue(sa.make_url(self.url), liveness=self.liveness, retry=self.retry)

    def check(self, generators: int) -> None:
        """Find out whether processes could work at all, before one is started. Raises ClaimjobsError."""
        with self.queue() as queue, contextlib.ExitStack() as after:
            after.callback(queue.engine.dispose)
            queue.check()
            self.load_handler()
            payload = set(queue.payload)
            thrown_away = self.handler is None and payload == ARTICLE_PAYLOAD and _is_demonstrations(queue)
        if generators and not payload >= ARTICLE_PAYLOAD:
            raise BadTable(f"generators fill columns d and e, which table {self.shape.table!r} has not: --generators 0")
        if self.handler is None and not thrown_away:
            raise BadTable(
                f"table {self.shape.table!r} was not made for the demonstration, which throws jobs away after 0.1 s: "
                "name the MODULE:FUNCTION that handles its jobs, or let `claimjobs setup-tables --table NAME` make "
                "another table"
            )

    def load_handler(self) -> Handler:
        """The user's function, or the article's demonstration."""
        if self.handler is None:
            return demonstrate
        return handler_of(load(self.handler), self.handler, self.per, in_transaction=self.shape.hold == "transaction")


def _is_demonstrations(queue: Queue) -> bool:
    with connected(queue.engine) as connection:
        return is_demonstrations(connection, queue.table)


def demonstrate(batch: Batch) -> None:
    """The article's consumer: each batch takes a while, and then all of it is done."""
    time.sleep(DEMONSTRATION_PAUSE)
    batch.done()


def run_consumer(plan: Plan, tells: bool, pipe: Connection) -> None:
    """A consumer process, from its start to its end; whether it tells when it begins with a batch."""
    with _working(plan, pipe) as (queue, lifeline):
        with lifeline.nothing_in_hand():
            loaded = plan.load_handler()
        handler = _telling(loaded, lifeline) if tells else loaded
        lifeline.send(Registered(queue.owner_id or None))
        consume(
            queue,
            handler,
            size=plan.size,
            poll=plan.poll,
            prefetch=plan.prefetch,
            on_batch=lambda batch: lifeline.send(Progress(queue.report, len(batch), queue.owner_id)),
        )


def _telling(handler: Handler, lifeline: SupervisorPipe) -> Handler:
    def begin(batch: Batch) -> None:
        lifeline.send(Began())
        handler(batch)

    return begin


def run_generator(plan: Plan, jobs: int | None, rate: float | None, pipe: Connection) -> None:
    """A generator process: `jobs` rows, or rows until it is told to stop."""
    with _working(plan, pipe) as (queue, lifeline):
        rows = article_rows() if jobs is None else islice(article_rows(), jobs)
        produce(
            queue,
            rows,
            commit_every=plan.commit_every,
            rate=rate,
            on_commit=lambda _: lifeline.send(Progress(queue.report)),
        )


@contextmanager
def _working(plan: Plan, pipe: Connection) -> Iterator[tuple[Queue, SupervisorPipe]]:
    """A queue and a lifeline; at the end, however it comes, nothing is held and the last count is sent."""
    queue = plan.queue()
    queue.on_hang = lambda: os._exit(HUNG)
    lifeline = _begin(pipe, queue, plan)
    code = 0
    try:
        yield queue, lifeline
    except Cancelled:
        log.warning("ended at once: a batch in hand is given back")
    except Exception as error:
        code = 1
        _tell(error)
        kind = lasting(error, queue.engine)
        if kind is not None:
            lifeline.send(GaveUp(kind, _words(error), at_once=isinstance(error, NothingDone)))
    finally:
        queue.close()
        queue.engine.dispose()
        lifeline.send(Progress(queue.report))
    lifeline.send(Ended())
    leave_threads_behind(code)
    if code:
        sys.exit(code)


def _tell(error: Exception) -> None:
    """One line for what has a name; the whole story for what has none."""
    known = isinstance(error, (ClaimjobsError, sa.exc.DBAPIError))
    log.error("ended by %s", _words(error), exc_info=not known)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {reason(error)}"


def _begin(pipe: Connection, queue: Queue, plan: Plan) -> SupervisorPipe:
    # Ctrl-C reaches the whole foreground group, and a service manager's SIGTERM every process of the service:
    # the supervisor decides what that means, and says so through the lifeline.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: queue.stop())
    let_through()
    can_be_taken_back()
    lifeline = SupervisorPipe(pipe, queue)
    handler = LogToSupervisor(lifeline)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    log_details(plan.verbose)
    return lifeline


def log_details(verbose: bool) -> None:
    """Whether what is told for `--verbose` alone is told, too: not by other libraries, which have much to tell."""
    logging.getLogger("claimjobs").setLevel(logging.DEBUG if verbose else logging.NOTSET)

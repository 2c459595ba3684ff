"""The loop of a consumer: claim a batch, call the handler, settle."""

from __future__ import annotations

import logging
import os

from claimjobs.batch.batch import Batch
from claimjobs.dialects import dialect_named_by
from claimjobs.errors import (
    BatchRolledBack,
    NoOpenTransaction,
    NothingDecided,
    NothingDone,
    OutcomeRefused,
    UnfitTable,
    Unreadable,
)
from claimjobs.key_text import text_of
from claimjobs.log_events import BATCH_ROLLED_BACK, HANDLER_FAILED
from claimjobs.log_records import log_safely
from claimjobs.options import Backoff
from claimjobs.queue.batch_loop import VAIN_BATCHES, Drain, fields_of, log, log_lost, log_refused
from claimjobs.queue.job_pool import PoolObserver
from claimjobs.queue.queue import Queue
from claimjobs.signals import Cancelled, end_if_forked
from claimjobs.workers.handlers import Handler

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds a consumer waits after a batch of which it released all jobs, or some undecided; doubled each time."""

TIME_LIMIT_SECONDS = 1.0
"""Seconds for which an open transaction held a batch before its connection was lost. If that happens again and again,
the server has a time limit, or a proxy before it. These limits are rarely shorter."""

LASTING = (BatchRolledBack, Unreadable)
"""Errors that each further try meets again, because the row stays as it is."""


class BatchObserver(PoolObserver):
    """Is told what the loop of a consumer does. This one ignores it."""

    def begun(self, batch: Batch) -> None:
        """The handler begins with this batch."""

    def ended(self) -> None:
        """The handler has ended, also by an exception."""


def consume(
    queue: Queue,
    handler: Handler,
    *,
    size: int = 100,
    drain: Drain = False,
    poll: float = 1.0,
    idle: float | None = None,
    observer: BatchObserver | None = None,
) -> None:
    """Handle batches until the queue is stopped, or drained: by a call of `Queue.drain`, or as `drain` says. `idle`: as
    of `Queue.batches`.

    An exception of the handler (SystemExit, too) is logged, and the loop goes on: the jobs without an outcome become
    suspects. If suspects cannot be stored, if the handler gave no outcome at all, or released all jobs, or if the open
    transaction was rolled back, the jobs are released, and the consumer pauses. Raises NothingDone if the queue is
    drained and no job is done or failed in several batches in a row. Without a drain it is raised only for a row that
    the database refuses, or a value that cannot be read: no job after such a row would ever be claimed.
    """
    backoff, fruitless = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=1.0), 0
    observer = observer or BatchObserver()
    for batch in queue.batches(size, drain=drain, poll=poll, idle=idle):
        failure = _settled(queue, batch, handler, observer)
        if failure is None:
            backoff.reset()
        else:
            queue.wait(backoff.pause())
        observer.settled(batch)
        fruitless = fruitless + 1 if failure is not None and _is_fruitless(queue, batch, failure) else 0
        ends = drain or queue.draining or isinstance(failure, LASTING)
        if failure is not None and fruitless >= VAIN_BATCHES and ends:
            why = str(failure)
            if not isinstance(failure, (NothingDecided, NoOpenTransaction, BatchRolledBack)):
                # The table may lack columns to store a failure: each comes with the statement that adds it.
                lacks = map(str, queue.roles.lacking("attempts", "run_at", "suspect"))
                why = "; ".join((f"{type(failure).__name__}: {text_of(failure)}", *lacks))
            says = f"no job of {fruitless} batches in a row was done, the last time because of this: {why}"
            raise NothingDone(says) from failure


def _settled(queue: Queue, batch: Batch, handler: Handler, observer: BatchObserver) -> BaseException | None:
    """Handle and settle a batch; return the error after which the next claim may return the same jobs."""
    try:
        raised = _handled(queue, batch, handler, observer)
    except (BatchRolledBack, NoOpenTransaction) as error:
        fields = fields_of(BATCH_ROLLED_BACK, queue.table.fullname, batch, error)
        log.warning("%d jobs: %s", len(batch), error, extra=fields)
        return None if isinstance(error, BatchRolledBack) and error.isolates else error
    except OutcomeRefused as error:
        log_refused(queue.table.fullname, batch, error)
        return None
    if raised is None and batch.outcomes.released and batch.outcomes.only_released:
        return NothingDecided(
            f"{handler.name} released all jobs of the batch, and they are due again at once: to give a job a later "
            "time, call `batch.fail(job, why, retry_in=seconds)`"
        )
    return raised if batch.outcomes.released else None


def _is_fruitless(queue: Queue, batch: Batch, failure: BaseException) -> bool:
    """Whether no job of the batch was done or failed, and another try would end in the same way."""
    if isinstance(failure, BatchRolledBack):
        if failure.limit is not None or (failure.lost_after or 0.0) >= TIME_LIMIT_SECONDS:
            return True
        errors, cause = dialect_named_by(queue.engine).errors, failure.__cause__
        return cause is not None and errors.passing_kind(cause) is None
    return isinstance(failure, NoOpenTransaction) or batch.outcomes.only_released


def _handled(queue: Queue, batch: Batch, handler: Handler, observer: BatchObserver) -> BaseException | None:
    raised: BaseException | None = None
    table, process = queue.table.fullname, os.getpid()
    with batch:
        observer.begun(batch)
        try:
            handler.handle(batch)
        except (NothingDecided, UnfitTable) as error:  # the handler decided nothing, or the table stores no failure
            raised, fields = error, fields_of(HANDLER_FAILED, table, batch, error)
            log_safely(log, logging.ERROR, "%s", text_of(error), fields=fields, raised=error.__context__)
        except (BatchRolledBack, NoOpenTransaction, Cancelled):
            raise
        except BaseException as error:
            end_if_forked(process, error)
            raised, undecided = error, len(batch.undecided)
            batch.blame(error)
            # Otherwise its job is reported after the settle. A user's class may have an equality of its own.
            if not any(error is failure.raised for failure in batch.outcomes.failures.values()):
                fields = fields_of(HANDLER_FAILED, table, batch, error)
                words = "the handler failed with %d of %d jobs undecided: %s"
                log_safely(
                    log, logging.ERROR, words, undecided, len(batch), fields["error"], fields=fields, raised=error
                )
        finally:
            observer.ended()
    log_lost(table, batch.lost)
    return raised

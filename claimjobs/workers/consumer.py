"""Consumer: one loop that puts batches into a handler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from claimjobs.backoff import Backoff
from claimjobs.batch.batch import Batch
from claimjobs.database.error_translation import passes, reason
from claimjobs.errors import BatchRolledBack, NoOpenTransaction, NothingDecided, NothingDone, OutcomeRefused, UnfitTable
from claimjobs.queue.queue import Queue
from claimjobs.signals import Cancelled
from claimjobs.table.columns import DEAD
from claimjobs.table.predicates import Where
from claimjobs.table.roles import Roles
from claimjobs.workers.handlers import Handler

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds a consumer waits after a batch that it had to release as it was; doubled from one to the next."""
VAIN = 5
"""Batches in a row of which nothing may come while the queue is drained."""

log = logging.getLogger("claimjobs.consumer")


def consume(
    queue: Queue,
    handler: Handler,
    *,
    size: int = 100,
    where: Where = None,
    poll: float = 1.0,
    prefetch: int = 0,
    on_batch: Callable[[Batch], None] = lambda _: None,
) -> None:
    """Handle batches until the queue is told to stop or to drain. `on_batch` is called after each settle.

    Whatever a handler raises, SystemExit too, is logged, and the loop goes on: the jobs that it had not decided are
    suspect, and wait. Where they cannot be marked, nothing was said about any, or the transaction that held them is
    gone, they are free, and this consumer waits. While the queue is drained that would never end: after a few batches
    in a row of which nothing came NothingDone is raised.
    """
    backoff, vain = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=1.0), 0
    for batch in queue.batches(size, where, poll=poll, prefetch=prefetch):
        failure = _settled(batch, handler)
        if failure is None:
            backoff.reset()
        else:
            queue.wait(backoff.pause())
        on_batch(batch)
        vain = vain + 1 if failure is not None and _is_vain(queue, batch, failure) else 0
        if failure is not None and vain >= VAIN and queue.draining:
            raise NothingDone(vain, _why(failure, queue.roles)) from failure


def _settled(batch: Batch, handler: Handler) -> BaseException | None:
    """Handle and settle a batch; what went wrong, where nothing came of it, so that the next may be the same again."""
    try:
        raised = _handled(batch, handler)
    except (BatchRolledBack, NoOpenTransaction) as error:
        log.warning("%d jobs: %s", len(batch), error)
        return error
    except OutcomeRefused as error:
        if not error.others:  # all that this table's jobs come to may be refused
            raise
        log.error("%s", error)  # noqa: TRY400 - it says all
        return None
    return raised if batch.outcomes.released else None


def _is_vain(queue: Queue, batch: Batch, failure: BaseException) -> bool:
    """Whether no job of the batch was done, or failed, and the next try promises no better."""
    if isinstance(failure, BatchRolledBack):
        return failure.__cause__ is not None and not passes(failure.__cause__, queue.engine)
    return isinstance(failure, NoOpenTransaction) or not (batch.outcomes.done or batch.outcomes.errors)


def _why(failure: BaseException, roles: Roles) -> str:
    """What went wrong, and what the table lacks to hold it, each with the statement that adds it."""
    if isinstance(failure, (NothingDecided, NoOpenTransaction, BatchRolledBack)):
        return str(failure)
    return "; ".join((f"{type(failure).__name__}: {failure}", *_lacking(roles)))


def _lacking(roles: Roles) -> Iterator[str]:
    purpose = "holding a failure"
    needs: list[Callable[[], object]] = [
        partial(roles.need, role, purpose) for role in ("attempts", "run_at", "suspect")
    ]
    needs.append(partial(roles.need_state, DEAD, purpose))
    for need in needs:
        try:
            need()
        except UnfitTable as lack:
            yield str(lack)


def _handled(batch: Batch, handler: Handler) -> BaseException | None:
    """Handle and settle a batch; what the handler raised."""
    raised: BaseException | None = None
    with batch:
        try:
            handler(batch)
        except (NothingDecided, UnfitTable) as error:  # a mistake in the handler, or a table that holds no failure
            raised = error
            log.error("%s", error)  # noqa: TRY400 - it says all; where it was raised says nothing
        except (BatchRolledBack, NoOpenTransaction):
            raise
        except Cancelled:
            raise
        except BaseException as error:
            _tell(batch, raised := error)
            batch.blame(error)
    if batch.lost:
        log.warning("%d jobs were not ours any more; their outcome was not written", len(batch.lost))
    return raised


def _tell(batch: Batch, error: BaseException) -> None:
    """In one line, and with `--verbose` where it was raised."""
    found = f"{type(error).__name__}: {reason(error)}"
    log.error("the handler failed with %d of %d jobs undecided: %s", len(batch.undecided), len(batch), found)
    log.debug("the handler failed here:", exc_info=error)

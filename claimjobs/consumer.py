"""Consumer: one loop that puts batches into a handler."""

from __future__ import annotations

import logging
from collections.abc import Callable

from claimjobs.batch import Batch
from claimjobs.errors import BatchRolledBack, NoOpenTransaction, NothingDecided, UnfitTable
from claimjobs.handlers import Handler
from claimjobs.queue import Queue
from claimjobs.selection import Where

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds a consumer waits after a batch that it had to release as it was; doubled from one to the next."""

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

    A handler's exception is logged, and the loop goes on: the jobs that it had not decided are suspect, and wait.
    Where they cannot be marked, nothing was said about any, or the transaction that held them is gone, they are
    free, and this consumer waits.
    """
    pause = FIRST_PAUSE
    for batch in queue.batches(size, where, poll=poll, prefetch=prefetch):
        if _settled(batch, handler):
            pause = FIRST_PAUSE
        else:
            queue.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        on_batch(batch)


def _settled(batch: Batch, handler: Handler) -> bool:
    """Handle and settle a batch; whether something came of it, so that the next claim would not be the same again."""
    try:
        return _handled(batch, handler) or not batch.outcomes.released
    except (BatchRolledBack, NoOpenTransaction) as error:
        log.warning("%d jobs: %s", len(batch), error)
        return False


def _handled(batch: Batch, handler: Handler) -> bool:
    """Handle and settle a batch; whether the handler returned as it should."""
    raised: Exception | None = None
    with batch:
        try:
            handler(batch)
        except (NothingDecided, UnfitTable) as error:  # a mistake in the handler, or a table that holds no failure
            raised = error
            log.error("%s", error)  # noqa: TRY400 - it says all; where it was raised says nothing
        except (BatchRolledBack, NoOpenTransaction):
            raise
        except Exception as error:
            log.exception("the handler failed with %d of %d jobs undecided", len(batch.undecided), len(batch))
            batch.blame(raised := error)
    if batch.lost:
        log.warning("%d jobs were not ours any more; their outcome was not written", len(batch.lost))
    return raised is None

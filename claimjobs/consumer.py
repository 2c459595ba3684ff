"""Consumer: one loop that puts batches into a handler."""

from __future__ import annotations

import logging
from collections.abc import Callable

from claimjobs.batch import Batch
from claimjobs.handlers import Handler
from claimjobs.queue import Queue, Where

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds a consumer waits after a handler's error before its next batch; doubled from one error to the next."""

log = logging.getLogger("claimjobs.consumer")


def consume(
    queue: Queue,
    handler: Handler,
    *,
    size: int = 100,
    where: Where = None,
    poll: float = 1.0,
    on_batch: Callable[[Batch], None] = lambda _: None,
) -> None:
    """Handle batches until the queue is told to stop or to drain. `on_batch` is called after each settle.

    A handler's exception releases what it had not decided, is logged, and the loop goes on after a pause.
    """
    pause = FIRST_PAUSE
    for batch in queue.batches(size, where, poll=poll):
        if _handled(batch, handler):
            pause = FIRST_PAUSE
        else:
            queue.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        on_batch(batch)


def _handled(batch: Batch, handler: Handler) -> bool:
    """Handle and settle a batch; whether the handler returned."""
    error = None
    with batch:
        try:
            handler(batch)
        except Exception as raised:
            log.exception("the handler failed; %d of %d jobs are released", len(batch.undecided), len(batch))
            error = raised
    if batch.lost:
        log.warning("%d jobs were not ours any more; their outcome was not written", len(batch.lost))
    return error is None

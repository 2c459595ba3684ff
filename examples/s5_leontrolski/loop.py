"""The article's polling loop with its shutdown handler."""

from __future__ import annotations

from typing import Any

from claimjobs import stop_on_signals
from examples.harness import must
from examples.s5_leontrolski import ours

SECONDS = 30.0


def loop(url: str, in_hand: Any, go_on: Any, *, idle: float = 3_600.0) -> int:
    """Process events one by one; return how many.

    The loop ends after the current event when SIGINT or SIGTERM comes, and after an hour without an event.
    """
    count = 0
    with ours.queue_on(url) as queue, stop_on_signals(queue):
        for batch in queue.batches(1, idle=idle):
            with batch:
                for _ in batch:
                    in_hand.set()
                    must(go_on.wait(SECONDS), "nobody let it go on")
                    count += 1
    return count

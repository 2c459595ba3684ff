"""Drain with handlers: consumers empty a table, and a handler sleeps for each batch. `--help`

What `benchmarks.scale` predicts is held against these runs. All consumers cross the start line together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import article, report, tables
from benchmarks.contestants import LOOPS, OURS, share
from benchmarks.drain import drain
from benchmarks.goals import Found, Goal
from benchmarks.harness import Contestant
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Drain with handlers, by consumers"
VARIES = "consumers"
UNIT = "jobs/s"
PLOT: Plot = None
SIZES = {"consumers": [1, 2, 4, 8], "handler_ms": [0, 10, 50], "batch": [10, 100], "seconds": 2}
SMALL = {"consumers": [1, 2], "handler_ms": [0, 10], "batch": [10], "seconds": 1}
FULL = {"seconds": 10}

BATCH = "batch"
HANDLER = "handler ms"
"""For a whole batch."""
SHORTEST_TURN_MS = {"postgres": 2, "mysql": 6, "mariadb": 6}
"""Of one consumer with batches of 100, about: it says how many jobs a run of some seconds needs."""
MOST_BATCHES = 2_000


@dataclass(frozen=True)
class Pause:
    """A handler that waits, as for an answer of another service: it takes no CPU."""

    seconds: float

    def take(self, _keys: list[Any]) -> None:
        """Sleep for a batch."""
        if self.seconds:
            time.sleep(self.seconds)


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Each handler and each batch size with each number of consumers."""
    for handler_ms in sizes.handler_ms:
        for size in sizes.batch:
            for consumers in sizes.consumers:
                batches = _batches(server.backend, consumers, handler_ms, sizes.seconds)
                rows = list(article.payload(size * batches))
                run = drain(_contestant(handler_ms, size), consumers, url=server.url, rows=rows, pid=server.pid)
                sample = report.sample(run)
                yield replace(sample, also={**sample.also, HANDLER: handler_ms, BATCH: size})


def _batches(backend: str, consumers: int, handler_ms: float, seconds: float) -> int:
    """So many that a run takes some seconds, and each consumer has as many as the others."""
    of_each = seconds * 1000 / (handler_ms + SHORTEST_TURN_MS[backend])
    at_once = consumers if handler_ms else 1
    return min(MOST_BATCHES, max(consumers, round(of_each * at_once)))


def _contestant(handler_ms: float, size: int) -> Contestant:
    opened, options = LOOPS[OURS]
    work = Pause(handler_ms / 1000).take
    consume = partial(share, opened=opened, size=size, work=work, **options)
    return Contestant(f"{OURS}, {handler_ms:g} ms, batches of {size:,}", tables.setup_claimjobs, consume)


def goals(_found: Found, _backend: str) -> Iterator[Goal]:
    """None: the figures are for the model."""
    return iter(())


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("with_handlers")

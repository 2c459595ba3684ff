"""The demonstration's producer: generates jobs and enqueues them."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator
from itertools import islice

from claimjobs.enqueue.rows import Row
from claimjobs.queue.queue import Queue

LENGTH = 64
"""Characters of each payload column, as many as the article's columns hold."""


def article_rows() -> Iterator[Row]:
    """Endless jobs like the article's: random lower-case letters in `d` and `e`."""
    while True:
        yield {"d": _letters(), "e": _letters()}


def produce(
    queue: Queue,
    rows: Iterator[Row],
    *,
    commit_every: int = 10,
    rate: float | None = None,
    on_commit: Callable[[int], None] = lambda _: None,
) -> None:
    """Enqueue rows, `commit_every` in a transaction, until they end or the queue is stopped.

    `rate` is the most rows per second. `on_commit` is called with the number of rows of each commit.
    """
    pace = Pace(rate)
    while not queue.stopping and (chunk := list(islice(rows, commit_every))):
        queue.wait(pace.pause(len(chunk)))
        if not queue.stopping:
            on_commit(queue.enqueue(chunk))


class Pace:
    """Keeps a rate over time. A delay of up to a second is caught up."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._next = clock()

    def pause(self, rows: int) -> float:
        """Seconds to wait before these rows are due."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        due = max(self._next, now - 1.0)
        self._next = due + rows / self._rate
        return max(0.0, due - now)


def _letters() -> str:
    return "".join(random.choices(string.ascii_lowercase, k=LENGTH))  # noqa: S311 - demonstration data

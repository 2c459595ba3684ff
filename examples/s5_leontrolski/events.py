"""Fills the table of events, and counts them by status."""

from __future__ import annotations

from uuid import uuid4

from benchmarks.article import connected
from examples.harness import fill, fresh, rows

NAME = "s5_leontrolski"
TABLES = ["event_queue"]


def setup(url: str, count: int) -> None:
    """Insert so many events."""
    fresh(url, NAME, TABLES)
    with connected(url) as db:
        fill(db, "insert into event_queue (id) values (%s)", [(str(uuid4()),) for _ in range(count)], "event_queue")


def statuses(url: str) -> dict[int, int]:
    """How many events there are of each status."""
    with connected(url) as db:
        return dict(rows(db, "select status, count(*) from event_queue group by status"))

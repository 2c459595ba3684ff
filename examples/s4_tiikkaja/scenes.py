"""Two sessions, step by step: the results of the naive statements."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psycopg
import pymysql

from benchmarks.article import Connection, connected
from examples.harness import fill, fresh
from examples.s4_tiikkaja import naive

NAME = "s4_tiikkaja"
TABLES = ["items", "orders"]


def setup(url: str, rows: int) -> None:
    """Make both queues, with so many available rows each."""
    fresh(url, NAME, TABLES)
    with connected(url) as db:
        for table in TABLES:
            fill(db, f"insert into {table} (available) values (%s)", [(True,)] * rows, table)


@contextmanager
def sessions(url: str, count: int) -> Iterator[list[Connection]]:
    """So many connections at READ COMMITTED."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(url, read_committed=True)) for _ in range(count)]


def read_twice(url: str) -> int:
    """How many sessions get the first row, if each reads it before the other has marked it."""
    with sessions(url, 2) as (one, other):
        seen = [naive.look(one), naive.look(other)]
    return seen.count(seen[0])


def snapshot_race(url: str, *, recheck: bool) -> int:
    """How many sessions get the first row, if one marks it, and releases its lock, while the other's statement runs.

    The second statement reads the row as it was when it began, and finds the lock free.
    """
    with sessions(url, 2) as (one, other):
        naive.freeze(other)
        first = naive.try_lock(one)
        assert first is not None
        naive.take(one, first)
        second = naive.try_lock(other)
        if recheck and second is not None:
            other.commit()
            second = second if naive.still_available(other, second) else None
    return [first, second].count(first)


def convoy(url: str, consumers: int) -> int:
    """How many sessions wait while the first one works on its row."""
    with sessions(url, consumers) as (one, *others), ThreadPoolExecutor(consumers) as pool:
        naive.lock_first(one)
        return sum(pool.map(_waits, others))


def _waits(db: Connection) -> bool:
    naive.hurry(db)
    try:
        naive.lock_first(db)
    except (psycopg.errors.LockNotAvailable, pymysql.err.OperationalError):
        return True
    return False


def locks_of_a_sorted_claim(url: str) -> int:
    """How many advisory locks a claim of one row takes, if the rows are sorted after the condition."""
    with sessions(url, 2) as (one, eye):
        naive.try_lock_sorted(one)
        return naive.held(eye)


def locks_after_a_failed_recheck(url: str) -> int:
    """How many advisory locks stay after a recheck that failed, without a release."""
    with sessions(url, 3) as (one, other, eye):
        naive.freeze(other)
        first = naive.try_lock(one)
        assert first is not None
        naive.take(one, first)
        second = naive.try_lock(other)
        other.commit()
        assert second == first
        assert not naive.still_available(other, second)
        return naive.held(eye)


def same_number_in_two_queues(url: str) -> bool:
    """Whether the first row of one queue can be locked while another session works on the first row of the other."""
    with sessions(url, 2) as (one, other):
        return naive.try_lock(one) == naive.try_lock(other, "orders")

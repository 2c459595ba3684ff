"""Jobs for tests: numbered, so that an assertion can say which. And what was sent to the database for them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from claimjobs import Job, Queue
from claimjobs.table.predicates import Where
from tests.backends import Backend


def jobs(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Rows for the article's table: `d` is "0000", "0001" and so on."""
    return [{"d": f"{number:04}", "e": "", **columns} for number in range(count)]


def names(found: Iterable[Job]) -> list[str]:
    """`d` of each. Of a batch too, without deciding anything about its jobs."""
    return [job.d for job in getattr(found, "jobs", found)]


def dead_jobs(queue: Queue, where: Where = None, *, limit: int | None = None) -> list[Job]:
    """The dead jobs: the rows with their attempts and their last errors."""
    return [stored.record or stored.job for stored in queue.jobs.list(where, state="dead", limit=limit)]


@contextmanager
def counted(engine: sa.Engine, *, of_all_threads: bool = False) -> Iterator[list[str]]:
    """The statements and the ends of transactions ("COMMIT", "ROLLBACK") that an engine sends in the block.

    Those of other threads are not counted: a heartbeat may come at any moment, if the machine is slow enough.
    """
    sent: list[str] = []
    here = threading.get_ident()

    def note(what: str) -> None:
        if of_all_threads or threading.get_ident() == here:
            sent.append(what)

    listeners: dict[str, Callable[..., Any]] = {
        "before_cursor_execute": lambda _c, _cursor, statement, *_: note(statement),
        "commit": lambda _c: note("COMMIT"),
        "rollback": lambda _c: note("ROLLBACK"),
    }
    for event, listener in listeners.items():
        sa.event.listen(engine, event, listener)
    try:
        yield sent
    finally:
        for event, listener in listeners.items():
            sa.event.remove(engine, event, listener)


@contextmanager
def before_the_lock(engine: sa.Engine, table: str, act: Callable[[], object]) -> Iterator[None]:
    """Run `act` once, before the first statement that locks rows of this table is sent: after the search, if there is
    one before it.
    """
    did: list[str] = []

    def look(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "SKIP LOCKED" in statement and not re.search(rf"\b{table}_keys\b", statement) and not did:
            did.append(statement)
            act()

    sa.event.listen(engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", look)
    assert did


def statements_with(sent: list[str], word: str) -> list[str]:
    """Those of the statements in which this word stands."""
    return [statement for statement in sent if word in statement]


def way_of_a_claim(backend: Backend) -> list[str]:
    """The statements of a claim by lease, as `counted` shows them."""
    if backend.has("one statement"):
        return ["WITH", "COMMIT"]
    return ["SELECT", *([] if backend.has("lock of what is found") else ["SELECT"]), "UPDATE", "COMMIT"]


@contextmanager
def by_hand(backend: Backend) -> Iterator[sa.Connection]:
    """A transaction as the queue's own are, held open; then undone, unless it was committed."""
    with backend.engine.connect() as connection:
        connection.execution_options(isolation_level=backend.dialect.isolation)
        with connection.begin() as transaction:
            yield connection
            if transaction.is_active:
                transaction.rollback()

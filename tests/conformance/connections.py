"""Connections for tests: broken at a chosen moment; work that goes on meanwhile; what was logged about them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.dialects import Dialect


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about connections."""
    return [record.getMessage() for record in caplog.records if record.name == "claimjobs.connection"]


@contextmanager
def joined(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    """`work` in a thread that the block is to start; it must soon come to an end after it. Its error is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    try:
        yield thread
    finally:
        if thread.ident:
            thread.join(120)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def at_the_end_of(engine: sa.Engine, word: str, strike: Callable[[], None]) -> Iterator[None]:
    """Call `strike` once, when the next statement that begins with or holds this word has been answered."""
    armed = [strike]

    def answered(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if word in statement and armed:
            armed.pop()()

    sa.event.listen(engine, "after_cursor_execute", answered)
    try:
        yield
    finally:
        sa.event.remove(engine, "after_cursor_execute", answered)
    assert not armed


@contextmanager
def answer_lost(engine: sa.Engine, dialect: Dialect, happened: bool, then: Callable[[], None]) -> Iterator[None]:
    """The line breaks at the next commit: before it was sent, or (`happened`) before its answer came.

    Then `then` is called, before anything is tried again. The driver itself raises what it raises for that.
    """
    commit = engine.dialect.do_commit
    armed = [True]

    def do_commit(line: Any) -> None:
        if not armed:
            return commit(line)
        armed.clear()
        if happened:
            commit(line)
        dialect.sessions.break_connection(line.driver_connection)
        try:
            line.cursor().execute("SELECT 1")
        finally:
            then()
        raise AssertionError("the line was not cut")

    engine.dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        engine.dialect.do_commit = commit  # type: ignore[method-assign]
    assert not armed

"""Rows in a caller's transaction: what has one is used, and everything else is refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from claimjobs.contrib.ledger import Ledger
from claimjobs.errors import BadArgument, BadRow
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs


def autocommit(engine: sa.Engine) -> sa.Connection:
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


WITHOUT_TRANSACTION: dict[str, tuple[Callable[[sa.Engine], Any], str]] = {
    "a connection in AUTOCOMMIT": (autocommit, "AUTOCOMMIT has none: set another isolation level"),
    "a session in AUTOCOMMIT": (lambda engine: Session(autocommit(engine)), "AUTOCOMMIT has none"),
    "an async session": (lambda _: AsyncSession(), r"AsyncSession has none: call this in `await session.run_sync\("),
    "an async connection": (
        lambda _: create_async_engine("postgresql+psycopg_async://").connect(),
        r"AsyncConnection has none: call this in `await connection.run_sync\(",
    ),
    "an engine": (lambda engine: engine, "sqlalchemy.engine.base.Engine has none: give a Connection or a Session"),
    "a pooled connection": (lambda engine: engine.raw_connection(), "_ConnectionFairy has none"),
    "a factory of sessions": (sessionmaker, "an object of sqlalchemy.orm.session.sessionmaker"),
    "the class Session": (lambda _: Session, "the class sqlalchemy.orm.session.Session has none"),
}


@contextmanager
def closed_afterwards(given: Any) -> Iterator[Any]:
    try:
        yield given
    finally:
        for bound in (given, getattr(given, "bind", None)):
            if isinstance(bound, Session | sa.Connection | sa.PoolProxiedConnection):
                bound.close()


def test_nothing_is_sent_through_what_has_no_transaction_that_the_caller_commits(database: Backend) -> None:
    queue = database.queue()
    queue.check()
    for make, message in WITHOUT_TRANSACTION.values():
        with closed_afterwards(make(database.engine)) as given, counted(database.engine) as sent:
            with pytest.raises(BadArgument, match=message):
                queue.enqueue(jobs(2), given)
            with pytest.raises(BadArgument, match=message):
                Ledger("emails").once(given, 7)
            assert not sent
    assert not database.rows()


def test_a_scoped_session_is_the_session_of_this_thread(database: Backend) -> None:
    queue, registry = database.queue(), scoped_session(sessionmaker(database.engine))
    assert queue.enqueue(jobs(2), registry) == 2
    registry.rollback()
    queue.enqueue({"d": "kept", "e": ""}, registry)
    registry.commit()
    registry.remove()
    assert [row["d"] for row in database.rows()] == ["kept"]


def test_an_async_session_runs_the_call_with_its_session(anywhere: Backend) -> None:
    """The call that the refusal of an AsyncSession names."""
    queue = anywhere.queue()
    url = anywhere.engine.url.set(drivername="postgresql+psycopg_async")

    async def enqueue() -> int:
        engine = create_async_engine(url, poolclass=sa.NullPool)
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda sync: queue.enqueue({"d": "undone", "e": ""}, sync))
            await session.rollback()
            count = await session.run_sync(lambda sync: queue.enqueue(jobs(300), sync))
            await session.commit()
            return count

    assert asyncio.run(enqueue()) == len(anywhere.rows()) == 300


def test_an_on_bad_that_would_run_nothing_is_refused(anywhere: Backend) -> None:
    async def note(bad: BadRow) -> None: ...

    with pytest.raises(ValueError, match="on_bad is an async def function, of which a call runs nothing"):
        anywhere.queue().enqueue([{}], on_bad=note)  # type: ignore[arg-type]

"""Rows in a caller's transaction: what has one is used, and everything else is refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from claimjobs.contrib.ledger import Ledger
from claimjobs.errors import BadArgument, BadRow
from tests.backends import Backend
from tests.conformance.jobs import counted, jobs
from tests.conformance.sleepers import Consumer


def autocommit(engine: sa.Engine) -> sa.Connection:
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


WITHOUT_TRANSACTION: dict[str, tuple[Callable[[sa.Engine], Any], str]] = {
    "a connection in AUTOCOMMIT": (autocommit, "AUTOCOMMIT has none: set another isolation level"),
    "a session in AUTOCOMMIT": (lambda engine: Session(autocommit(engine)), "AUTOCOMMIT has none"),
    "an async session": (
        lambda _: AsyncSession(),
        r"AsyncSession has none: await `Queue.aenqueue`, or call this in `await session.run_sync\(",
    ),
    "an async connection": (
        lambda _: create_async_engine("postgresql+psycopg_async://").connect(),
        r"AsyncConnection has none: await `Queue.aenqueue`, or call this in `await connection.run_sync\(",
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


def async_urls(backend: Backend) -> list[sa.URL]:
    """Of each asynchronous driver for this database."""
    drivers = {"postgres": ("postgresql+asyncpg", "postgresql+psycopg_async")}.get(
        backend.family, ("mysql+aiomysql", "mysql+asyncmy")
    )
    return [sa.make_url(backend.url).set(drivername=driver) for driver in drivers]


def test_rows_are_enqueued_in_the_transaction_of_an_async_session(backend: Backend) -> None:
    queue = backend.queue()

    async def enqueue(url: sa.URL) -> None:
        engine = create_async_engine(url, poolclass=sa.NullPool)
        bad: list[BadRow] = []
        async with AsyncSession(engine) as session:
            assert await queue.aenqueue({"d": "undone", "e": ""}, session) == 1
            await session.rollback()
            assert await queue.aenqueue(jobs(300), session) == 300
            rows: list[dict[str, Any]] = [{"d": "kept", "e": ""}, {"d": None, "e": ""}, {"d": "d" * 65, "e": ""}]
            assert await queue.aenqueue(rows, session, on_bad=bad.append) == 1
            await session.commit()
        assert [each.line for each in bad] == [2, 3]
        async with engine.connect() as connection:
            await queue.aenqueue({"d": "undone, too", "e": ""}, connection)
            await connection.rollback()
            await queue.aenqueue({"d": "kept, too", "e": ""}, connection)
            await connection.commit()

    for url in async_urls(backend):
        asyncio.run(enqueue(url))
        assert sorted(row["d"] for row in backend.rows())[300:] == ["kept", "kept, too"]
        backend.run("DELETE FROM jobs")


def test_an_async_scoped_session_is_the_session_of_this_task(backend: Backend) -> None:
    queue = backend.queue()

    async def enqueue() -> None:
        engine = create_async_engine(async_urls(backend)[0], poolclass=sa.NullPool)
        registry = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        assert await queue.aenqueue(jobs(2), registry) == 2
        await registry.rollback()
        await queue.aenqueue({"d": "kept", "e": ""}, registry)
        with pytest.raises(BadArgument, match=r"await `Queue\.aenqueue`"):
            queue.enqueue(jobs(1), registry)  # type: ignore[arg-type]
        await registry.commit()
        await registry.remove()

    asyncio.run(enqueue())
    assert [row["d"] for row in backend.rows()] == ["kept"]


def test_an_async_enqueue_wakes_a_consumer_at_the_commit(backend: Backend) -> None:
    queue = backend.queue()

    async def enqueue(url: sa.URL) -> None:
        engine = create_async_engine(url, poolclass=sa.NullPool)
        async with AsyncSession(engine) as session:
            await queue.aenqueue({"d": url.drivername, "e": ""}, session)
            await session.commit()

    with Consumer(backend) as consumer:
        for done, url in enumerate(async_urls(backend), 1):
            consumer.falls_asleep()
            asyncio.run(enqueue(url))
            backend.wait_for(lambda: len(consumer.done) == done, "it was woken")  # noqa: B023 - called at once


def test_an_async_enqueue_without_a_transaction_commits_by_itself(backend: Backend) -> None:
    queue = backend.queue()
    assert asyncio.run(queue.aenqueue(jobs(3))) == len(backend.rows()) == 3
    for given in (backend.engine, 3):
        with pytest.raises(BadArgument, match="has none: give a Connection"):
            asyncio.run(queue.aenqueue(jobs(1), given))  # type: ignore[arg-type]
    with backend.engine.connect() as connection, pytest.raises(BadArgument, match="no AsyncSession or AsyncConn"):
        asyncio.run(queue.aenqueue(jobs(1), connection))  # type: ignore[arg-type]


def test_a_queue_of_an_async_engine_has_an_engine_of_its_own(backend: Backend) -> None:
    backend.make()
    for url in async_urls(backend):
        with backend.bare_queue(bind=create_async_engine(url)) as queue:  # type: ignore[arg-type]
            queue.enqueue(jobs(1))
            with queue.claim() as batch:
                batch.done()
            assert not queue.engine.dialect.is_async
        queue.engine.dispose()
    assert backend.rows() == []


def test_an_on_bad_that_would_run_nothing_is_refused(anywhere: Backend) -> None:
    async def note(bad: BadRow) -> None: ...

    with pytest.raises(ValueError, match="on_bad is an async def function, of which a call runs nothing"):
        anywhere.queue().enqueue([{}], on_bad=note)  # type: ignore[arg-type]

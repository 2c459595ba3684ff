"""What was done in another database is done once there, however often its job is executed."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from claimjobs import Job, make
from claimjobs.contrib.ledger import LEDGER_TABLE, Ledger, ledger_table
from claimjobs.errors import BadArgument, UnfitTable, UnknownDatabase
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.payer import PAYMENTS, pay, pay_and_die
from tests.conformance.test_callers_transaction import async_urls
from tests.docs.markdown import ROOT

pytestmark = pytest.mark.one_server("contrib: the rest of the suites runs it on every database")

SPAWN = multiprocessing.get_context("spawn")
Make = Callable[..., Ledger]
OTHER_DATABASE = ROOT / "docs" / "recipes" / "other-database.md"


@pytest.fixture
def ledger_of(backend: Backend) -> Make:
    """A ledger of this name in the database, which is the destination."""
    make(backend.engine, [ledger_table()])
    PAYMENTS.create(backend.engine)
    return lambda queue="jobs": Ledger(queue)


def attempt(backend: Backend, ledger: Ledger, key: Any) -> bool:
    """An attempt that is committed; whether it was the first."""
    with backend.engine.begin() as connection:
        return ledger.once(connection, key)


def noted(backend: Backend) -> list[tuple[str, str]]:
    return sorted((row["queue"], row["job"]) for row in backend.rows(LEDGER_TABLE))


# --- once ----------------------------------------------------------------------------------------------------


def test_the_first_attempt_is_true_and_every_other_one_false(backend: Backend, ledger_of: Make) -> None:
    ledger = ledger_of()
    assert [attempt(backend, ledger, key) for key in (1, 1, 2, 1, 2)] == [True, False, True, False, False]
    assert noted(backend) == [("jobs", "1"), ("jobs", "2")]


def test_a_job_is_named_by_its_key(backend: Backend, ledger_of: Make) -> None:
    ledger = ledger_of()
    assert attempt(backend, ledger, Job(7, {"id": 7, "d": "x"}))
    assert not attempt(backend, ledger, Job(7, {"id": 7, "d": "y"}))
    assert not attempt(backend, ledger, 7)


def test_queues_do_not_know_each_others_jobs(backend: Backend, ledger_of: Make) -> None:
    assert attempt(backend, ledger_of("emails"), 1)
    assert attempt(backend, ledger_of("Emails"), 1)
    assert attempt(backend, ledger_of("emails-2"), 1)
    assert not attempt(backend, ledger_of("emails"), 1)


def test_an_attempt_that_is_rolled_back_leaves_nothing(backend: Backend, ledger_of: Make) -> None:
    ledger = ledger_of()
    with backend.engine.connect() as connection:
        assert ledger.once(connection, 1)
        connection.rollback()
    assert noted(backend) == []
    assert attempt(backend, ledger, 1)


def test_the_transaction_goes_on_after_a_second_attempt(backend: Backend, ledger_of: Make) -> None:
    ledger = ledger_of()
    attempt(backend, ledger, 1)
    with Session(backend.engine) as session:
        session.execute(sa.insert(PAYMENTS).values(what="before"))
        assert not ledger.once(session, 1)
        assert ledger.once(session, 2)
        assert not ledger.once(session, 2)
        session.execute(sa.insert(PAYMENTS).values(what="after"))
        session.commit()
    assert [row["what"] for row in backend.rows(PAYMENTS)] == ["before", "after"]
    assert noted(backend) == [("jobs", "1"), ("jobs", "2")]


class Colour(Enum):
    """The database has its names."""

    RED = "the colour of blood"


KEYS: dict[str, tuple[Any, Any]] = {
    "a number": (2**62, 2**62 + 1),
    "a UUID": (uuid.UUID(int=1), uuid.UUID(int=1 << 64)),
    "text": ("Ada", "ada"),
    "long text": ("x" * 1_000 + "a", "x" * 1_000 + "b"),
    "odd text": ("a\0b\ud800é☃𝄞", "a\0b\ud801é☃𝄞"),
    "bytes": (b"\0\xff", b"\0\xfe"),
    "several columns": (("eu", 17), ("eu", 18)),
    "several columns that read alike": (("a, b", "c"), ("a", "b, c")),
    "a date and a decimal": ((date(2030, 1, 1), Decimal("1.50")), (date(2030, 1, 1), Decimal("1.51"))),
    "an instant": (datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_any_key_can_be_noted(backend: Backend, ledger_of: Make, kind: str) -> None:
    one, other = KEYS[kind]
    ledger = ledger_of()
    assert [attempt(backend, ledger, key) for key in (one, other, one, other)] == [True, True, False, False]


def test_a_key_is_the_same_through_any_driver(backend: Backend, ledger_of: Make) -> None:
    ledger = ledger_of()
    alike = [
        (uuid.UUID(int=1), uuid.UUID(int=1).hex),
        (b"\0\xff", memoryview(b"\0\xff")),
        (Colour.RED, "RED"),
        (datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1)),  # noqa: DTZ001
        (datetime(2031, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
    ]
    for one, other in alike:
        assert attempt(backend, ledger, one)
        assert not attempt(backend, ledger, other)


# --- side by side --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_attempt_beside_the_first_waits_for_its_end(backend: Backend, ledger_of: Make, ends: str) -> None:
    ledger = ledger_of()
    was_first: list[bool] = []
    beside = threading.Thread(target=lambda: was_first.append(attempt(backend, ledger, 1)))
    with backend.engine.connect() as connection:
        assert ledger.once(connection, 1)
        assert ledger.once(connection, 2)
        beside.start()
        backend.wait_for(backend.someone_waits_for_a_lock, "the attempt beside it waits")
        getattr(connection, ends)()
    beside.join(120)
    assert was_first == [ends == "rollback"]
    assert len(noted(backend)) == (2 if ends == "commit" else 1)


def test_of_many_attempts_at_once_one_is_the_first(backend: Backend, ledger_of: Make) -> None:
    ledger = ledger_of()
    together = threading.Barrier(8, timeout=120)
    was_first: list[bool] = []

    def run() -> None:
        for key in range(10):
            together.wait()
            was_first.append(attempt(backend, ledger, key))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(was_first), sum(was_first)) == (80, 10)


@pytest.mark.parametrize("dies", ["is released", "dies"])
def test_a_second_execution_has_no_second_effect(
    backend: Backend, anywhere: Backend, ledger_of: Make, dies: str
) -> None:
    """The queue is in one database, what its jobs are for in another."""
    ledger, queue = ledger_of(), anywhere.queue()
    queue.enqueue(jobs(5))
    if dies == "dies":
        payer = SPAWN.Process(target=pay_and_die, args=(anywhere.url, backend.url))
        payer.start()
        payer.join(120)
        anywhere.wait_for(queue.reclaim, "what the dead held is handed back")
    else:
        with queue.claim() as batch:
            pay(batch, backend.engine, ledger)
            batch.release(*batch.jobs)
    assert len(backend.rows(PAYMENTS)) == 5
    while batch := queue.claim():
        with batch:
            pay(batch, backend.engine, ledger)
    assert [row["what"] for row in backend.rows(PAYMENTS)] == [f"{n:04}" for n in range(5)]
    assert anywhere.rows() == []


# --- what does not fit ---------------------------------------------------------------------------------------


def test_a_destination_without_a_ledger_says_how_to_make_one(backend: Backend) -> None:
    ledger = Ledger("jobs")
    step = r"make it by claimjobs.make\(engine, \[.*ledger_table\(\)\]\)"
    with pytest.raises(UnfitTable, match=step):
        attempt(backend, ledger, 1)


def test_other_errors_are_not_taken_for_a_second_attempt(backend: Backend, ledger_of: Make) -> None:
    backend.run(f"ALTER TABLE {LEDGER_TABLE} ADD COLUMN tenant INTEGER NOT NULL CHECK (tenant > 0)")
    with pytest.raises(sa.exc.DBAPIError):
        attempt(backend, ledger_of(), 1)
    assert noted(backend) == []


def test_a_destination_that_is_no_database_of_ours(ledger_of: Make) -> None:
    engine = sa.create_engine("sqlite://")
    with pytest.raises(UnknownDatabase, match="does not know 'sqlite'"), engine.connect() as connection:
        Ledger("jobs").once(connection, 1)
    engine.dispose()


def test_an_async_session_does_what_the_error_says(backend: Backend) -> None:
    ledger = Ledger("jobs")

    async def attempts(url: sa.URL) -> list[bool]:
        engine = create_async_engine(url, poolclass=sa.NullPool)
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(BadArgument, match=r"`await session.run_sync\(lambda sync: ...\)`, with `sync`"):
                ledger.once(session, url.drivername)  # type: ignore[arg-type]
            with pytest.raises(UnfitTable, match=r"make it by claimjobs\.make"):
                async with session.begin_nested():
                    await session.run_sync(lambda sync: Ledger("jobs").once(sync, 1))
            make(backend.engine, [ledger_table()])
            return [await session.run_sync(lambda sync: ledger.once(sync, url.drivername)) for _ in range(2)]

    for url in async_urls(backend):
        assert asyncio.run(attempts(url)) == [True, False]
        backend.run(f"DROP TABLE {LEDGER_TABLE}")


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 characters"):
        Ledger(name)


# --- clean-up ------------------------------------------------------------------------------------------------


def test_the_statement_of_the_page_deletes_old_entries_and_reads_no_others(backend: Backend, ledger_of: Make) -> None:
    ledger_of()
    before, after = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 9, 1, tzinfo=UTC)
    entries = [("emails", before), ("emails", after), *[("other", before)] * 3_000]
    values = [{"digest": f"{n:064}", "queue": q, "job": str(n), "done_at": at} for n, (q, at) in enumerate(entries)]
    [text] = re.findall(r"`(DELETE FROM .*)`", OTHER_DATABASE.read_text())
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(ledger_table()), values)
    backend.analyze(LEDGER_TABLE)
    with backend.engine.begin() as connection:
        plan = backend.plan(connection, sa.text(text), {})
        assert plan.indexes == (f"{LEDGER_TABLE}_age",), plan.text
        assert connection.execute(sa.text(text)).rowcount == 1
    assert ("emails", "1") in noted(backend)

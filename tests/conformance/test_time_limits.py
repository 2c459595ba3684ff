"""A server that ends an open transaction while its handler works: the run gives up, and names the setting."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Batch, Liveness, Queue
from claimjobs.database.error_translation import lasting
from claimjobs.errors import NothingDone, ServerUnreachable, StatementTimedOut
from claimjobs.workers import consumer
from claimjobs.workers.consumer import consume
from claimjobs.workers.handlers import Handler
from tests.backends import Backend
from tests.conformance.jobs import jobs
from tests.conformance.test_explain import of

LIMITS: dict[str, tuple[str, str, float]] = {
    "postgres": ("idle_in_transaction_session_timeout", "SET idle_in_transaction_session_timeout = 3000", 3),
    "mysql": ("wait_timeout", "SET SESSION wait_timeout = 3", 3),
    "mariadb": ("idle_transaction_timeout", "SET SESSION idle_transaction_timeout = 3", 3),
}
LONG: dict[str, tuple[str, str, float]] = {
    "postgres": ("idle_in_transaction_session_timeout", "SET idle_in_transaction_session_timeout = 300000", 300),
    "mysql": ("wait_timeout", "SET SESSION wait_timeout = 300", 300),
    "mariadb": ("idle_transaction_timeout", "SET SESSION idle_transaction_timeout = 300", 300),
}
"""Limits that no test comes near to, however slow the machine is."""


def limited(backend: Backend, limits: dict[str, tuple[str, str, float]] = LIMITS, **options: Any) -> Queue:
    """A queue whose sessions have a time limit for idle transactions."""
    engine = backend.new_engine()

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(limits[backend.family][1])
        connection.commit()

    return backend.queue(bind=engine, hold="transaction", **options)


def test_a_handler_that_takes_longer_than_a_transaction_may_ends_the_run(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "VAIN_BATCHES", 2)
    queue = limited(backend)
    queue.enqueue(jobs(1))
    name, _, seconds = LIMITS[backend.family]

    def handle(batch: Batch) -> None:
        session = batch.connection.scalar(sa.select(backend.dialect.sessions.number))
        ours = f"{session} "
        backend.wait_for(
            lambda: not any(each.startswith(ours) for each in backend.sessions()), "the server ends the session", 120
        )
        batch.done()

    with pytest.raises(NothingDone, match=rf"connection lost after .*{name} = {seconds:g} s.*raise this limit"):
        consume(queue, Handler(handle, "handle", "batch"))
    assert [row["status"] for row in backend.rows()] == ["unclaimed"]


def test_explain_compares_the_limit_with_what_a_batch_may_take(database: Backend) -> None:
    queue = limited(database, LONG)
    found = of(queue.explain(), "time limits")
    name, _, seconds = LONG[database.family]
    assert (found.verdict, f"{name} = {seconds:g} s" in found.says) == ("warning", True), found
    assert of(limited(database, LONG, liveness=Liveness(max_batch_time=0.1)).explain(), "time limits").verdict == "ok"


CODES: dict[str, tuple[dict[Any, bool], str]] = {
    "postgres": (
        {"55000": True, "25006": False, "40P01": False, "57P01": False, "53100": False, "XX000": True, "57014": True},
        "DO $$BEGIN RAISE SQLSTATE '{}'; END$$",
    ),
    "mysql": (
        {1665: True, 3989: True, 1213: False, 1021: False, 1290: True, 1053: False, 1105: True},
        "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {}",
    ),
}


def test_whatever_is_no_outage_and_no_conflict_is_counted_as_lasting(database: Backend) -> None:
    codes, statement = CODES["postgres" if database.family == "postgres" else "mysql"]
    for code, lasts in codes.items():
        with database.engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
            connection.exec_driver_sql(statement.format(code))
        found = lasting(raised.value, database.engine)
        assert found == (f"{type(raised.value).__name__} {code}" if lasts else None), code
    assert lasting(StatementTimedOut("slow"), database.engine) == "StatementTimedOut"
    assert lasting(RuntimeError("3"), database.engine) == "RuntimeError"
    assert lasting(ServerUnreachable("gone"), database.engine) is None

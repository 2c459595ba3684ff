"""A statement in autocommit stands if a later one of the same attempt fails: nothing of it is reported lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.table.definitions import BATCHES_TABLE
from tests.backends import Backend
from tests.conformance.jobs import jobs, names
from tests.conformance.owners import still
from tests.conformance.refusals import refusal, refused_after
from tests.conformance.test_batch_claims import claim_rows, open_their_batch, per_batch
from tests.conformance.test_batch_loops import LATER

GATE = 26_118
"""The number of an advisory lock."""


def an_error(backend: Backend, kind: str) -> str:
    """A statement that fails: with an error after which claimjobs tries again, or with another one."""
    if kind == "passing":
        return refusal(backend, "deadlock")
    return "DO $$BEGIN RAISE 'no'; END$$" if backend.family == "postgres" else "SIGNAL SQLSTATE '45000'"


@pytest.mark.parametrize("kind", ["passing", "for good"])
@pytest.mark.requires("one statement")
def test_a_settle_in_one_statement_with_a_claim(backend: Backend, kind: str) -> None:
    """The claim gets fewer jobs than it wants, so it counts the candidates that others have locked."""
    engine = backend.new_engine()
    queue = still(backend.queue(bind=engine))
    queue.enqueue(jobs(5))
    loop = queue.batches(3, drain=True)
    with refused_after(engine, "AS candidate", an_error(backend, kind)), next(loop) as first:
        first.done()
    assert (first.lost, queue.report.lost) == ((), 0)
    seen = names(first)
    for batch in loop:
        seen += names(batch)
        with batch:
            batch.done()
        assert not batch.lost
    assert sorted(seen) == [f"{number:04}" for number in range(5)]
    assert backend.rows() == []


@contextmanager
def while_it_waits(backend: Backend, do: Any) -> Iterator[None]:
    """Do something during the next statement that calls the function `gate`, which waits until that is done."""
    with backend.engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_lock(GATE)))
        opener = threading.Thread(target=_when_waited_for, args=(backend, do, connection))
        opener.start()
        yield
        opener.join(120)
        assert not opener.is_alive()


def _when_waited_for(backend: Backend, do: Any, connection: sa.Connection) -> None:
    waiting = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {GATE} AND NOT granted"
    try:
        backend.wait_for(lambda: connection.exec_driver_sql(waiting).scalar(), "the statement waits")
        do()
    finally:
        connection.execute(sa.select(sa.func.pg_advisory_unlock_all()))


def test_a_settle_and_a_claim_per_batch_in_one_round_trip(backend: Backend) -> None:
    """Another claim takes a job between the two statements: the claim row is deleted, and the settle stands."""
    if not backend.dialect.pipelines:
        pytest.skip(f"on {backend.name} a loop claims as every claim does")
    backend.run(
        "CREATE FUNCTION gate(d text) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN "
        f"IF d = '0009' THEN PERFORM pg_advisory_xact_lock({GATE}); END IF; RETURN true; END$$"
    )
    engine = backend.new_engine()
    queue = still(per_batch(backend, bind=engine))
    queue.enqueue(jobs(20))
    keys = [row["id"] for row in backend.rows()]

    def taken() -> None:
        with backend.engine.begin() as connection:
            open_their_batch(connection, keys[8:9])

    loop = queue.batches(2, where=sa.text("gate(d)"))
    for _ in range(LATER - 1):
        with next(loop) as batch:
            batch.done()
    fourth = next(loop)
    with while_it_waits(backend, taken), fourth:
        fourth.done()
    assert (fourth.lost, queue.report.lost) == ((), 0)
    assert [row["id"] for row in backend.rows()] == keys[8:]
    with next(loop) as fifth:
        assert [job.key for job in fifth] == keys[9:11]
        assert claim_rows(backend) == [(claim_rows(backend)[0][0], 1), (queue.owner_id, 2)]
        fifth.done()
    loop.close()
    backend.run(f"DELETE FROM {BATCHES_TABLE} WHERE jobs > 0")

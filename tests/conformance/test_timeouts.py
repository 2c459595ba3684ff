"""A server that ends statements that take too long is told as that, and not as one that cannot be reached."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs import Liveness
from claimjobs.errors import BadPredicate, StatementTimedOut
from tests.backends import Backend
from tests.conformance.jobs import jobs

LIMITS = {"postgres": "SET statement_timeout = 50", "mysql": "SET max_execution_time = 50"}
SLOW = {"postgres": "pg_sleep(0.3) IS NOT NULL", "mysql": "sleep(0.3) = 0"}


def limit(backend: Backend) -> str:
    """The setting that bounds a statement to 50 ms."""
    if backend.family == "mariadb":
        return "SET max_statement_time = 0.05"
    return LIMITS[backend.family]


def test_a_statement_that_takes_longer_than_it_may_is_told_as_that(backend: Backend) -> None:
    backend.queue().enqueue(jobs(3))
    engine = backend.new_engine()
    slow = SLOW.get(backend.family, SLOW["mysql"])
    queue = backend.queue(bind=engine, where=sa.text(slow), liveness=Liveness(patience=0.2))
    assert queue.owner_id
    statement = limit(backend)

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _(_c: object, cursor: object, sql: str, *_rest: object) -> None:
        if slow.partition("(")[0] in sql:
            cursor.execute(statement)  # type: ignore[attr-defined]

    with pytest.raises(StatementTimedOut, match="statement_timeout, max_execution_time"):
        queue.claim(3)
    assert queue.report.transients["statement timeout"] > 0


def test_a_claim_waits_for_a_server_that_is_slow_for_a_while(backend: Backend) -> None:
    backend.queue().enqueue(jobs(3))
    engine = backend.new_engine()
    slow = SLOW.get(backend.family, SLOW["mysql"])
    queue = backend.queue(bind=engine, where=sa.text(slow), liveness=Liveness(lease=2, patience=86_400))
    assert queue.owner_id
    statements = iter([limit(backend)] * 12)
    unlimited = limit(backend).partition("=")[0] + "= 0"

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _(_c: object, cursor: object, sql: str, *_rest: object) -> None:
        if slow.partition("(")[0] in sql:
            cursor.execute(next(statements, unlimited))  # type: ignore[attr-defined]

    with queue.claim(3) as batch:
        assert len(batch) == 3
        batch.done()
    assert queue.report.transients["statement timeout"] > 0


@pytest.mark.requires("arrays")  # elsewhere a division by zero is NULL
def test_a_predicate_that_cannot_be_computed_is_told_as_that(backend: Backend) -> None:
    queue = backend.queue(where=sa.text("1 / priority > 0"))
    queue.enqueue(jobs(1))
    with pytest.raises(BadPredicate, match="division by zero"):
        queue.claim()


def test_a_settle_that_takes_longer_than_a_lease_is_divided(database: Backend) -> None:
    """The heartbeat needs the connection, and cuts it; together the jobs would take as long again."""
    queue = database.queue(liveness=Liveness(lease=2, patience=60))
    queue.enqueue(jobs(60))
    if database.family == "postgres":
        body = "BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END"
        database.run(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        database.run("CREATE TRIGGER slow BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION slow()")
    else:
        database.run("CREATE TRIGGER slow BEFORE DELETE ON jobs FOR EACH ROW SET @slept = sleep(0.05)")
    with queue.claim(60) as batch:
        batch.done()
    assert (batch.lost, database.rows(), queue.report.transients["connection lost"] > 0) == ((), [], True)

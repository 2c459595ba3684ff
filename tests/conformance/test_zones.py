"""The time zone of a session: instants in a table do not depend on who asks, and the user's session keeps its zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, make, side_car_tables, tables_for
from claimjobs.contrib.advisory_locks import AdvisoryLocks
from claimjobs.errors import BadRow
from tests.backends import Backend

HOUR = timedelta(hours=1)
HOLDS: dict[str, dict[str, Any]] = {"lease": {}, "transaction": {"hold": "transaction"}}


def engine_in(backend: Backend, zone: str) -> sa.Engine:
    """An engine whose sessions have this zone, so many hours from UTC, such as `+05:00`."""
    if backend.has("schemas"):
        hours = -int(zone[:3])  # in POSIX the sign is that of the way to UTC
        return backend.new_engine(connect_args={"options": f"-c TimeZone=<X>{hours}"})
    return backend.new_engine(connect_args={"init_command": f"SET time_zone = '{zone}'"})


def zone_of(connection: sa.Connection, backend: Backend) -> str:
    name = "current_setting('TimeZone')" if backend.has("schemas") else "@@session.time_zone"
    return str(connection.scalar(sa.text(f"SELECT {name}")))


def table_of(backend: Backend, default: str = "") -> None:
    """A table whose instants have no zone: the server reads them in that of a session."""
    type_ = "TIMESTAMP(6)" if backend.has("schemas") else "TIMESTAMP(6) NULL"
    identity = "INTEGER GENERATED ALWAYS AS IDENTITY" if backend.has("schemas") else "INTEGER AUTO_INCREMENT"
    backend.run(
        f"CREATE TABLE events (id {identity} PRIMARY KEY, d INTEGER, status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', "
        f"owner_id INTEGER, owner_date {type_}, attempts INTEGER NOT NULL DEFAULT 0, "
        f"suspect INTEGER NOT NULL DEFAULT 0, run_at {type_} {default})"
    )
    make(backend.engine, [table for table in tables_for("jobs") if table.name != "jobs"])


def now() -> datetime:
    return datetime.now(UTC)


def taken(queue: Queue) -> list[Any]:
    """The `d` of what a claim takes; then it is released."""
    with queue.claim(10) as batch:
        batch.release()
    return [job["d"] for job in batch.jobs]


@pytest.mark.parametrize("hold", HOLDS)
def test_a_job_is_due_at_one_instant_whatever_the_zone_of_a_session(backend: Backend, hold: str) -> None:
    table_of(backend)
    east, west = (
        backend.bare_queue("events", bind=engine_in(backend, zone), **HOLDS[hold]) for zone in ("+05:00", "-04:00")
    )
    at = now().astimezone(timezone(timedelta(hours=3)))
    east.enqueue([{"d": 1, "run_at": at + HOUR}, {"d": 2, "run_at": at - HOUR}])
    west.enqueue([{"d": 3, "run_at": at + HOUR}, {"d": 4, "run_at": at - HOUR}])
    assert taken(west) == [2, 4]
    assert taken(east) == [2, 4]
    with west.claim(1) as batch:
        assert abs(batch.jobs[0].run_at - (at - HOUR)) < timedelta(milliseconds=1)
        batch.fail(batch.jobs[0], "again", retry_in=600)
    assert taken(east) == [4]
    for queue in (east, west):
        stats = queue.stats()
        assert stats.due == 1
        assert stats.oldest is not None
        assert 3_600 <= stats.oldest < 3_900
    [failed] = [row["run_at"] for row in backend_rows(backend) if row["d"] == 2]
    assert timedelta(seconds=500) < failed - now().replace(tzinfo=None) < timedelta(seconds=700)


def backend_rows(backend: Backend) -> list[Any]:
    with engine_in(backend, "+00:00").connect() as connection:
        return list(connection.execute(sa.text("SELECT * FROM events ORDER BY id")).mappings())


@pytest.mark.parametrize("many", [1, 150])
def test_a_default_of_the_servers_clock_is_in_utc(backend: Backend, many: int) -> None:
    table_of(backend, "DEFAULT now()" if backend.has("schemas") else "DEFAULT CURRENT_TIMESTAMP(6)")
    east = backend.bare_queue("events", bind=engine_in(backend, "+05:00"))
    east.enqueue([{"d": number} for number in range(many)])
    assert len(taken(east)) == min(many, 10)
    assert len(taken(backend.bare_queue("events", bind=engine_in(backend, "-04:00")))) == min(many, 10)


@pytest.mark.parametrize("autocommit", [False, True])
def test_the_callers_session_keeps_its_zone(backend: Backend, autocommit: bool) -> None:
    table_of(backend)
    queue = backend.bare_queue("events", bind=engine_in(backend, "-04:00"))
    at = now()
    engine = engine_in(backend, "+05:00")
    if autocommit:
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        elsewhere = backend.bare_queue("events", bind=engine)
        elsewhere.enqueue({"d": 1, "run_at": at - HOUR})
        assert elsewhere.stats().due == 1
        with engine.connect() as connection:
            assert zone_of(connection, backend) == zone_of_new(backend)
    else:
        with engine.begin() as connection:
            before = zone_of(connection, backend)
            queue.enqueue({"d": 1, "run_at": at - HOUR}, connection)
            assert zone_of(connection, backend) == before
            with pytest.raises(BadRow):
                queue.enqueue({"d": "x" * 20, "run_at": at - HOUR}, connection)
            assert zone_of(connection, backend) == before
            queue.enqueue({"d": 2, "run_at": at + HOUR}, connection)
        with engine.connect() as connection:
            assert zone_of(connection, backend) == before
    assert taken(queue) == [1]


def zone_of_new(backend: Backend) -> str:
    with engine_in(backend, "+05:00").connect() as connection:
        return zone_of(connection, backend)


def test_a_handler_has_its_own_zone_in_the_transaction_that_holds_its_jobs(backend: Backend) -> None:
    table_of(backend)
    queue = backend.bare_queue("events", bind=engine_in(backend, "+05:00"), hold="transaction", on_done="delete")
    queue.enqueue({"d": 1, "run_at": now() - HOUR})
    with queue.claim(1) as batch:
        assert zone_of(batch.connection, backend) == zone_of_new(backend)
        batch.done()
    assert not backend_rows(backend)


def test_the_zone_is_as_before_where_a_chunk_changes_jobs_while_it_inserts_others(backend: Backend) -> None:
    table_of(backend)
    backend.run("CREATE UNIQUE INDEX once ON events (d)")
    queue, at = backend.bare_queue("events"), now()
    queue.enqueue({"d": 1, "run_at": at + HOUR})
    with engine_in(backend, "+05:00").begin() as connection:
        before = zone_of(connection, backend)
        rows = [{"d": number, "run_at": at - HOUR} for number in (1, 2)]
        assert queue.enqueue(rows, connection, unique="d", on_duplicate="replace") == 2
        assert zone_of(connection, backend) == before
    assert taken(queue) == [1, 2]


def test_the_zone_is_as_before_where_a_function_of_the_users_enqueues_in_a_settle(backend: Backend) -> None:
    def follow(connection: sa.Connection, jobs: Any) -> Any:
        queue.enqueue([{"d": job["d"] + 10, "run_at": now() + HOUR} for job in jobs], connection)
        return "delete"

    table_of(backend)
    queue = backend.bare_queue("events", bind=engine_in(backend, "+05:00"), hold="transaction", on_done=follow)
    queue.enqueue([{"d": number, "run_at": now() - HOUR} for number in (1, 2)])
    for _ in range(2):  # the second one in the session of the first
        with queue.claim(1) as batch:
            assert zone_of(batch.connection, backend) == zone_of_new(backend)
            batch.done()
    assert sorted(row["d"] for row in backend_rows(backend)) == [11, 12]


def test_an_instant_in_a_key_is_one_key_for_all_sessions(backend: Backend) -> None:
    """Two consumers of a side-car, whose sessions are in two zones: what is done by one is done for the other."""
    zone = "" if backend.has("schemas") else "NOT NULL DEFAULT '2020-01-01'"
    backend.run(
        f"CREATE TABLE seen (device INTEGER NOT NULL, at TIMESTAMP {zone}, d INTEGER, PRIMARY KEY (device, at))"
    )
    make(backend.engine, side_car_tables(backend.engine, "seen"))
    one, other = (
        backend.bare_queue("seen", bind=engine_in(backend, zone), side_car=True) for zone in ("+02:00", "-03:00")
    )
    one.enqueue([{"device": n, "at": datetime(2024, 5, 1, 12), "d": n} for n in range(3)])  # noqa: DTZ001
    first, second = one.claim(2), other.claim(10)
    keys = [job.key for batch in (first, second) for job in batch.jobs]
    assert sorted(keys) == [(n, datetime(2024, 5, 1, 12)) for n in range(3)]  # noqa: DTZ001
    for batch in (first, second):
        batch.done()
        batch.settle()
    assert not one.claim(10).jobs
    assert not other.claim(10).jobs


def test_an_advisory_lock_names_an_instant_alike_in_all_sessions(backend: Backend) -> None:
    zone = "" if backend.has("schemas") else "NOT NULL DEFAULT '2020-01-01'"
    backend.run(
        f"CREATE TABLE mails (device INTEGER NOT NULL, at TIMESTAMP {zone}, status VARCHAR(16) NOT NULL DEFAULT "
        "'unclaimed', PRIMARY KEY (device, at))"
    )
    columns = Columns(status="status", owner_id=None)
    options: dict[str, Any] = {
        "hold": "transaction",
        "locking": AdvisoryLocks(),
        "columns": columns,
        "on_done": "delete",
    }
    one, other = (
        backend.bare_queue("mails", bind=engine_in(backend, zone), **options) for zone in ("+02:00", "+00:00")
    )
    one.enqueue([{"device": n, "at": datetime(2024, 5, 1, 12)} for n in range(2)])  # noqa: DTZ001
    first, second = one.claim(10), other.claim(10)
    assert (len(first), len(second)) == (2, 0)
    first.release()
    first.settle()

"""The wake trigger: an INSERT of any program wakes a sleeper at its commit; a failed wake fails no INSERT."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.errors import BadArgument
from claimjobs.options import HoldKind
from claimjobs.table.create import alter, make
from claimjobs.table.ddl import drop_statement, has_wake_trigger, make_statement
from claimjobs.table.definitions import article_table, shared_tables
from tests.backends import Backend, Servers
from tests.conformance.jobs import jobs
from tests.conformance.orders import beside
from tests.conformance.sleepers import PATIENT, Consumer

JOBS = article_table()
INSERT = "INSERT INTO jobs (d, e) VALUES ('{}', '')"

pytestmark = pytest.mark.usefixtures("only_when_called")


@pytest.fixture
def able(backend: Backend) -> Backend:
    """A backend whose table of jobs has the trigger."""
    if backend.dialect.no_wake_trigger is not None:
        pytest.skip(f"{backend.name} lacks triggers that wake at the commit")
    backend.queue()
    alter(backend.engine, JOBS, [make_statement(backend.engine, JOBS, JOBS)] * 2)  # the second time does no harm
    return backend


def is_there(backend: Backend, table: sa.Table) -> bool:
    with backend.engine.connect() as connection:
        return has_wake_trigger(connection, table)


def test_where_no_trigger_can_wake_the_reason_is_given(backend: Backend) -> None:
    if backend.dialect.no_wake_trigger is None:
        pytest.skip("it can")
    backend.queue()
    with pytest.raises(BadArgument, match="before the commit"):
        make_statement(backend.engine, JOBS, JOBS)
    assert not is_there(backend, JOBS)


@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_plain_insert_wakes_a_sleeper_at_its_commit(able: Backend, hold: HoldKind) -> None:
    assert is_there(able, JOBS)
    with Consumer(able, able.queue(hold=hold, liveness=PATIENT)) as consumer:
        for number, name in enumerate(("one", "two", "three"), 1):
            consumer.falls_asleep()
            with able.engine.begin() as connection:
                connection.exec_driver_sql(INSERT.format(name))
                assert consumer.is_asleep()
            consumer.does(*("one", "two", "three")[:number])


def test_a_copy_wakes_a_sleeper(able: Backend) -> None:
    """One of any program, and that by which `enqueue` inserts many rows."""
    with Consumer(able) as consumer:
        consumer.falls_asleep()
        with able.engine.begin() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor, cursor.copy("COPY jobs (d, e) FROM STDIN") as copy:
                copy.write_row(("one", ""))
        consumer.does("one")
        consumer.falls_asleep()
        able.queue().enqueue(jobs(150))
        able.wait_for(lambda: len(consumer.done) == 151, "all are done")


def test_rows_of_a_table_with_a_side_car_wake_a_sleeper(able: Backend) -> None:
    able.run("CREATE TABLE mails (id INT PRIMARY KEY, d VARCHAR(40))")
    queue = beside(able, "mails", liveness=PATIENT)
    mails, claims = (sa.Table(name, sa.MetaData()) for name in ("mails", "mails_claims"))
    alter(able.engine, JOBS, [make_statement(able.engine, mails, claims)])
    with Consumer(able, queue) as consumer:
        consumer.falls_asleep()
        able.run("INSERT INTO mails VALUES (7, 'seven')")
        consumer.does("seven")


def test_it_is_dropped(able: Backend) -> None:
    alter(able.engine, JOBS, [drop_statement(able.engine, JOBS)] * 2)
    assert not is_there(able, JOBS)


def test_an_enqueue_leaves_the_wake_to_the_trigger(able: Backend) -> None:
    """Otherwise it would wake other owners as well."""
    with Consumer(able) as consumer:
        consumer.falls_asleep()
        looks = consumer.queue.report.empty_claims
        able.queue().enqueue({"d": "one", "e": ""})
        consumer.does("one")
        consumer.falls_asleep()
        assert consumer.queue.report.empty_claims == looks + 2  # with the job's settle, and after it


@pytest.mark.parametrize("how", ["resume", "replace", "replace in a transaction"])
def test_what_inserts_no_row_wakes_a_sleeper_all_the_same(able: Backend, how: str) -> None:
    able.run("CREATE UNIQUE INDEX once ON jobs (d)")
    producer, now = able.queue(), able.queue().now()
    later = now + timedelta(days=0 if how == "resume" else 1)
    producer.enqueue({"d": "one", "e": "", "run_at": later})
    if how == "resume":
        producer.pause()
    with Consumer(able) as consumer:
        consumer.falls_asleep()
        if how == "resume":
            producer.resume()
        else:
            with able.engine.begin() as connection:
                caller = connection if "transaction" in how else None
                row = {"d": "one", "e": "", "run_at": now}
                producer.enqueue(row, caller, unique="d", on_duplicate="replace")
        consumer.does("one")


def test_a_producer_needs_no_right_on_the_owners_and_a_broken_wake_fails_no_insert(able: Backend) -> None:
    with Consumer(able) as consumer:
        consumer.falls_asleep()
        with able.engine.begin() as connection:
            schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
            for statement in (
                "CREATE ROLE wake_producer",
                "GRANT INSERT ON jobs TO wake_producer",
                f"GRANT USAGE ON SCHEMA {schema} TO wake_producer",
                f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO wake_producer",
            ):
                connection.exec_driver_sql(statement)
        try:
            with able.engine.begin() as connection:
                connection.exec_driver_sql("SET LOCAL ROLE wake_producer")
                # Its own objects are not in the way of the function.
                connection.exec_driver_sql("CREATE TEMPORARY TABLE claimjobs_owners (id text, asleep int, claims text)")
                connection.exec_driver_sql(INSERT.format("one"))
            consumer.does("one")
        finally:
            with able.engine.begin() as connection:
                connection.exec_driver_sql("DROP OWNED BY wake_producer")
                connection.exec_driver_sql("DROP ROLE wake_producer")
    with able.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE claimjobs_owners RENAME TO away")
        connection.exec_driver_sql(INSERT.format("two"))
        connection.exec_driver_sql("ALTER TABLE away RENAME TO claimjobs_owners")
    assert [row["d"] for row in able.rows()] == ["two"]


def test_names_are_quoted_and_partitions_work(able: Backend) -> None:
    odd = sa.Table("Odd 'name'", sa.MetaData(schema='Other "schema"'))
    with able.engine.begin() as connection:
        quoted = connection.dialect.identifier_preparer.format_table(odd)
        connection.exec_driver_sql('CREATE SCHEMA "Other ""schema"""')
        connection.exec_driver_sql(f"CREATE TABLE {quoted} (id int) PARTITION BY RANGE (id)")
        connection.exec_driver_sql(f"CREATE TABLE part PARTITION OF {quoted} FOR VALUES FROM (0) TO (1000000)")
    make(able.engine, shared_tables(odd.schema))
    try:
        alter(able.engine, JOBS, [make_statement(able.engine, odd, odd)] * 2)
        assert is_there(able, odd)
        with able.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            values = "VALUES ('h', 1, %s, 1, now()) RETURNING id"
            asleep = f'INSERT INTO "Other ""schema""".claimjobs_owners (host, pid, claims, lease, asleep) {values}'
            ids = [connection.exec_driver_sql(asleep, (odd.name,)).scalar_one() for _ in range(20)]
            for owner in ids:
                connection.exec_driver_sql(f"LISTEN claimjobs_{owner}")
            connection.exec_driver_sql(f"INSERT INTO {quoted} SELECT generate_series(1, 1000)")
            driver: Any = connection.connection.driver_connection
            woken = [notify.channel for notify in driver.notifies(timeout=2)]
            assert len(woken) == len(set(woken)) == 11, "as many as the rows make batches, and one more"
            connection.detach()
    finally:
        with able.engine.begin() as connection:
            connection.exec_driver_sql('DROP SCHEMA "Other ""schema""" CASCADE')


@pytest.fixture
def small_queue(own_servers: Servers) -> Iterator[Backend]:
    """A server whose queue of notifications is full after some sixty large ones."""
    backend = own_servers.lend("postgres")
    small = "max_notify_queue_pages"
    with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(sa.text("SELECT count(*) FROM pg_settings WHERE name = :name"), {"name": small}):
            pytest.skip(f"this server has no setting {small}")
        connection.exec_driver_sql(f"ALTER SYSTEM SET {small} = 64")
    backend.engine.dispose()
    backend.server.restart()
    yield backend
    backend.close()


def fill_queue_of_notifications(backend: Backend) -> None:
    with backend.new_engine().connect() as connection:
        for _ in range(1_000):
            connection.execute(sa.text("SELECT pg_notify('strangers', repeat('x', 7900))"))
            try:
                connection.commit()
            except sa.exc.OperationalError:  # too many notifications
                return
    pytest.fail("the queue of notifications is never full")


@pytest.mark.parametrize("trigger", [True, False], ids=["trigger", "enqueue"])
def test_a_full_queue_of_notifications_fails_no_insert(small_queue: Backend, trigger: bool) -> None:
    queue = small_queue.queue()
    if trigger:
        alter(small_queue.engine, JOBS, [make_statement(small_queue.engine, JOBS, JOBS)])
    with Consumer(small_queue) as consumer:
        consumer.falls_asleep()
        with small_queue.new_engine().connect() as stranger:
            stranger.exec_driver_sql("LISTEN strangers")
            stranger.commit()
            stranger.exec_driver_sql("SELECT 1")  # and does not end: what was sent since must be kept for it
            fill_queue_of_notifications(small_queue)
            with small_queue.engine.begin() as connection:
                queue.enqueue({"d": "one", "e": ""}, connection)
            assert consumer.is_asleep()
        with small_queue.engine.begin() as connection:
            queue.enqueue({"d": "two", "e": ""}, connection)
        consumer.does("one", "two")

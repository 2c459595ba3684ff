"""`claimjobs upgrade-tables`."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa

from claimjobs.admin.upgrade import plan
from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.upgrade.earlier import contents, execute, install, keeps, shapes

pytestmark = pytest.mark.thorough("it upgrades tables under load")


def test_check_names_what_is_outdated_and_the_command_upgrades_it(database: Backend) -> None:
    database.may_leave_owners = True
    install(database, "schema-1")
    ended = claimjobs("upgrade-tables", "--check", "--url", database.url)
    assert ended.code == exits.OUTDATED
    assert all(f"claimjobs_{name}: missing; " in ended.out for name in ("queues", "batches"))
    assert "jobs: schema 1; 1 statement to schema 3\n" in ended.out
    ended = claimjobs("upgrade-tables", "--yes", "--url", database.url)
    assert ended.code == exits.OK
    assert "-- jobs: locks " in ended.out
    assert ended.out.endswith("orders_claims: schema 1 to 3\n")
    ended = claimjobs("upgrade-tables", "--check", "--url", database.url)
    assert (ended.code, ended.out) == (exits.OK, "all tables have schema 3\n")


def test_what_sql_prints_upgrades_the_tables(database: Backend) -> None:
    database.may_leave_owners = True
    install(database, "before-heartbeats")
    before = shapes(database)
    ended = claimjobs("upgrade-tables", "--sql", "--url", database.url)
    assert ended.code == exits.OK
    assert shapes(database) == before
    assert "lock_timeout" in ended.out or "lock_wait_timeout" in ended.out
    execute(database, ended.out)
    assert plan(database.engine) == []
    assert claimjobs("upgrade-tables", "--sql", "--url", database.url).out == ""


def test_nobody_to_ask_alters_nothing(anywhere: Backend) -> None:
    anywhere.may_leave_owners = True
    install(anywhere, "schema-1")
    before = shapes(anywhere)
    ended = claimjobs("upgrade-tables", "--url", anywhere.url)
    assert ended.code == exits.USAGE
    assert "give --yes, --sql or --check as well" in ended.err
    assert shapes(anywhere) == before


def test_a_database_without_tables_names_the_command_that_makes_them(database: Backend) -> None:
    ended = claimjobs("upgrade-tables", "--url", database.url)
    assert ended.code == exits.TABLE
    assert "run `claimjobs setup-tables`" in ended.err


def test_one_table_of_jobs_at_a_time(anywhere: Backend) -> None:
    anywhere.may_leave_owners = True
    install(anywhere, "schema-1")
    claimjobs("upgrade-tables", "--only", "orders_claims", "--yes", "--url", anywhere.url)
    assert [table.table for table in plan(anywhere.engine)] == ["jobs"]


def test_a_name_with_a_percent_sign_and_words_before_ours_are_kept(database: Backend) -> None:
    database.may_leave_owners = True
    install(database, "schema-1")
    said = "COMMENT ON TABLE jobs IS" if database.family == "postgres" else "ALTER TABLE jobs COMMENT"
    with database.engine.begin() as connection:
        options = {"no_parameters": True}
        connection.exec_driver_sql(f"{said} '100% mail, made by claimjobs'", execution_options=options)
    claimjobs("upgrade-tables", "--yes", "--url", database.url)
    assert shapes(database)["jobs"]["comment"] == "100% mail, made by claimjobs, schema 3"


def test_a_killed_upgrade_runs_again(database: Backend) -> None:
    """kill -9, while it waits for the lock of its second table."""
    database.may_leave_owners = True
    install(database, "before-heartbeats")
    before = contents(database)
    with database.new_engine().begin() as other:
        other.execute(sa.text("SELECT * FROM claimjobs_owners"))  # keeps out an ALTER TABLE, until its time is over
        words = [sys.executable, "-m", "claimjobs", "upgrade-tables", "--yes", "--url", database.url]
        upgrading = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            database.wait_for(lambda: sa.inspect(database.engine).has_table("claimjobs_queues"), "it has begun")
        finally:
            upgrading.kill()
            upgrading.wait()
    database.wait_for(lambda: claimjobs("upgrade-tables", "--yes", "--url", database.url).code == exits.OK, "it runs")
    assert plan(database.engine) == []
    assert keeps(before, contents(database))

"""The fixtures of `claimjobs.testing` in a test suite of a user's: found by pytest, with a server of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.backends import DEADLINE, Backend, poll
from tests.docs.markdown import ROOT

TESTS = """
import os

import sqlalchemy as sa

from claimjobs import Queue, job_table, make, tables_for
from claimjobs.testing import run

mails = job_table("mails", sa.MetaData(), sa.Column("address", sa.String(40), nullable=False))


def send(job):
    pass


def worked(url):
    with Queue(url, mails) as queue:
        make(queue.engine, tables_for(mails))
        queue.enqueue({"address": "ada"})
        assert [result.state for result in run(queue, send)] == ["done"]
        queue.engine.dispose()


def test_first(claimjobs_database):
    assert os.environ["CLAIMJOBS_URL"] == claimjobs_database
    worked(claimjobs_database)


def test_second_has_an_empty_database(claimjobs_database):
    worked(claimjobs_database)


def test_open_transactions_do_not_outlast_their_test(claimjobs_database):
    connection = sa.create_engine(claimjobs_database).connect()
    worked(claimjobs_database)
    connection.execute(sa.text("SELECT * FROM mails"))
    globals()["kept"] = connection
"""

REFUSED = """
from claimjobs.embedded import server

def refuse():
    raise server.EmbeddedFailed("the embedded Postgres is not installed")

server.temporary = refuse

def test_that_needs_a_server(claimjobs_database):
    pass
"""
KILLED = """
import os, signal

def test_that_kills_its_run(claimjobs_server):
    print("SERVER", claimjobs_server, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def pytest_of(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest as a user's, in a folder that only this account can enter."""
    folder.chmod(0o700)
    (folder / "test_mails.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("CLAIMJOBS", "PYTEST"))}
    return subprocess.run(
        [*command, str(folder)],
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


def test_an_embedded_postgres_serves_the_run(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, TESTS)
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_server_of_ones_own_serves_the_run(database: Backend, tmp_path: Path) -> None:
    done = pytest_of(tmp_path, TESTS, CLAIMJOBS_TEST_URL=database.url_without_driver)
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    listed = "SELECT datname FROM pg_database" if database.family == "postgres" else "SHOW DATABASES"
    with database.engine.connect() as connection:
        assert [name for name in connection.scalars(sa.text(listed)) if name.startswith("claimjobs_test_")] == []


def test_a_session_that_begins_meanwhile_does_not_keep_a_database(database: Backend) -> None:
    """A thread that a test has left connects again as soon as its session is ended."""
    name, more = "claimjobs_test_kept", list[sa.Connection]()
    engine = sa.create_engine(sa.make_url(database.url).set(database=name))
    with sa.create_engine(database.url, isolation_level="AUTOCOMMIT").connect() as admin:
        admin.exec_driver_sql(f"CREATE DATABASE {name}")

        def connects(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("DROP DATABASE"):
                more.append(engine.connect())

        sa.event.listen(admin, "before_cursor_execute", connects)
        database.dialect.sessions.drop_database(admin, name)
    assert len(more) == 1
    more[0].close()
    for one in (engine, admin.engine):
        one.dispose()


@pytest.mark.one_server("it uses none of these")
def test_without_a_server_the_variable_for_tests_is_named(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, REFUSED, CLAIMJOBS_URL="mysql+pymysql://nobody@127.0.0.1:1/none")
    assert (done.returncode, "of CLAIMJOBS_TEST_URL, not that of CLAIMJOBS_URL" in done.stdout) == (1, True), (
        done.stdout
    )


@pytest.mark.one_server("it uses none of these")
def test_a_run_that_is_killed_leaves_no_server_and_no_folder(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, KILLED)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if "SERVER " in line]
    folder = Path(line.partition("host=")[2].replace("%2F", "/").partition("&")[0])
    poll(lambda: not folder.exists(), DEADLINE)

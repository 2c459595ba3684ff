"""Errors as a person and a script see them: one line, a code, no password."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.cli.queue_options import Target
from claimjobs.queue.queue import Queue
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.conformance.test_rights import account

SECRET = "gehe%40im7"  # an @ in it, as it must be written in a URL


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://app:{}@127.0.0.1:1/shop", "check host and port"),
        ("postgresql://app:{}@127.0.0.1:1/shop", "check host and port"),
        ("sqlite://app:{}@/shop", "only mariadb, mysql, postgresql"),
        ("nonsense://app:{}@127.0.0.1/shop", "does not know 'nonsense', only mariadb, mysql, postgresql"),
        ("mysql+mysqldb://app:{}@127.0.0.1/shop", "pip install mysqlclient"),
        ("postgresql+asyncpg://app:{}@127.0.0.1/shop", "'asyncpg', only with psycopg: write postgresql+psycopg://"),
        ("mysql+aiomysql://app:{}@127.0.0.1/shop", "'aiomysql', only with pymysql or mysqldb: write mysql+pymysql://"),
        ("app:{}@127.0.0.1", "cannot be read"),
        ("mysql://app:{}@127.0.0.1:port/shop", "cannot be read"),
        (
            "postgresql://app:{}@db1:5432,db2:5432/shop",
            "several hosts: postgresql://user:***@/database?host=first:5432",
        ),
    ],
)
@pytest.mark.parametrize("verbose", [(), ("-v",)])
@pytest.mark.parametrize("command", ["status", "start-processing"])
def test_a_database_that_cannot_be_reached(command: str, url: str, said: str, verbose: tuple[str, ...]) -> None:
    ended = claimjobs(*verbose, command, "--url", url.format(SECRET))
    assert (ended.code, ended.out) == (exits.CONNECTION, "")
    assert said in ended.err
    assert ("Traceback" in ended.err) == bool(verbose)
    assert "im7" not in ended.err


def test_a_wrong_password(database: Backend) -> None:
    url = sa.make_url(database.url).set(password="gehe@im7").render_as_string(hide_password=False)
    ended = claimjobs("-v", "status", env={"CLAIMJOBS_URL": url})
    assert ended.code == exits.CONNECTION
    assert "the server refused" in ended.err
    assert "check user, password and their rights" in ended.err
    assert "im7" not in ended.err


def test_a_url_for_one_database_that_leads_to_another(database: Backend) -> None:
    """`mysql` in a URL means both; `mariadb` does not."""
    if database.name != "mysql":
        pytest.skip("only MySQL takes the driver and the password of another database's URL")
    url = sa.make_url(database.url).set(drivername="mariadb+pymysql").render_as_string(hide_password=False)
    ended = claimjobs("status", "--url", url)
    assert ended.code == exits.CONNECTION
    assert "leads to another database" in ended.err
    assert "give a URL such as mysql://" in ended.err


@pytest.mark.parametrize("options", [{}, {"sslmode": "disable"}])
def test_a_url_for_another_kind_of_server(database: Backend, options: dict[str, str]) -> None:
    if database.name == "postgres":
        pytest.skip("a MySQL client waits for the greeting of a server, and so does not see what it is")
    url = sa.make_url(database.url).set(drivername="postgresql", query=options).render_as_string(hide_password=False)
    ended = claimjobs("status", "--url", url)
    assert ended.code == exits.CONNECTION
    assert "what answers there is no Postgres server (" in ended.err
    assert "check the port, and the URL's kind of database" in ended.err


def test_a_database_that_is_not_there(database: Backend) -> None:
    url = sa.make_url(database.url).set(database="nowhere").render_as_string(hide_password=False)
    ended = claimjobs("status", "--url", url)
    assert ended.code == exits.CONNECTION
    assert "no such database" in ended.err or "refused" in ended.err
    assert str(sa.make_url(url).password) not in ended.err.replace(str(sa.make_url(url).username), "")


@pytest.mark.parametrize("verbose", [(), ("--verbose",)])
def test_an_error_nobody_foresaw_is_one_line_without_the_password(
    monkeypatch: pytest.MonkeyPatch, anywhere: Backend, verbose: tuple[str, ...]
) -> None:
    def fail(_queue: Queue) -> Any:
        raise RuntimeError("connect(user='app', password='gehe@im7')\nmore")

    monkeypatch.setattr(Queue, "table", property(fail))
    monkeypatch.setattr(Target, "engine", lambda _target: nullcontext(anywhere.engine))
    ended = claimjobs(*verbose, "status", "--url", f"postgresql://app:{SECRET}@h/x")
    assert (ended.code, ended.out) == (exits.FAILURE, "")
    told = ended.err.splitlines()[-1]
    assert told.startswith("claimjobs: RuntimeError: connect(user='app', password='***') more; ")
    assert told.endswith("`claimjobs --verbose ...` shows where")
    assert "im7" not in ended.err
    assert ("Traceback" in ended.err) == bool(verbose)


def test_what_the_database_refuses_is_one_line_without_the_statement(anywhere: Backend) -> None:
    anywhere.make()
    name = f"reader_{anywhere.engine.url.database}"
    anywhere.run(f"CREATE ROLE {name} LOGIN PASSWORD 'geheim5'")
    anywhere.run(f"GRANT USAGE ON SCHEMA public TO {name}")
    try:
        url = sa.make_url(anywhere.url).set(username=name, password="geheim5")
        ended = claimjobs("status", "--url", url.render_as_string(hide_password=False))
    finally:
        anywhere.run(f"DROP OWNED BY {name}")
        anywhere.run(f"DROP ROLE {name}")
    assert ended.code == exits.FAILURE
    assert ended.err == (
        "claimjobs: the database refused (permission denied for table jobs); `claimjobs --verbose ...` shows where\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Usage: "),
        (("nonsense",), "No such command"),
        (("status", "--colour"), "No such option"),
    ],
)
def test_a_command_line_that_is_wrong(words: tuple[str, ...], said: str) -> None:
    ended = claimjobs(*words)
    assert ended.code == exits.USAGE
    assert said in ended.said


def test_a_reference_that_fails_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_broken.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    ended = claimjobs("status", "--table", "cli_broken:Email")
    assert ended.code == exits.INPUT
    assert "no_such_package_at_all" in ended.err


def test_without_the_right_to_make_tables_the_way_out_is_told(anywhere: Backend) -> None:
    with account(anywhere) as engine:
        ended = claimjobs("setup-tables", "--url", engine.url.render_as_string(hide_password=False))
    assert ended.code == exits.CONNECTION
    assert "permission denied" in ended.err
    assert "claimjobs setup-tables --sql" in ended.err
    assert "secret" not in ended.said

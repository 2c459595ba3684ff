"""`claimjobs adopt`: what it proposes for tables of several kinds, and that the files it writes work as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs import make, read_map, side_car_tables
from claimjobs.cli import exits
from tests.backends import DEADLINE, Backend
from tests.cli.command import claimjobs
from tests.docs.markdown import ROOT

TABLES = {
    "orders": "CREATE TABLE orders (nr INTEGER PRIMARY KEY, state VARCHAR(10) NOT NULL DEFAULT 'draft', "
    "customer INTEGER NOT NULL)",
    "mails": "CREATE TABLE mails (id INTEGER PRIMARY KEY, status SMALLINT NOT NULL, worker INTEGER, "
    "due_at TIMESTAMP NULL, tries INTEGER NOT NULL, error TEXT)",
    "pairs": "CREATE TABLE pairs (a INTEGER NOT NULL, b VARCHAR(5) NOT NULL, PRIMARY KEY (a, b))",
    "noted": "CREATE TABLE noted (code VARCHAR(8) NOT NULL, text VARCHAR(99), UNIQUE (code))",
    "keyless": "CREATE TABLE keyless (text VARCHAR(99))",
}
ROWS = (
    "INSERT INTO orders VALUES (1, 'new', 7), (2, 'new', 7), (3, 'shipped', 8)",
    "INSERT INTO mails VALUES (1, 0, NULL, NULL, 0, NULL), (2, 2, NULL, NULL, 1, 'gone')",
    "INSERT INTO pairs VALUES (1, 'x')",
    "INSERT INTO noted VALUES ('a', NULL)",
)
MAILS = ("--kind", "rows", "--state", "unclaimed=0", "--state", "claimed=1", "--state", "done=2")
CASES = {
    "a side-car": ("orders", "--kind", "side-car", "--where", "state = 'new'"),
    "own columns": ("mails", *MAILS),
    "a transaction": ("pairs", "--kind", "transaction", "--on-done", "delete"),
    "a unique key": ("noted", "--kind", "batches", "--on-done", "delete"),
}


@pytest.fixture
def tables(database: Backend) -> Backend:
    says = "who pays; COMMENT\n;\n"
    comment = {"postgres": f"COMMENT ON COLUMN orders.customer IS '{says}'"}
    other = f"ALTER TABLE orders MODIFY customer INTEGER NOT NULL COMMENT '{says}'"
    for statement in (*TABLES.values(), *ROWS, comment.get(database.family, other)):
        database.run(statement)
    return database


def schema_of(backend: Backend) -> dict[str, list[str]]:
    inspector = sa.inspect(backend.engine)
    return {name: [column["name"] for column in inspector.get_columns(name)] for name in inspector.get_table_names()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.each_value("case", "each kind writes other files")
def test_the_files_that_it_writes_work_as_they_are(tables: Backend, tmp_path: Path, case: str) -> None:
    table, *words = CASES[case]
    before = schema_of(tables)
    ended = claimjobs("adopt", table, *words, "--into", tmp_path, "--url", tables.url)
    assert ended.code == exits.OK, ended.err
    assert "-- locks no other table\nCREATE TABLE" in ended.out
    assert ("CREATE INDEX" in ended.out.partition("CREATE TABLE")[0]) is (case == "own columns")
    assert schema_of(tables) == before, "the database is only read"
    run_setup(tables, tmp_path / f"{table}_setup.sql")
    rows = tables.rows(table)
    tested = _in(tmp_path.parent, tables, "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout + tested.stderr
    assert tables.rows(table) == rows
    words = ["--map", str(tmp_path / f"{table}.toml"), "--url", tables.url]
    assert claimjobs("explain", *words).code in (exits.OK, exits.WARNINGS)
    run = _in(tmp_path, tables, "claimjobs", "start-processing", f"{table}_jobs:handle", *words, "--drain", "--json")
    done = 2 if table == "orders" else 1
    assert (run.returncode, f'"done": {done}, ' in run.stdout.splitlines()[-1]) == (0, True), run.stdout + run.stderr


def run_setup(database: Backend, script: Path) -> None:
    for statement in script.read_text().split(";\n"):
        if statement.strip():
            database.run(re.sub("^-- .*$", "", statement, flags=re.M).replace(":", r"\:"))


def _in(folder: Path, backend: Backend, *words: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a module. `url`: for the tests in it, if it is not that of the backend."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {**kept, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "CLAIMJOBS_URL": backend.url}
    environment["CLAIMJOBS_TEST_URL"] = backend.url if url is None else url
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE
    )


def test_what_another_queue_has_made_is_not_made_again(tables: Backend, tmp_path: Path) -> None:
    assert claimjobs("setup-tables", "--url", tables.url).code == exits.OK
    ended = claimjobs("adopt", "pairs", "--kind", "side-car", "--into", tmp_path, "--url", tables.url)
    assert ended.code == exits.OK, ended.err
    assert re.findall(r"CREATE TABLE (\w+)", ended.out) == ["pairs_claims"]
    make(tables.engine, side_car_tables(tables.engine, "pairs"))
    ended = claimjobs("adopt", "pairs", "--kind", "side-car", "--into", tmp_path / "again", "--url", tables.url)
    assert (ended.code, "CREATE" in ended.out) == (exits.OK, False)
    assert "it has all that this queue needs" in ended.err
    tested = _in(tmp_path, tables, "pytest", "-q", "-p", "no:cacheprovider", "test_pairs_jobs.py")
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout + tested.stderr


def test_no_column_with_a_users_data_is_written(database: Backend, tmp_path: Path) -> None:
    """Its owner is whose document it is, `worker` refers to another table, and `tries` has counted something."""
    database.run("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    database.run(
        "CREATE TABLE documents (id INTEGER PRIMARY KEY, owner_id INTEGER, worker INTEGER, locked_by VARCHAR(255), "
        "status VARCHAR(9) NOT NULL, priority VARCHAR(9), attempts INTEGER NOT NULL, last_error INTEGER, suspect TEXT, "
        "locked_at TIMESTAMP NULL, failures INTEGER, run_at INTEGER, FOREIGN KEY (worker) REFERENCES people (id))"
    )
    database.run(
        "INSERT INTO documents (id, owner_id, status, attempts, suspect) VALUES (1, 7, 'new', 3, 'the butler')"
    )
    kept = "owner_id, worker, locked_by, priority, attempts, last_error, suspect, run_at"
    words = ("--state", "unclaimed=new", "--state", "claimed=busy", "--state", "done=sent", "--on-done", "keep")
    into = ("--into", tmp_path, "--url", database.url)
    ended = claimjobs("adopt", "documents", "--kind", "rows", *words, *into)
    assert (ended.code, 'give --where, such as --where "run_at = ..."' in ended.err) == (exits.USAGE, True), ended.err
    assert "column run_at is not taken as the run_at" in ended.out
    ended = claimjobs("adopt", "documents", "--kind", "rows", "--where", "true", *words, *into)
    assert ended.code == exits.OK, ended.err
    assert "column owner_id is not taken as the owner_id" in ended.out
    columns = read_map(tmp_path / "documents.toml")["columns"]
    assert {role: name for role, name in columns.names.items() if role != name} == {
        "owner_id": "claim_owner_id",
        "owner_date": "locked_at",
        "run_at": "claim_run_at",
        "attempts": "failures",
        "last_error": "claim_last_error",
        "suspect": "claim_suspect",
    }
    assert columns.priority is None
    before = _row(database, kept)
    run_setup(database, tmp_path / "documents_setup.sql")
    queue = ("--map", str(tmp_path / "documents.toml"), "--url", database.url, "--drain")
    run = _in(tmp_path, database, "claimjobs", "start-processing", "documents_jobs:handle", *queue)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (_row(database, kept), _row(database, "status")) == (before, ("sent",))
    where = ("--where", "true", "--into", tmp_path / "again", "--url", database.url)
    again = claimjobs("adopt", "documents", "--kind", "rows", *words, *where)
    assert (again.code, "ADD COLUMN claim_owner_id" in again.out) == (exits.OK, False), "it knows its own columns again"


def test_a_status_and_a_run_at_are_known_by_what_is_stored(database: Backend, tmp_path: Path) -> None:
    """Of a number with decimal places, and of a domain: else all rows would become jobs, also those that are done."""
    number, moment = "NUMERIC(3, 1)", "TIMESTAMP"
    if database.family == "postgres":
        for domain, type_ in {"step": number, "later": "step", "moment": f"{moment}TZ"}.items():
            database.run(f"CREATE DOMAIN {domain} AS {type_}")
        number, moment = "later", "moment"
    database.run(f"CREATE TABLE mailing (id INTEGER PRIMARY KEY, state {number} NOT NULL, due_at {moment} NULL)")
    database.run("INSERT INTO mailing VALUES (1, 0, NULL), (2, 2.5, NULL), (3, 0, '2037-01-01 00:00:00')")
    words = ("--state", "unclaimed=0", "--state", "claimed=1", "--state", "done=2.5", "--kind", "rows")
    ended = claimjobs("adopt", "mailing", *words, "--into", tmp_path, "--url", database.url)
    assert ended.code == exits.OK, ended.err
    columns = read_map(tmp_path / "mailing.toml")["columns"]
    assert (columns.status, columns.run_at) == ("state", "due_at")
    run_setup(database, tmp_path / "mailing_setup.sql")
    queue = ("--map", str(tmp_path / "mailing.toml"), "--url", database.url, "--drain")
    run = _in(tmp_path, database, "claimjobs", "start-processing", "mailing_jobs:handle", *queue)
    told = "1 done, 0 dead, 0 failed and tried again; 1 left in the queue"
    assert (run.returncode, run.stdout.splitlines()[0]) == (0, told), run.stdout + run.stderr


def _row(database: Backend, columns: str) -> tuple[object, ...]:
    with database.engine.connect() as connection:
        return tuple(connection.execute(sa.text(f"SELECT {columns} FROM documents")).one())


SKIPS = {"no row of the table is a job that is due": None, "CLAIMJOBS_TEST_URL must name a database for it": ""}


@pytest.mark.parametrize("kind", ["rows", "batches", "transaction", "side-car"])
@pytest.mark.each_value("kind", "each kind claims in another way")
def test_the_test_is_skipped_with_a_reason_without_a_job(database: Backend, tmp_path: Path, kind: str) -> None:
    database.run("CREATE TABLE papers (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL)")
    database.run("INSERT INTO papers VALUES (1, 0)")
    done = () if kind == "side-car" else ("--on-done", "delete")
    words = ("--kind", kind, "--where", "paid = 1", *done, "--into", tmp_path, "--url", database.url)
    ended = claimjobs("adopt", "papers", *words)
    assert ended.code == exits.OK, ended.err
    run_setup(database, tmp_path / "papers_setup.sql")
    for reason, url in SKIPS.items():
        tested = _in(
            tmp_path, database, "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_papers_jobs.py", url=url
        )
        assert (reason in tested.stdout, "1 skipped" in tested.stdout) == (True, True), tested.stdout + tested.stderr


def test_a_job_whose_handler_fails_in_the_test_is_as_it_was(database: Backend, tmp_path: Path) -> None:
    database.run("CREATE TABLE papers (id INTEGER PRIMARY KEY)")
    database.run("INSERT INTO papers VALUES (1)")
    for kind, words in {"rows": ("--on-done", "delete"), "side-car": ("--where", "true")}.items():
        into = tmp_path / kind
        ended = claimjobs("adopt", "papers", "--kind", kind, *words, "--into", into, "--url", database.url)
        assert ended.code == exits.OK, ended.err
        run_setup(database, into / "papers_setup.sql")
        handler = into / "papers_jobs.py"
        handler.write_text(handler.read_text().replace("    log.info", "    raise OSError('no paper')\n    log.info"))
        before = database.rows("papers")
        tested = _in(into, database, "pytest", "-q", "-p", "no:cacheprovider", "test_papers_jobs.py")
        assert "1 failed" in tested.stdout, tested.stdout + tested.stderr
        assert "no paper" in tested.stdout, tested.stdout
        assert database.rows("papers") == before
    assert database.rows("papers_claims") == []


def test_odd_names_are_written_so_that_each_file_can_be_read(database: Backend, tmp_path: Path) -> None:
    quote = database.engine.dialect.identifier_preparer.quote_identifier
    names = ["back\\nslash", "9 lives", 'q"x', "a_table_with_a_long_name_of_customers"]
    if database.family == "postgres":
        names.append("smile\U0001f600")  # a name of MySQL has no character of more than 16 bits
    for name in names:
        with database.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE {quote(name)} (id INTEGER PRIMARY KEY, {quote('a:b')} INTEGER)")
        into = tmp_path / str(names.index(name))
        words = ("--kind", "rows", "--migration", "alembic", "--on-done", "delete", "--into", into)
        ended = claimjobs("adopt", name, *words, "--url", database.url)
        assert ended.code == exits.OK, ended.err
        assert read_map(next(into.glob("*.toml")))["table"] == name
        for file in into.glob("*.py"):
            compile(file.read_text("utf-8"), file.name, "exec")
        source = next(into.glob("*_setup.py")).read_text("utf-8")
        assert len(re.findall('revision, down_revision = "(.*)", None', source)[0]) <= 32
        tested = _in(into, database, "pytest", "-q", "-p", "no:cacheprovider", str(into), url="")
        assert "1 skipped" in tested.stdout, tested.stdout + tested.stderr


def test_a_table_is_tested_in_its_own_schema(database: Backend, tmp_path: Path) -> None:
    """Two schemas have a table of this name; for MySQL they are databases."""
    here = str(database.engine.url.database)
    schemas = ["one", "two"] if database.family == "postgres" else [here]
    for schema in schemas:
        if schema != here:
            for kind in ("SCHEMA {0}", "TYPE {0}.mood AS ENUM ('a', 'b')", "DOMAIN {0}.size AS INTEGER"):
                database.run(f"CREATE {kind.format(schema)}")
        of_types = "" if schema == here else f", mood {schema}.mood, moods {schema}.mood[], size {schema}.size"
        database.run(f"CREATE TABLE {schema}.orders (id INTEGER PRIMARY KEY{of_types})")
        database.run(f"INSERT INTO {schema}.orders (id) VALUES (1)")
        into = tmp_path / schema
        ended = claimjobs("adopt", f"{schema}.orders", "--kind", "side-car", "--into", into, "--url", database.url)
        assert ended.code == exits.OK, ended.err
        run_setup(database, into / "orders_setup.sql")
        tested = _in(into, database, "pytest", "-q", "-p", "no:cacheprovider", str(into))
        assert "1 passed" in tested.stdout, tested.stdout + tested.stderr


def test_it_says_what_it_found_and_guesses_no_value(tables: Backend, tmp_path: Path) -> None:
    ended = claimjobs("adopt", "orders", "--into", tmp_path, "--url", tables.url)
    assert (ended.code, "give --kind, such as side-car" in ended.err) == (exits.USAGE, True)
    assert "orders: 3 rows, key nr" in ended.out
    assert "state has the values new (2), shipped (1)" in ended.out
    assert "side-car     nothing of the table is altered" in ended.out
    ended = claimjobs("adopt", "mails", "--kind", "rows", "--into", tmp_path, "--url", tables.url)
    assert (ended.code, "--state unclaimed=VALUE --state claimed=VALUE" in ended.err) == (exits.USAGE, True)
    assert "rows         4 columns must be added" in ended.out
    ended = claimjobs("adopt", "orders", "--kind", "side-car", "--into", tmp_path, "--url", tables.url)
    assert (ended.code, 'such as --where "state = ..."' in ended.err) == (exits.USAGE, True)
    ended = claimjobs("adopt", "pairs", "--kind", "batches", "--into", tmp_path, "--url", tables.url)
    assert (ended.code, "--on-done keep, or --on-done delete" in ended.err) == (exits.USAGE, True)
    assert list(tmp_path.iterdir()) == []


def test_values_that_cannot_be_right_are_told(tables: Backend, tmp_path: Path) -> None:
    into = ("--kind", "rows", "--on-done", "keep", "--into", tmp_path, "--url", tables.url)
    type_ = "ENUM ('new', 'paid')"
    if tables.family == "postgres":
        tables.run(f"CREATE TYPE steps AS {type_}")
        type_ = "steps"
    tables.run(f"CREATE TABLE typed (id INTEGER PRIMARY KEY, status {type_} NOT NULL)")
    ended = claimjobs("adopt", "typed", "--state", "unclaimed=new", "--state", "claimed=shipping", *into)
    flaw = "column 'status' of table 'typed' cannot have the value 'shipping', but only 'new', 'paid'"
    assert (ended.code, flaw in ended.err, "type first: ALTER T" in ended.err) == (exits.USAGE, True, True), ended.err
    ended = claimjobs("adopt", "mails", "--state", "unclaimed=new", "--state", "claimed=1", *into)
    assert (ended.code, "unclaimed=new: 'new' is no whole number" in ended.err) == (exits.USAGE, True), ended.err
    tables.run("CREATE TABLE flags (id INTEGER PRIMARY KEY, status BOOLEAN NOT NULL)")
    ended = claimjobs("adopt", "flags", "--state", "unclaimed=open", "--state", "claimed=true", *into)
    assert (ended.code, "unclaimed=open: 'open' is no " in ended.err) == (exits.USAGE, True), ended.err
    assert list(tmp_path.iterdir()) == []
    ended = claimjobs("adopt", "mails", "--state", "unclaimed=7", "--state", "claimed=1", *into)
    assert ended.code == exits.OK, ended.err
    assert "warning: no row has status 7, which is to mean unclaimed" in ended.out
    assert "give --state dead=VALUE" in ended.out
    words = ("--state", "unclaimed=0", "--state", "claimed=1", "--state", "dead=3")
    ended = claimjobs("adopt", "mails", *words, *into[:-4], "--into", tmp_path / "all", "--url", tables.url)
    assert (ended.code, "warning" in ended.out) == (exits.OK, False), ended.out


def test_on_a_terminal_it_asks_for_each_value(tables: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.cli.adopt.asks", lambda: True)
    words = ("adopt", "mails", "--kind", "rows", "--into", tmp_path, "--url", tables.url)
    ended = claimjobs(*words, stdin=b"0\n1\n2\n\n")
    assert ended.code == exits.OK, ended.err
    assert "Which value of status means unclaimed: " in ended.err
    assert "Which value of status means dead (Enter: none): " in ended.err
    assert read_map(tmp_path / "mails.toml")["columns"].states == {"unclaimed": 0, "claimed": 1, "done": 2}
    words = ("adopt", "orders", "--kind", "side-car", "--into", tmp_path, "--url", tables.url)
    assert claimjobs(*words, stdin=b"\nstate = 'new'\n").code == exits.OK, "there is no default: it is asked again"
    assert read_map(tmp_path / "orders.toml")["where"] == "state = 'new'"


@pytest.mark.parametrize("form", ["alembic", "django"])
def test_a_migration_has_all_statements(tables: Backend, tmp_path: Path, form: str) -> None:
    words = ("--migration", form, "--into", tmp_path, "--url", tables.url)
    assert claimjobs("adopt", *CASES["a side-car"], *words).code == exits.OK
    source = (tmp_path / "orders_setup.py").read_text()
    compile(source, "orders_setup.py", "exec")
    assert source.count("op.execute(" if form == "alembic" else "RunSQL(") >= 4
    assert "orders_claims" in source


def test_a_key_is_unique_by_whole_values_and_in_all_rows(database: Backend, tmp_path: Path) -> None:
    table = "CREATE TABLE feeds (url VARCHAR(2000) NOT NULL, nr INTEGER NOT NULL)"
    first, rest = "CREATE UNIQUE INDEX a ON feeds (url(100))", "CREATE UNIQUE INDEX c ON feeds (url(50), nr)"
    if database.family == "postgres":
        first, rest = (
            "CREATE UNIQUE INDEX a ON feeds (url) WHERE nr > 9",
            "CREATE UNIQUE INDEX c ON feeds (lower(url), nr)",
        )
    for statement in (table, first, rest):
        database.run(statement)
    words = ("adopt", "feeds", "--kind", "side-car", "--into", tmp_path, "--url", database.url)
    ended = claimjobs(*words)
    assert (ended.code, "has no key: give it a primary key" in ended.err) == (exits.USAGE, True), ended.err
    database.run("CREATE UNIQUE INDEX b ON feeds (nr)")
    assert claimjobs(*words).code == exits.OK
    assert read_map(tmp_path / "feeds.toml")["columns"].key_names == ("nr",)


def test_what_cannot_be_a_queue_is_told(tables: Backend, tmp_path: Path) -> None:
    into = ("--kind", "side-car", "--into", tmp_path, "--url", tables.url)
    ended = claimjobs("adopt", "keyless", *into)
    assert (ended.code, "has no key: give it a primary key" in ended.err) == (exits.USAGE, True)
    assert claimjobs("adopt", "nowhere", *into).code == exits.TABLE
    ended = claimjobs("adopt", "orders", "--where", "true", "--state", "unclaimed=new", *into)
    assert (ended.code, "the values would mean nothing" in ended.err) == (exits.USAGE, True)
    ended = claimjobs("adopt", "orders", "--where", "true", "--state", "waiting=new", *into)
    assert (ended.code, "give one of unclaimed" in ended.err) == (exits.USAGE, True)
    for where, flaw in {"state = new": "not understand the predicate (", "true) OR (true": "is not one whole"}.items():
        ended = claimjobs("adopt", "orders", "--where", where, *into)
        assert (ended.code, flaw in ended.err) == (exits.INPUT, True), ended.err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "orders.toml").touch()
    ended = claimjobs("adopt", "orders", "--where", "true", *into)
    assert (ended.code, "is not written over" in ended.err) == (exits.USAGE, True)

"""`claimjobs setup-tables`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.table.columns import OURS
from claimjobs.table.definitions import FIRST_OWNER, OWNER_TABLE, QUEUES_TABLE
from claimjobs.table.roles import IS_CLAIMED_AGAIN
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs, mapped, shared

pytestmark = pytest.mark.one_server(
    "a command parses and prints; the DDL of each database is in docs/sql.md and tests/conformance"
)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a module of one's own."""
    (tmp_path / "cli_models.py").write_text(
        "import sqlalchemy as sa\n"
        "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column\n"
        "from claimjobs import job_table\n"
        "class Base(DeclarativeBase): pass\n"
        "class Email(Base):\n"
        "    __table__ = job_table('emails', Base.metadata, sa.Column('address', sa.String(80), nullable=False))\n"
        "emails = Email.__table__\n"
        "number = 5\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


DELETED = "claimjobs: Done jobs are deleted from table 'jobs'.\n"
KEPT = "claimjobs: Done jobs of table 'orders' are kept with status 'done'.\n"
"""What is told before anything else."""


def indexes(backend: Backend, table: str = "jobs") -> set[str | None]:
    return {index["name"] for index in sa.inspect(backend.engine).get_indexes(table)}


def drop_index(backend: Backend) -> None:
    backend.run(f"DROP INDEX jobs_claim{'' if backend.family == 'postgres' else ' ON jobs'}")


def test_it_makes_what_is_missing_and_says_what_was_there(database: Backend) -> None:
    first, second = (claimjobs("setup-tables", "--url", database.url) for _ in range(2))
    assert (first.code, first.out, first.err) == (
        exits.OK,
        f"jobs: made\n{shared('made')}",
        DELETED,
    )
    assert (second.code, second.out) == (
        exits.OK,
        f"jobs: was there\n{shared('was there')}",
    )
    assert database.bare_queue().stats().left == 0


def test_the_url_comes_from_the_environment_too(anywhere: Backend) -> None:
    assert claimjobs("setup-tables", env={"CLAIMJOBS_URL": anywhere.url}).code == exits.OK
    assert anywhere.rows() == []


@pytest.mark.parametrize("name", ["emails", "Email"])
def test_a_table_or_a_mapped_class_of_ones_own(anywhere: Backend, models: Path, name: str) -> None:
    ended = claimjobs("setup-tables", "--url", anywhere.url, "--table", f"cli_models:{name}")
    assert (ended.code, ended.out) == (
        exits.OK,
        f"emails: made\n{shared('made')}",
    )
    assert anywhere.rows("emails") == []


@pytest.mark.parametrize(
    ("reference", "code", "reason"),
    [
        ("cli_models:nothing", exits.INPUT, "module 'cli_models' has no 'nothing'"),
        ("no_such_module:x", exits.INPUT, "No module named 'no_such_module'"),
        ("cli_models:", exits.INPUT, "is not of the form MODULE:ATTRIBUTE"),
        ("cli_models:number", exits.TABLE, "is int: name a sqlalchemy.Table or a class mapped to one"),
    ],
)
def test_a_reference_that_leads_to_no_table(models: Path, reference: str, code: int, reason: str) -> None:
    ended = claimjobs("setup-tables", "--sql", "--table", reference)
    assert ended.code == code
    assert reason in ended.err
    assert repr(reference) in ended.err


# --- recreate ------------------------------------------------------------------------------------------------


def test_recreate_drops_the_jobs_and_keeps_the_owners(database: Backend) -> None:
    queue = database.queue()
    queue.enqueue({"d": "a", "e": "b"})
    before = queue.owner_id
    queue.close()
    ended = claimjobs("setup-tables", "--recreate", "--yes", "--url", database.url)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"jobs: dropped and made anew\n{shared('was there, kept')}",
    )
    assert database.rows() == []
    again = database.bare_queue()
    assert again.owner_id > before >= FIRST_OWNER  # never given out a second time


def test_recreate_leaves_the_owners_of_other_queues_in_place(database: Backend) -> None:
    other = database.queue("others")
    mine = other.owner_id
    assert claimjobs("setup-tables", "--recreate", "--yes", "--url", database.url).code == exits.OK
    assert [owner.id for owner in other.stats().owners] == [mine]


def test_recreate_makes_what_was_never_there(anywhere: Backend) -> None:
    ended = claimjobs("setup-tables", "--recreate", "--yes", "--url", anywhere.url)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"jobs: made\n{shared('made')}",
    )


def test_without_a_terminal_recreate_needs_yes(anywhere: Backend) -> None:
    anywhere.queue().enqueue({"d": "a", "e": "b"})
    ended = claimjobs("setup-tables", "--recreate", "--url", anywhere.url)
    assert ended.code == exits.USAGE
    assert "give --yes" in ended.err
    assert len(anywhere.rows()) == 1


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("\n", 1)])
def test_on_a_terminal_it_asks(anywhere: Backend, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    monkeypatch.setattr("claimjobs.cli.console.asks", lambda: True)
    anywhere.queue().enqueue({"d": "a", "e": "b"})
    ended = claimjobs("setup-tables", "--recreate", "--url", anywhere.url, stdin=answer.encode())
    assert ended.code == (exits.FAILURE if left else exits.OK)
    assert "Drop table jobs with all its rows in postgresql" in ended.err
    assert str(anywhere.engine.url.password) not in ended.err.replace(str(anywhere.engine.url.username), "")
    assert len(anywhere.rows()) == left


@pytest.mark.parametrize("name", ["emails", "cli_models:emails", "cli_models:Email"])
def test_recreate_drops_no_table_of_the_users_own(database: Backend, models: Path, name: str) -> None:
    database.run("CREATE TABLE emails (id int primary key, address varchar(80), status varchar(9), owner_id int)")
    database.run("INSERT INTO emails VALUES (1, 'x', 'unclaimed', NULL)")
    ended = claimjobs("setup-tables", "--recreate", "--yes", "--table", name, "--url", database.url)
    assert ended.code == exits.TABLE
    assert "'emails' was not made by claimjobs, which therefore does not drop it: drop it yourself" in ended.err
    assert len(database.rows("emails")) == 1


def test_recreate_knows_its_own_also_where_the_description_is_a_plain_table(database: Backend, models: Path) -> None:
    (models / "cli_plain.py").write_text(
        "import sqlalchemy as sa\n"
        "emails = sa.Table('emails', sa.MetaData(), sa.Column('id', sa.Integer, primary_key=True),\n"
        "    sa.Column('status', sa.String(9), server_default='unclaimed'), sa.Column('owner_id', sa.Integer),\n"
        "    comment='mail', mysql_engine='InnoDB')\n"
    )
    words = ("setup-tables", "--table", "cli_plain:emails", "--url", database.url)
    assert claimjobs(*words).out == f"emails: made\n{shared('made')}"
    assert sa.inspect(database.engine).get_table_comment("emails")["text"] == "mail, made by claimjobs, schema 1"
    assert "'mail, made by claimjobs, schema 1'" in claimjobs(*words, "--sql").out
    assert claimjobs(*words, "--recreate", "--yes").out.startswith("emails: dropped and made anew\n")


def test_recreate_does_not_replace_a_table_by_another_one(anywhere: Backend, models: Path) -> None:
    assert claimjobs("setup-tables", "--table", "cli_models:emails", "--url", anywhere.url).code == exits.OK
    anywhere.run("INSERT INTO emails (address) VALUES ('x')")
    ended = claimjobs("setup-tables", "--recreate", "--yes", "--table", "emails", "--url", anywhere.url)
    assert ended.code == exits.TABLE
    assert "'emails' would be made without address" in ended.err
    assert len(anywhere.rows("emails")) == 1


# --- what is there but does not fit --------------------------------------------------------------------------


def test_what_a_queue_must_have_is_told_and_the_rest_is_added(database: Backend) -> None:
    database.run("CREATE TABLE orders (id int primary key, customer varchar(20))")
    words = ("setup-tables", "--table", "orders", "--url", database.url)
    ended = claimjobs(*words)
    assert ended.code == exits.TABLE
    for column in ("status", "owner_id"):
        assert f"no column {column!r}" in ended.err
        database.run(ended.err.partition("needs: ")[2])
        ended = claimjobs(*words)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"orders: was there\n{shared('was there')}",
    )
    told = "claimjobs: `claimjobs explain --table orders --url URL` says what the table lacks\n"
    assert ended.err == KEPT + told
    added = claimjobs(*words, "--add", ",".join((*OURS[2:], "claim-index")), "--yes")
    assert added.code == exits.OK, added.err
    assert "CREATE INDEX orders_claim ON orders (status, priority, id, run_at" in added.out
    assert claimjobs(*words, "--add", "suspect,claim-index", "--yes").out == ended.out
    elsewhere = "SET TIME ZONE" if database.family == "postgres" else "SET time_zone ="
    with database.new_engine().begin() as connection:
        connection.exec_driver_sql(f"{elsewhere} '+02:00'").close()
        connection.exec_driver_sql("INSERT INTO orders (id) VALUES (1)").close()
    assert len(database.bare_queue("orders").claim()) == 1  # due at once, wherever the producer is


def test_a_table_with_records_of_our_own_is_no_table_of_jobs(database: Backend) -> None:
    database.run("CREATE TABLE items (id INT PRIMARY KEY)")
    assert claimjobs("setup-tables", "--table", "items", "--side-car", "--url", database.url).code == exits.OK
    for name in (OWNER_TABLE, "claimjobs_batches", "items_claims"):
        added = ("setup-tables", "--add", "priority", "--yes")
        for words in (("setup-tables",), ("status",), ("setup-tables", "--side-car"), added):
            ended = claimjobs(*words, "--table", name, "--url", database.url)
            assert (ended.code, ended.out) == (exits.TABLE, ""), (name, words, ended)
            assert f"table {name!r} has the records of claimjobs itself, and no jobs: name another table" in ended.err
            assert "ALTER" not in ended.err
            assert "deleted when they are done" not in ended.err


def test_a_column_that_cannot_be_read_is_told_in_one_line(database: Backend) -> None:
    if database.family != "mysql":
        pytest.skip("no column type with arguments that SQLAlchemy does not know")
    others = "p POINT, status VARCHAR(16) NOT NULL DEFAULT 'unclaimed', owner_id INT"
    database.run(f"CREATE TABLE seen (id INT PRIMARY KEY, v VECTOR(3), {others})")
    cannot_be_read = "table 'seen' has a column that SQLAlchemy cannot read"
    not_ours = "table 'seen' was not made by claimjobs, which therefore does not drop it"
    said = {"setup-tables": cannot_be_read, "status": cannot_be_read, "setup-tables --recreate --yes": not_ours}
    for command, message in said.items():
        words = [sys.executable, "-m", "claimjobs", *command.split(), "--table", "seen", "--url", database.url]
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == exits.TABLE, ended.stderr
        assert message in ended.stderr
        assert len(ended.stderr.splitlines()) == 1, ended.stderr


@pytest.fixture
def orders(database: Backend) -> Backend:
    """A table of the user's own, with rows."""
    database.run("CREATE TABLE orders (nr int primary key, state smallint not null, worker int)")
    database.run("INSERT INTO orders VALUES (1, 0, NULL), (2, 0, NULL), (3, 9, NULL)")
    return database


STATES = "[states]\nunclaimed = 0\nclaimed = 1\ndone = 9\n"
MAP = f'table = "orders"\n{STATES}[columns]\nstatus = "state"\nowner_id = "worker"\n'


def columns(backend: Backend, table: str = "orders") -> set[str]:
    return {column["name"] for column in sa.inspect(backend.engine).get_columns(table)}


def test_add_adds_what_is_asked_for_and_nothing_else(orders: Backend, tmp_path: Path) -> None:
    words = ("setup-tables", *mapped(tmp_path, MAP + 'attempts = "tries"'), "--url", orders.url)
    ended = claimjobs(*words, "--add", "attempts,run_at", "--add", "claim-index", "--yes")
    assert ended.code == exits.OK, ended.err
    statements = [line for line in ended.out.splitlines() if line.endswith(";")]
    assert [line.split()[5] for line in statements[:2]] == ["tries", "run_at"]
    assert statements[-1] == "CREATE INDEX orders_claim ON orders (state, nr, run_at);"
    assert columns(orders) == {"nr", "state", "worker", "tries", "run_at"}
    assert indexes(orders, "orders") == {"orders_claim"}
    assert [row["tries"] for row in orders.rows("orders")] == [0, 0, 0]
    again = claimjobs(*words, "--add", "attempts,run_at,claim-index", "--yes")
    assert (again.code, again.out) == (
        exits.OK,
        f"orders: was there\n{shared('was there')}",
    )
    assert "index" not in again.err
    assert claimjobs("status", *words[1:], "--json").out.startswith('{"table": "orders", "unclaimed": 2,')


def test_without_yes_add_alters_nothing_where_nobody_can_be_asked(orders: Backend, tmp_path: Path) -> None:
    words = ("setup-tables", *mapped(tmp_path, MAP), "--add", "priority", "--url", orders.url)
    ended = claimjobs(*words)
    assert (ended.code, ended.out.split(" ADD ")[0]) == (exits.USAGE, "ALTER TABLE orders")
    assert "nobody can be asked here: give --yes as well" in ended.err
    assert claimjobs(*words, "--sql") == Ended(exits.OK, ended.out, "")
    assert columns(orders) == {"nr", "state", "worker"}
    assert OWNER_TABLE not in sa.inspect(orders.engine).get_table_names()


@pytest.mark.parametrize("answer", ["y", ""])
def test_on_a_terminal_add_asks(orders: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("claimjobs.cli.console.asks", lambda: True)
    words = ("setup-tables", *mapped(tmp_path, MAP), "--add", "priority,last_error", "--url", orders.url)
    ended = claimjobs(*words, stdin=f"{answer}\n".encode())
    assert ended.code == (exits.OK if answer else exits.FAILURE)
    assert "Run 2 statements in " in ended.err
    assert ("priority" in columns(orders)) is bool(answer)


def test_a_status_is_added_with_the_values_of_the_map(orders: Backend, tmp_path: Path) -> None:
    text = '[columns]\nstatus = "step"\nowner_id = "worker"\n[states]\nunclaimed = 7\nclaimed = 8\n'
    words = ("setup-tables", "--table", "orders", *mapped(tmp_path, text), "--url", orders.url)
    ended = claimjobs(*words)
    assert ended.code == exits.TABLE
    assert "table 'orders' has no column 'step', which its column map names as status: check the map" in ended.err
    assert claimjobs(*words, "--add", "status", "--yes").code == exits.OK
    assert [row["step"] for row in orders.rows("orders")] == [7, 7, 7]


def test_a_table_of_the_users_own_is_never_altered_unasked(orders: Backend, tmp_path: Path) -> None:
    words = (*mapped(tmp_path, MAP + 'priority = ""'), "--url", orders.url)
    ended = claimjobs("setup-tables", *words)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"{shared('made')}orders: was there\n",
    )
    assert columns(orders) == {"nr", "state", "worker"}
    assert indexes(orders, "orders") == set()
    assert f"`claimjobs explain {words[0]} {words[1]} --url URL` says what the table lacks" in ended.err
    shown = claimjobs("explain", *words).out
    assert f"a job that fails {IS_CLAIMED_AGAIN}, because table 'orders' has no column 'attempts'" in shown
    assert f"a job that fails for the last time {IS_CLAIMED_AGAIN}" in shown  # the map names no dead
    assert "claims have no index: add one\n    CREATE INDEX orders_claim ON orders (state, nr);" in shown
    assert "priorit" not in shown  # the map says that there is none


def test_an_open_transaction_needs_no_column_for_owners(orders: Backend, tmp_path: Path) -> None:
    described = mapped(tmp_path, 'table = "orders"\nhold = "transaction"\n[columns]\nstatus = ""')
    words = ("setup-tables", *described, "--url", orders.url)
    ended = claimjobs(*words)
    assert (ended.code, ended.out) == (
        exits.OK,
        "claimjobs_owners: made\nclaimjobs_queues: made\nclaimjobs_batches: made\norders: was there\n",
    )
    assert "owner" not in ended.err
    assert "CREATE INDEX" not in ended.err  # the key's own index is all that is read


def test_a_table_with_a_map_is_not_ours_to_make(anywhere: Backend, tmp_path: Path) -> None:
    described = mapped(tmp_path, '[columns]\nstatus = "state"')
    ended = claimjobs("setup-tables", *described, "--table", "nothing", "--url", anywhere.url)
    assert ended.code == exits.TABLE
    assert "'nothing' is not in this database, and a table with a map is not made here" in ended.err
    assert sa.inspect(anywhere.engine).get_table_names() == []


def test_what_was_made_is_told_before_an_error(anywhere: Backend) -> None:
    ended = claimjobs("setup-tables", "--per-key", "customer", "--url", anywhere.url)
    assert (ended.code, ended.out) == (exits.TABLE, f"jobs: made\n{shared('made')}")
    assert "has no column 'customer'" in ended.err


def test_what_cannot_be_added_is_told_with_what_can() -> None:
    ended = claimjobs("setup-tables", "--add", "colour")
    assert ended.code == exits.USAGE
    assert "'colour' cannot be added: give some of status, owner_id" in ended.err
    assert claimjobs("setup-tables", "--add", "run_at", "--recreate").code == exits.USAGE


def test_a_table_without_a_key_is_no_queue(anywhere: Backend) -> None:
    anywhere.run("CREATE TABLE loose (status text, owner_id int)")
    ended = claimjobs("setup-tables", "--table", "loose", "--url", anywhere.url)
    assert ended.code == exits.TABLE
    assert "no primary key" in ended.err


def test_a_lost_index_is_made_again(database: Backend) -> None:
    database.make()
    drop_index(database)
    ended = claimjobs("setup-tables", "--url", database.url)
    were_there = f"jobs: was there\n{shared('was there')}"
    assert ended.out == f"{were_there}jobs_claim: index was missing, made\n"
    assert "jobs_claim" in indexes(database)


def test_an_index_of_another_name_that_does_as_well_is_enough(anywhere: Backend) -> None:
    anywhere.make()
    drop_index(anywhere)
    anywhere.run("CREATE INDEX mine ON jobs (status, priority, id, run_at, suspect)")
    ended = claimjobs("setup-tables", "--url", anywhere.url)
    assert (ended.out.count("\n"), ended.err) == (4, DELETED)
    assert indexes(anywhere) == {"mine", "jobs_d"}


# --- what an earlier version made ----------------------------------------------------------------------------


def test_the_owners_of_an_earlier_version_name_the_command_that_upgrades_them(database: Backend) -> None:
    database.make()
    database.run(f"ALTER TABLE {OWNER_TABLE} DROP COLUMN beat")
    for command in ("status", "reclaim", "setup-tables"):
        ended = claimjobs(command, "--url", database.url)
        assert ended.code == exits.TABLE
        assert (
            "has no column 'beat', perhaps because an earlier version made it: run `claimjobs upgrade-tables`"
            in ended.err
        )
        assert "add the column as `claimjobs setup-tables --sql` prints it" in ended.err


@pytest.mark.parametrize(("table", "column"), [(OWNER_TABLE, "beat"), (QUEUES_TABLE, "reason")])
def test_they_are_named_to_a_transaction_as_well(database: Backend, table: str, column: str) -> None:
    database.make()
    database.run(f"ALTER TABLE {table} DROP COLUMN {column}")
    for command in ("status", "reclaim"):
        ended = claimjobs(command, "--hold", "transaction", "--url", database.url)
        assert ended.code == exits.TABLE
        assert f"table '{table}' has no column '{column}'" in ended.err


def test_jobs_of_an_earlier_version_are_a_queue_and_what_they_lack_is_added(database: Backend) -> None:
    database.make()
    drop_index(database)
    database.run("ALTER TABLE jobs DROP COLUMN suspect")
    database.run("CREATE INDEX jobs_claim ON jobs (status, priority, id, run_at)")
    words = ("setup-tables", "--url", database.url)
    assert claimjobs(*words).code == exits.OK
    added = claimjobs(*words, "--add", "suspect,claim-index", "--yes")
    assert (added.code, added.err) == (exits.OK, DELETED)
    assert "DROP INDEX jobs_claim" in added.out
    assert "jobs_claim" in indexes(database)
    assert claimjobs("explain", *words[1:]).code == exits.OK


def test_an_index_of_another_name_that_lacks_the_suspects_stays(anywhere: Backend) -> None:
    anywhere.make()
    drop_index(anywhere)
    anywhere.run("CREATE INDEX mine ON jobs (status, priority, id, run_at)")
    ended = claimjobs("explain", "--url", anywhere.url)
    assert ended.code == exits.WARNINGS
    assert "claims read rows that they do not take: add one\n    CREATE INDEX jobs_claim ON jobs (" in ended.out
    assert claimjobs("setup-tables", "--url", anywhere.url).code == exits.OK
    assert indexes(anywhere) == {"mine", "jobs_d"}


# --- sql -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "word"),
    [
        (None, "SERIAL"),
        ("postgresql://", "SERIAL"),
        ("mysql://", "AUTO_INCREMENT"),
        ("mariadb://app:s3cret@nowhere.invalid/x", "AUTO_INCREMENT"),
    ],
)
def test_sql_connects_to_nothing(url: str | None, word: str) -> None:
    ended = claimjobs("setup-tables", "--sql", *(["--url", url] if url else []))
    assert (ended.code, ended.err) == (exits.OK, "")
    assert word in ended.out
    assert "CREATE TABLE jobs (" in ended.out
    assert "DROP" not in ended.out


def test_sql_is_what_setup_tables_would_run(database: Backend) -> None:
    ddl = claimjobs("setup-tables", "--sql", "--recreate", "--url", database.url).out
    assert "DROP TABLE jobs" in ddl
    assert "DROP TABLE claimjobs_owners" not in ddl
    for statement in claimjobs("setup-tables", "--sql", "--url", database.url).out.split(";\n"):
        if statement.strip():
            database.run(statement)
    assert claimjobs("setup-tables", "--url", database.url).out.count("was there") == 4
    assert database.bare_queue().stats().left == 0


def test_an_index_that_lacks_a_column_is_made_anew(database: Backend) -> None:
    """Two statements, which not every driver takes in one text."""
    database.make()
    with database.engine.begin() as connection:
        table = sa.Table("jobs", sa.MetaData(), autoload_with=connection)
        [index] = [one for one in table.indexes if one.name == "jobs_claim"]
        index.drop(connection)
        sa.Index("jobs_claim", *(table.c[name] for name in ("status", "priority", "id", "run_at"))).create(connection)
    ended = claimjobs("setup-tables", "--add", "claim-index", "--yes", "--url", database.url)
    assert ended.code == exits.OK, ended.err
    assert "claims read" not in claimjobs("setup-tables", "--url", database.url).err

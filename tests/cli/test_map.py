"""A table of the user's own without a line of code: the map as options, and as a file of TOML."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claimjobs import Columns, Shape
from claimjobs.cli import exits, shapes
from claimjobs.errors import BadMap
from claimjobs.options import HOLDS
from claimjobs.queue.config_file import HOLDS as HOLDS_OF_A_FILE
from claimjobs.workers.process_main import Plan
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs, shared
from tests.process.command import HANDLERS, noted
from tests.process.work import AUDIT

FILE = """\
table = "tickets"
order_by = ["-weight", "shop"]
where = "weight < 90"
on_done = "keep"

[columns]
key = ["shop", "nr"]
status = "state"
owner_id = "worker"
attempts = "tries"
run_at = "not_before"
last_error = "trouble"
priority = ""

[states]
unclaimed = 0
claimed = 1
done = 2
dead = 9
"""
OPTIONS = (
    *("--table", "tickets", "--column", "key=shop,nr", "--column", "status=state", "--column", "owner_id=worker"),
    *("--column", "attempts=tries", "--column", "run_at=not_before", "--column", "last_error=trouble"),
    *("--column", "priority=", "--state", "unclaimed=0", "--state", "claimed=1", "--state", "done=2"),
    *("--state", "dead=9"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def tickets(database: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A table with nothing of ours: other names, a key of two columns, numbers for states."""
    when = "TIMESTAMPTZ" if database.family == "postgres" else "DATETIME(6)"
    database.run(
        "CREATE TABLE tickets (shop VARCHAR(2), nr INT, state SMALLINT NOT NULL DEFAULT 0, worker INT, "
        f"weight INT NOT NULL, tries INT, not_before {when}, trouble TEXT, PRIMARY KEY (shop, nr))"
    )
    for number, weight in enumerate((10, 30, 20, 99)):
        database.run(f"INSERT INTO tickets (shop, nr, weight) VALUES ('eu', {number}, {weight})")
    assert claimjobs("setup-tables", *OPTIONS, "--url", database.url).code == exits.OK
    monkeypatch.setenv("CLAIMJOBS_TEST_AUDIT", database.url)
    return database


def states(backend: Backend) -> list[int]:
    return [row["state"] for row in backend.rows("tickets")]


# --- every command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["file", "options"])
def test_every_command_works_on_it(tickets: Backend, file: Path, tmp_path: Path, how: str) -> None:
    described = ("--map", file) if how == "file" else OPTIONS
    words = (*described, "--url", tickets.url)
    rows = tmp_path / "rows.csv"
    rows.write_text("shop,nr,weight\nus,1,50\n")
    assert claimjobs("enqueue", rows, *words).out == "1\n"
    tickets.run("UPDATE tickets SET state = 9, tries = 5, trouble = 'no\nway' WHERE nr = 2")
    assert claimjobs("status", *words).out.startswith("tickets: 4 unclaimed\ntickets: 0 claimed\ntickets: 0 done\n")
    assert claimjobs("dead", "list", *words).out == "eu,2\t5\tno way\n"
    assert claimjobs("dead", "show", "eu,2", "--json", *words).out.startswith('{"shop": "eu", "nr": 2, "state": 9')
    assert claimjobs("dead", "retry", "eu,2", *words).out == "1\n"
    tickets.run("UPDATE tickets SET state = 1, worker = 10000001 WHERE nr = 2")
    assert claimjobs("reclaim", *words).out == "1\n"
    assert states(tickets) == [0, 0, 0, 0, 0]


def test_start_processing_takes_the_map_to_its_processes(tickets: Backend, file: Path) -> None:
    AUDIT.create(tickets.engine)
    words = ("--map", file, "--consumers", "1", "--drain", "--json", "--url", tickets.url)
    ended = claimjobs("start-processing", "tests.cli.map_work:note_number", "--batch-size", "1", *words)
    assert ended.code == exits.OK, ended.err
    assert noted(tickets, "done") == [1, 2, 0]  # the heaviest first, and nothing of 90 and more
    assert states(tickets) == [2, 2, 2, 0]


def test_options_go_before_the_file(tickets: Backend, file: Path) -> None:
    AUDIT.create(tickets.engine)
    words = ("--map", file, "--order-by", "nr desc", "--where", "weight > 5", "--on-done", "delete")
    more = ("--hold", "transaction", "--consumers", "1", "--drain", "--json", "--url", tickets.url)
    ended = claimjobs("start-processing", "tests.cli.map_work:note_number", "--batch-size", "1", *words, *more)
    assert ended.code == exits.OK, ended.err
    assert noted(tickets, "done") == [3, 2, 1, 0]
    assert tickets.rows("tickets") == []


def test_any_order_goes_before_the_order_of_the_file(tickets: Backend, file: Path) -> None:
    AUDIT.create(tickets.engine)
    words = ("--map", file, "--any-order", "--drain", "--json", "--consumers", "2", "--url", tickets.url)
    ended = claimjobs("start-processing", "tests.cli.map_work:note_number", *words)
    assert ended.code == exits.OK, ended.err
    assert sorted(noted(tickets, "done")) == [0, 1, 2]
    assert shapes.shape_of(map=file, column=(), state=(), any_order=True) == replace(Shape.read(file), order_by=())


def test_any_order_and_an_order_exclude_each_other(file: Path) -> None:
    ended = claimjobs("explain", "--map", file, "--any-order", "--order-by", "nr")
    assert ended.code == exits.USAGE
    assert "--any-order says that there is no order: leave out --order-by, or --any-order" in ended.err


def test_an_order_that_is_none_is_told_before_anything_is_started(tickets: Backend, file: Path) -> None:
    words = ("--map", file, "--order-by", "-colour", "--drain", "--url", tickets.url)
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", *words)
    assert ended.code == exits.INPUT
    assert "does not understand the order (" in ended.err
    assert "colour" in ended.err


def test_what_the_table_cannot_do_is_told_before_anything_is_started(tickets: Backend) -> None:
    table = ("--table", "tickets", "--column", "status=state", "--column", "owner_id=worker", "--state", "unclaimed=0")
    words = (*table, "--on-done", "keep", "--drain", "--url", tickets.url)
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", *words)
    assert ended.code == exits.TABLE
    assert "means 'done', which keeping done jobs needs: name one, as in Columns(states={'done': ...})" in ended.err
    assert "or --state done=VALUE" in ended.err


def test_a_table_that_nobody_registers_for_needs_a_key_alone(database: Backend) -> None:
    database.run("CREATE TABLE bare (id INT PRIMARY KEY)")
    database.run("INSERT INTO bare VALUES (1)")
    words = ("--table", "bare", "--hold", "transaction", "--url", database.url)
    assert (
        claimjobs("setup-tables", *words).out
        == "claimjobs_owners: made\nclaimjobs_queues: made\nclaimjobs_batches: made\nbare: was there\n"
    )
    found = json.loads(claimjobs("status", "--json", *words).out)
    assert (found["unclaimed"], found["owners"]) == (1, [])
    assert claimjobs("reclaim", *words).out == "0\n"
    ended = claimjobs("dead", "list", *words)
    assert ended.code == exits.TABLE
    assert "no column 'status', which keeping dead jobs needs: ALTER TABLE bare ADD COLUMN status" in ended.err


def test_a_column_that_is_not_there(tickets: Backend) -> None:
    ended = claimjobs("status", *OPTIONS, "--column", "suspect=colour", "--url", tickets.url)
    assert ended.code == exits.TABLE
    assert "table 'tickets' has no column 'colour', which its column map names as suspect: check the map" in ended.err


def test_a_mapped_class_brings_its_map_along(tickets: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_mapped.py").write_text(
        "import sqlalchemy as sa\n"
        "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column\n"
        "from claimjobs import Columns\n"
        "class Base(DeclarativeBase): pass\n"
        "class Ticket(Base):\n"
        "    __tablename__ = 'tickets'\n"
        "    __claimjobs__ = Columns(status='state', owner_id='worker', states={'unclaimed': 0, 'claimed': 1})\n"
        "    shop: Mapped[str] = mapped_column(sa.String(2), primary_key=True)\n"
        "    nr: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)\n"
        "    state: Mapped[int] = mapped_column(server_default='0')\n"
        "    worker: Mapped[int | None]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--table", "cli_mapped:Ticket", "--url", tickets.url)
    assert "tickets: 4 unclaimed" in claimjobs("status", *words).out
    tickets.run("UPDATE tickets SET state = 7 WHERE nr = 0")
    ended = claimjobs("status", *words, "--state", "dead=7")
    assert "tickets: 3 unclaimed" in ended.out
    assert "tickets: 1 dead" in ended.out
    ended = claimjobs("setup-tables", *words)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"tickets: was there\n{shared('was there')}",
    )
    assert "without the column run_at no job can be delayed, and one that fails is released" in ended.err
    assert "): ALTER TABLE tickets ADD COLUMN" in ended.err


# --- what is said wrongly ------------------------------------------------------------------------------------


def refused(*words: str) -> Ended:
    ended = claimjobs("status", *words)
    assert ended.code == exits.USAGE
    return ended


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--column", "colour=x"), "'colour=x': give --column ROLE=NAME, ROLE being one of key, status, owner_id"),
        (("--column", "status"), "'status': give --column ROLE=NAME"),
        (("--column", "status=a,b"), "'status=a,b': give the name of one column"),
        (("--column", "key=a,,b"), "'key=a,,b': give the name of a column"),
        (("--state", "ready=0"), "'ready=0': give --state STATE=VALUE, STATE being one of unclaimed, claimed, done"),
        (("--hold", "hands"), "'hands' is not one of 'lease', 'transaction'"),
    ],
)
def test_an_option_that_cannot_be_meant(words: tuple[str, ...], told: str) -> None:
    assert told in " ".join(refused(*words).err.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("table = x", "is no TOML: Invalid value (at line 1, column 9): correct it there"),
        ('colour = "x"', "line 1: 'colour' is not known here: choose one of table, hold, claims, lock, side_car"),
        ('table = "t"\n\n[columns]\ncolour = "x"', "line 4: 'colour' is no role: choose one of key, status, owner_id"),
        ("[states]\nready = 0", "line 2: 'ready' is no state: choose one of unclaimed, claimed, done, dead"),
        ("[states]\ndone = [1]", "line 2: done = [1]: give a number, true, false or a text in quotes"),
        ("[columns]\nstatus = 3", "line 2: status = 3: give the name of one column in quotes"),
        ("[columns]\nkey = []", "line 2: key = []: give the name of a column in quotes, or several"),
        ('columns = "x"', "line 1: 'columns' is a section: write a line [columns]"),
        ('hold = "hands"', "line 1: hold = 'hands': give one of 'lease', 'transaction'"),
        ("side_car = 1", "line 1: side_car = 1: give true or false"),
        ("order_by = [1]", "line 1: order_by = [1]: give a text in quotes"),
        ('\n"lock" = 1', "line 2: lock = 1: give one of 'rows', 'advisory'"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    ended = claimjobs("status", "--map", path)
    assert ended.code == exits.INPUT
    assert told in ended.err
    assert str(path) in ended.err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    ended = claimjobs("status", "--map", tmp_path / "nothing.toml")
    assert ended.code == exits.INPUT
    assert "nothing.toml cannot be read (No such file or directory): check the path" in ended.err


# --- the shape -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("true", True),
        ("'0'", "0"),
        ('"a b"', "a b"),
        ("open", "open"),
        ("", ""),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_a_value_is_read_as_toml_where_it_is(text: str, value: object) -> None:
    shape = shapes.shape_of(map=None, column=(), state=(f"unclaimed={text}",))
    assert shape.columns is not None
    assert shape.columns.states == {"unclaimed": value}
    assert type(shape.columns.states["unclaimed"]) is type(value)


def test_a_file_and_options_say_the_same(file: Path) -> None:
    table, words = OPTIONS[1], OPTIONS[2:]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    given: dict[str, Any] = {
        kind: tuple(text for option, text in pairs if option == f"--{kind}") for kind in ("column", "state")
    }
    options = shapes.shape_of(map=None, table=table, order_by=("-weight", "shop"), **given)
    assert options.over(where="weight < 90", on_done="keep") == Shape.read(file)


def test_a_shape_goes_to_another_process(file: Path) -> None:
    plan = Plan("postgresql://nowhere", Shape.read(file))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.shape.columns == Columns(
        key=("shop", "nr"),
        status="state",
        owner_id="worker",
        attempts="tries",
        run_at="not_before",
        last_error="trouble",
        priority=None,
        states={"unclaimed": 0, "claimed": 1, "done": 2, "dead": 9},
    )


def test_a_shape_is_a_queue_in_the_library_too(tickets: Backend, file: Path) -> None:
    queue = Shape.read(file).queue(tickets.url)
    with queue, queue.claim() as batch:
        assert [job.nr for job in batch] == [1, 2, 0]
    queue.engine.dispose()
    file.write_text("[columns]\ncolour = 'x'")
    with pytest.raises(BadMap, match="no role"):
        Shape.read(file)


def test_a_file_and_a_queue_know_the_same_holds() -> None:
    assert HOLDS_OF_A_FILE == HOLDS


def test_text_is_an_order(anywhere: Backend) -> None:
    queue = anywhere.queue(order_by=["-priority", "length(d)"])
    queue.enqueue([{"d": d, "e": "", "priority": priority} for d, priority in (("ab", 1), ("b", 1), ("c", 2))])
    with queue.claim() as batch:
        assert [job.d for job in batch] == ["c", "b", "ab"]


# --- a table that must not be altered ------------------------------------------------------------------------


def test_claims_beside_a_table_are_set_up_and_worked_through(
    database: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIMJOBS_TEST_AUDIT", database.url)
    database.run("CREATE TABLE albums (nr INT PRIMARY KEY, title VARCHAR(20))")
    database.run("INSERT INTO albums VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    AUDIT.create(database.engine)
    path = tmp_path / "albums.toml"
    path.write_text('table = "albums"\nside_car = true\n')
    words = ("--map", path, "--url", database.url)
    assert "CREATE TABLE albums_claims" in claimjobs("setup-tables", "--sql", *words).out
    ended = claimjobs("setup-tables", *words)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"albums_claims: made\n{shared('made')}",
    )
    assert ended.err == "claimjobs: Done jobs of albums are kept; their keys are marked as done in the side-car.\n"
    assert claimjobs("status", *words).out.startswith("albums: 3 unclaimed\n")
    ended = claimjobs("start-processing", "tests.cli.map_work:note_number", *words, "--consumers", "2", "--drain")
    assert ended.code == exits.OK, ended.err
    assert sorted(noted(database, "done")) == [1, 2, 3]
    assert len(database.rows("albums")) == 3
    assert "albums: 3 done" in claimjobs("status", "--table", "albums", "--side-car", "--url", database.url).out


def test_what_does_not_go_with_a_table_that_must_not_be_altered(anywhere: Backend) -> None:
    for wish in (["--recreate"], ["--add", "run_at"]):
        ended = claimjobs("setup-tables", "--side-car", *wish)
        assert ended.code == exits.USAGE
        assert "leave out --recreate and --add" in ended.err
    words = ("--side-car", "--lock", "advisory", "--drain", "--url", anywhere.url)
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", *words)
    assert ended.code == exits.INPUT
    assert "lock='advisory' is not for a side-car" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--jobs", "5"), "--jobs has no effect without --generators"),
        (("--grace", "5"), "--grace has no effect without --duration"),
        (("--bind", "0.0.0.0"), "--bind has no effect without --metrics-port or --health-port"),
        (("--column", "status=", "--state", "done=7"), "states are values of the status column: name that column"),
        (("--side-car", "--state", "unclaimed=1"), "states of the map would have no effect"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(anywhere: Backend, words: tuple[str, ...], told: str) -> None:
    anywhere.make()
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", "--drain", *words, "--url", anywhere.url)
    assert ended.code in (exits.USAGE, exits.INPUT)
    assert told in " ".join(ended.err.split())


@pytest.mark.parametrize("hold", HOLDS)
def test_advisory_locks_by_an_option(database: Backend, hold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMJOBS_TEST_AUDIT", database.url)
    database.queue().enqueue([{"d": "d", "e": "e"}] * 30)
    AUDIT.create(database.engine)
    words = ("--lock", "advisory", "--hold", hold, "--consumers", "2", "--batch-size", "7", "--drain")
    ended = claimjobs("start-processing", "tests.cli.map_work:note_number", *words, "--url", database.url)
    assert ended.code == exits.OK, ended.err
    assert sorted(noted(database, "done")) == sorted(set(noted(database, "done")))
    assert len(noted(database, "done")) == 30

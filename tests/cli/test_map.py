"""A table of the user's own without a line of code: the map as a file of TOML."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs import Columns, Queue, job_table, read_map
from claimjobs.cli import exits
from claimjobs.errors import BadMap
from claimjobs.queue.map_file import described_in
from claimjobs.workers.process_main import Plan
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs, mapped, shared
from tests.process.command import HANDLERS, noted
from tests.process.work import AUDIT

pytestmark = pytest.mark.one_server(
    "a command parses and prints; what differs between databases is tested beside the Queue"
)

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def tickets(database: Backend, file: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A table with nothing of ours: other names, a key of two columns, numbers for states."""
    when = "TIMESTAMPTZ" if database.family == "postgres" else "DATETIME(6)"
    database.run(
        "CREATE TABLE tickets (shop VARCHAR(2), nr INT, state SMALLINT NOT NULL DEFAULT 0, worker INT, "
        f"weight INT NOT NULL, tries INT, not_before {when}, trouble TEXT, PRIMARY KEY (shop, nr))"
    )
    for number, weight in enumerate((10, 30, 20, 99)):
        database.run(f"INSERT INTO tickets (shop, nr, weight) VALUES ('eu', {number}, {weight})")
    assert claimjobs("setup-tables", "--map", file, "--url", database.url).code == exits.OK
    monkeypatch.setenv("CLAIMJOBS_TEST_AUDIT", database.url)
    return database


def states(backend: Backend) -> list[int]:
    return [row["state"] for row in backend.rows("tickets")]


# --- every command -------------------------------------------------------------------------------------------


def test_every_command_works_on_it(tickets: Backend, file: Path, tmp_path: Path) -> None:
    words = ("--map", file, "--url", tickets.url)
    rows = tmp_path / "rows.csv"
    rows.write_text("shop,nr,weight\nus,1,50\n")
    assert claimjobs("enqueue", rows, *words).out == "1\n"
    tickets.run("UPDATE tickets SET state = 9, tries = 5, trouble = 'no\nway' WHERE nr = 2")
    assert claimjobs("status", *words).out.startswith(
        "tickets: 3 unclaimed (0)\ntickets: 0 claimed (1)\ntickets: 0 done (2)\n"
    )
    assert claimjobs("list", "--state", "dead", *words).out == "eu,2\tdead\t5\t\tno way\n"
    assert claimjobs("show", "eu,2", "--json", *words).out.startswith(
        '{"claimjobs_state": "dead", "shop": "eu", "nr": 2,'
    )
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


def test_what_the_table_cannot_do_is_told_before_anything_is_started(tickets: Backend, tmp_path: Path) -> None:
    text = "table = 'tickets'\n[columns]\nstatus = 'state'\nowner_id = 'worker'\n[states]\nunclaimed = 0"
    words = (*mapped(tmp_path, text), "--on-done", "keep", "--drain", "--url", tickets.url)
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", *words)
    assert ended.code == exits.TABLE
    assert "means 'done', which keeping done jobs needs: name one, as in Columns(states={'done': ...})" in ended.err
    assert "or [states] of the --map file" in ended.err


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
    ended = claimjobs("list", "--state", "dead", *words)
    assert ended.code == exits.TABLE
    assert "no column 'status', which finding jobs that are dead needs: ALTER TABLE bare ADD COLUMN status" in ended.err


def test_a_column_that_is_not_there(tickets: Backend, tmp_path: Path) -> None:
    described = mapped(tmp_path, FILE.replace("[columns]", "[columns]\nsuspect = 'colour'"))
    ended = claimjobs("status", *described, "--url", tickets.url)
    assert ended.code == exits.TABLE
    assert "table 'tickets' has no column 'colour', which its column map names as suspect: check the map" in ended.err
    described = mapped(tmp_path, FILE.replace("[columns]", "[columns]\nsuspect = 'colour'\nowner_date = 'since'"))
    says = "and no column 'colour', named as suspect: check the map"
    assert says in claimjobs("status", *described, "--url", tickets.url).err


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
    ended = claimjobs("setup-tables", *words)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"tickets: was there\n{shared('was there')}",
    )
    assert "`claimjobs explain --table cli_mapped:Ticket --url URL` says what the table lacks" in ended.err


# --- what is said wrongly ------------------------------------------------------------------------------------


def refused(*words: str) -> Ended:
    ended = claimjobs("status", *words)
    assert ended.code == exits.USAGE
    return ended


def test_an_option_that_cannot_be_meant() -> None:
    assert "'hands' is not one of 'lease', 'transaction'" in " ".join(refused("--hold", "hands").err.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("table = x", "is no TOML: Invalid value (at line 1, column 9): correct it there"),
        ('colour = "x"', "'colour' is not known there: choose one of table, where, order_by, hold"),
        ('[columns]\ncolour = "x"', "[columns] 'colour' is not known there: choose one of key, status, owner_id"),
        ("[states]\nready = 0", "[states] 'ready' is not known there: choose one of unclaimed, claimed, done, dead"),
        ("[states]\ndone = [1]", "done = [1]: give a number, true, false or a text in quotes"),
        ("[columns]\nstatus = 3", "status = 3: give the name of one column in quotes"),
        ("[columns]\nkey = []", "key = []: give the name of a column in quotes, or a list of several"),
        ('columns = "x"', "'columns' is a section: write a line [columns]"),
        ('hold = "hands"', "hold='hands': give one of 'lease', 'transaction'"),
        ("side_car = 1", "side_car=1: give True, False, or the name of the second table"),
        ("order_by = [1]", "1 is no expression: give the name of a column, SQL"),
        ("where = 7", "7 is no expression: give SQL as text"),
    ],
)
def test_a_file_that_cannot_be_meant(anywhere: Backend, tmp_path: Path, text: str, told: str) -> None:
    anywhere.make()
    words = (f"{HANDLERS}:note_batch", *mapped(tmp_path, text), "--drain", "--url", anywhere.url)
    ended = claimjobs("start-processing", *words)
    assert ended.code == exits.INPUT
    assert told in ended.err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    ended = claimjobs("status", "--map", tmp_path / "nothing.toml")
    assert ended.code == exits.INPUT
    assert "nothing.toml cannot be read (No such file or directory): check the path" in ended.err


# --- in Python -----------------------------------------------------------------------------------------------


def test_what_a_map_says_goes_to_another_process(file: Path) -> None:
    plan = Plan("postgresql://nowhere", described_in(file))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.described["columns"] == Columns(
        key=["shop", "nr"],
        status="state",
        owner_id="worker",
        attempts="tries",
        run_at="not_before",
        last_error="trouble",
        priority=None,
        states={"unclaimed": 0, "claimed": 1, "done": 2, "dead": 9},
    )


def test_a_map_is_a_queue_in_the_library_too(tickets: Backend, file: Path) -> None:
    with Queue(tickets.url, **read_map(file)) as queue, queue.claim() as batch:
        assert [job.nr for job in batch] == [1, 2, 0]
    queue.engine.dispose()
    file.write_text("[columns]\ncolour = 'x'")
    with pytest.raises(BadMap, match="'colour' is not known there"):
        read_map(file)


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
    assert (
        ended.err == "claimjobs: Done jobs of table 'albums' are kept; their keys are marked as done in the side-car.\n"
    )
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
    words = ("--side-car", "--hold", "transaction", "--drain", "--url", anywhere.url)
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", *words)
    assert ended.code == exits.INPUT
    assert "with a side-car a lease holds each claim" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--jobs", "5"), "--jobs has no effect without --generators"),
        (("--grace", "5"), "--grace has no effect without --duration"),
        (("--bind", "0.0.0.0"), "--bind has no effect without --metrics-port or --health-port"),
        (("--generators", "1"), "--drain has no effect without --jobs, --duration or --generators 0"),
        (("--generators", "1", "--drain-retries"), "--drain has no effect without --jobs, --duration or --generators"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(anywhere: Backend, words: tuple[str, ...], told: str) -> None:
    anywhere.make()
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", "--drain", *words, "--url", anywhere.url)
    assert ended.code in (exits.USAGE, exits.INPUT)
    assert told in " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[columns]\nstatus = ''\n[states]\ndone = 7", "states are values of the status column: name that column"),
        ("side_car = true\n[states]\nunclaimed = 1", "states of the map would have no effect"),
    ],
)
def test_a_map_that_would_have_no_effect_is_refused(anywhere: Backend, tmp_path: Path, text: str, told: str) -> None:
    anywhere.make()
    words = (f"{HANDLERS}:note_batch", "--drain", *mapped(tmp_path, text), "--url", anywhere.url)
    ended = claimjobs("start-processing", *words)
    assert (ended.code, told in ended.err) == (exits.INPUT, True), ended.err


def test_limits_per_key_are_options_and_a_section_of_a_map(database: Backend, tmp_path: Path) -> None:
    table = job_table("mails", sa.MetaData(), sa.Column("customer", sa.Integer, nullable=False))
    database.make(table)
    words = ("--table", "mails", "--per-key", "customer", "--url", database.url)
    ended = claimjobs("setup-tables", "--add", "claim-index", "--yes", *words)
    assert (ended.code, "mails_keys: made" in ended.out) == (exits.OK, True), ended.err
    assert "CREATE TABLE mails_keys" in claimjobs("setup-tables", "--sql", *words).out
    database.insert(table, [{"customer": n % 2} for n in range(6)])
    file = tmp_path / "mails.toml"
    file.write_text('table = "mails"\n[per_key]\ncolumns = "customer"\nat_most = 1\n')
    assert claimjobs("explain", "--map", file, "--url", database.url).code == exits.OK
    queue = Queue(database.url, **read_map(file))
    with queue, queue.claim(9) as batch:
        assert len(batch) == 2
        batch.done()
    queue.engine.dispose()
    ended = claimjobs("explain", "--table", "mails", "--per-key-at-most", "1", "--url", database.url)
    assert (ended.code, "no effect without --per-key" in ended.err) == (exits.USAGE, True)
    for line in ("at_most = 0", 'rate = "many"', "limit = 3"):
        file.write_text(f'table = "mails"\n[per_key]\ncolumns = "customer"\n{line}\n')
        ended = claimjobs("explain", "--map", file, "--url", database.url)
        assert (ended.code, "per_key" in ended.err) == (exits.INPUT, True), ended


@pytest.mark.parametrize(("option", "told"), [("--column", "[columns]"), ("--state", "[states]")])
def test_an_option_that_was_dropped_names_what_replaces_it(option: str, told: str) -> None:
    assert f"there is no {option} any more: write the " in refused(option, "status=state").err
    assert told in refused(option, "status=state").err


def test_a_dropped_option_names_what_replaces_it() -> None:
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", "--lock", "advisory")
    assert ended.code == exits.USAGE
    assert "there is no --lock any more: choose advisory locks in Python" in ended.err

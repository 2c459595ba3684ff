"""Runs that could go on for ever, and come to nothing: they end, and say why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.queue.batch_loop import VAIN_BATCHES
from claimjobs.workers.process_slot import STRIKES
from tests.backends import Backend
from tests.cli.command import claimjobs
from tests.process.command import HANDLERS, noted, started, summary
from tests.process.dear import dear

pytestmark = pytest.mark.one_server("the processes are the same on each")

BARE = ("--map", str(Path(__file__).with_name("tasks.toml")), "--json")


def tasks(backend: Backend, *columns: sa.Column[Any]) -> None:
    """A table that holds no failure, with three jobs."""
    table = sa.Table("tasks", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), *columns)
    table.kwargs["mysql_engine"] = table.kwargs["mariadb_engine"] = "InnoDB"
    table.append_column(sa.Column("owner_id", sa.Integer))
    table.create(backend.engine)
    with backend.engine.begin() as connection:
        connection.execute(sa.insert(table), [{"id": n} for n in (1, 2, 3)])


@pytest.mark.parametrize("handler", ["fail_always", "fail_as_a_whole"])
@pytest.mark.parametrize("hold", ["lease", "transaction"])
def test_a_drain_that_comes_to_nothing_ends(anywhere: Backend, tmp_path: Path, handler: str, hold: str) -> None:
    tasks(anywhere)
    words = (f"{HANDLERS}:{handler}", *BARE, "--hold", hold, "--consumers", "2", "--batch-size", "1", "--drain")
    with started(anywhere, tmp_path, *words) as command:
        code, out, err = command.end()
    found = summary(out)
    assert (code, found["left"], found["replaced"]) == (exits.GAVE_UP, 3, 0)
    assert len(noted(anywhere, "begun")) >= VAIN_BATCHES
    for column in ("attempts", "run_at", "suspect", "status"):
        assert f"no column {column!r}, which storing a failure needs: " in found["gave_up"], found["gave_up"]
    assert "ALTER TABLE tasks ADD COLUMN attempts" in found["gave_up"]
    assert "ended by NothingDone: no job of 5 batches in a row was done" in err


@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
@dear
def test_a_handler_that_ends_its_transaction_itself_is_told(database: Backend, tmp_path: Path, how: str) -> None:
    tasks(database)
    words = (f"{HANDLERS}:{how}_it", *BARE, "--hold", "transaction", "--consumers", "1", "--drain")
    with started(database, tmp_path, *words) as command:
        code, out, err = command.end()
    found = summary(out)
    assert (code, found["left"], found["total"]["transients"]) == (exits.GAVE_UP, 3, {})
    told = "this batch has no open transaction any more, because its handler committed, rolled back or closed it"
    assert told in found["gave_up"]
    assert "leave commit to `with batch`" in found["gave_up"]
    assert told in err


@dear
def test_a_job_that_cannot_fail_leaves_the_others_to_be_done(anywhere: Backend, tmp_path: Path) -> None:
    """One consumer meets it first; the other does what it can, and then meets it, too."""
    tasks(anywhere, sa.Column("d", sa.String(3)))
    anywhere.run("UPDATE tasks SET d = 'bad' WHERE id = 3")
    words = (f"{HANDLERS}:note_job", *BARE, "--consumers", "1", "--batch-size", "2", "--drain")
    with started(anywhere, tmp_path, *words) as command:
        code, out, _ = command.end()
    found = summary(out)
    assert (code, found["done"], found["left"]) == (exits.GAVE_UP, 2, 1)
    assert "no job of 5 batches in a row was done" in found["gave_up"]


def test_a_settle_that_the_database_refuses_ends_the_run(database: Backend, tmp_path: Path) -> None:
    """A constraint of which only the database knows: no other process would do better."""
    database.queue().enqueue([{"d": "d", "e": "e"}] * 3)
    database.run("ALTER TABLE jobs ADD CONSTRAINT never CHECK (attempts < 1)")
    words = (f"{HANDLERS}:fail_always", "--consumers", "1", "--batch-size", "3")
    with started(database, tmp_path, *words) as command:
        code, out, err = command.end()
        command.wait_until_all_is_gone()
    assert code == exits.GAVE_UP, err
    assert "gave up: " in out
    assert "never" in out
    assert len(noted(database, "begun")) == 3 * STRIKES
    assert f"{STRIKES} processes in a row ended by the same error: the run ends" in err
    assert [row["status"] for row in database.rows()] == ["unclaimed"] * 3


@dear
def test_a_row_that_is_refused_where_no_failure_can_be_held_ends_the_run(anywhere: Backend, tmp_path: Path) -> None:
    """The transaction that holds the batch is rolled back each time, and no job behind that row is ever reached."""
    tasks(anywhere)
    anywhere.run("CREATE TABLE parts (task INTEGER, FOREIGN KEY (task) REFERENCES tasks (id))")
    anywhere.run("INSERT INTO parts VALUES (2)")
    with started(
        anywhere, tmp_path, f"{HANDLERS}:note_batch", *BARE, *["--hold", "transaction", "--consumers", "1"]
    ) as it:
        code, out, err = it.end()
    anywhere.run("DROP TABLE parts")
    found = summary(out)
    assert (code, found["left"], found["replaced"]) == (exits.GAVE_UP, 3, 0), err
    assert "rolled back as a whole (" in found["gave_up"]
    assert "parts" in found["gave_up"]


@pytest.mark.parametrize("table", ["jobs", "claimjobs_owners"])
@pytest.mark.parametrize("state", ["at work", "asleep"])
@dear
def test_a_table_that_is_dropped_meanwhile_ends_the_run_with_one_line(
    database: Backend, tmp_path: Path, table: str, state: str
) -> None:
    database.queue().enqueue([{"d": "d", "e": "e"}] * 40)
    words = (f"{HANDLERS}:wait_for_file", "--consumers", "2", "--batch-size", "10", "--json")
    with started(database, tmp_path, *words) as command:
        command.wait_until_begun()
        if state == "asleep":
            command.gate.touch()
            database.wait_for(lambda: not database.rows(), "nothing is left to be done")
        database.run(f"DROP TABLE {table}")
        command.gate.touch()
        if (table, state) == ("claimjobs_owners", "asleep"):  # it may be missed with the next job only
            database.insert("jobs", [{"d": "d", "e": "e"}])
        code, out, err = command.end()
        command.wait_until_all_is_gone()
    database.make()
    database.run("DELETE FROM claimjobs_owners")  # they could not leave
    assert code == exits.TABLE, err
    word = f"TableMissing: table '{table}' is not in this database: run `claimjobs setup-tables`"
    assert summary(out)["gave_up"].startswith(word)
    assert [line for line in err.splitlines() if "TableMissing" in line or "not in this database" in line] == [
        line for line in err.splitlines() if f"{word}, or check the name and the URL; the run ends" in line
    ], err
    assert err.count(word) == 1, err


@pytest.mark.parametrize("table", ["jobs", "claimjobs_owners"])
@dear
def test_a_table_that_is_missing_at_the_start_is_one_line(anywhere: Backend, table: str) -> None:
    anywhere.make()
    anywhere.run(f"DROP TABLE {table}")
    ended = claimjobs("start-processing", f"{HANDLERS}:note_batch", "--drain", "--url", anywhere.url)
    anywhere.make()
    assert (ended.code, ended.out, ended.err.count("\n")) == (exits.TABLE, "", 1)
    assert f"table '{table}' is not in this database: run `claimjobs setup-tables`" in ended.err


@dear
def test_the_last_line_of_progress_has_the_last_count(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.queue().enqueue([{"d": "d", "e": "e"}] * 50)
    words = (f"{HANDLERS}:note_batch", "--consumers", "1", "--drain", "--json")
    with started(anywhere, tmp_path, *words) as command:
        _, out, _ = command.end()
    last = json.loads(out.splitlines()[-2])
    assert (last["phase"], last["waiting"]) == ("ended", 0)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("rows", "--claims batches"), ("batches", "--claims rows"), ("batches", "--hold transaction")],
)
@dear
def test_consumers_of_the_wrong_kind_are_refused_before_any_starts(anywhere: Backend, theirs: Any, ours: str) -> None:
    queue = anywhere.queue(claims=theirs)
    queue.enqueue([{"d": "d", "e": "e"}])
    assert queue.owner_id
    words = (*ours.split(), "--consumers", "1", "--drain", "--json", "--url", anywhere.url)
    ended = claimjobs("start-processing", f"{HANDLERS}:note_job", *words)
    assert (ended.code, ended.out) == (exits.TABLE, "")
    assert f"1 owner with claims={theirs!r}" in ended.err
    assert [row["status"] for row in anywhere.rows()] == ["unclaimed"]

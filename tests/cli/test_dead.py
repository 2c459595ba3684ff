"""`claimjobs dead`, and the dead jobs of `claimjobs list`."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimjobs import Queue, job_table
from claimjobs.cli import exits
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs

pytestmark = pytest.mark.one_server("a command parses and prints; dead jobs are tested beside the Queue")

JOBS = article_table()
PAIRS = job_table(
    "pairs",
    sa.MetaData(),
    sa.Column("region", sa.String(20), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
)
MODELS = """
import sqlalchemy as sa
from claimjobs import job_table
uuids = job_table("uuids", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True))
blobs = job_table("blobs", sa.MetaData(), sa.Column("id", sa.LargeBinary(8), primary_key=True))
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "cli_dead_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    return importlib.import_module("cli_dead_models")


def dead_jobs(backend: Backend, *errors: str) -> Queue:
    """Jobs 1, 2, ... that died of these errors, and one more that waits."""
    queue = backend.queue(JOBS)
    queue.enqueue([{"id": n, "d": f"{n:04}", "e": ""} for n in range(1, len(errors) + 2)])
    if errors:
        with queue.claim(len(errors)) as batch:
            for job, error in zip(batch.jobs, errors, strict=True):
                batch.fail(job, error, retry=False)
    return queue


def dead(backend: Backend, *words: str, stdin: str = "") -> Ended:
    return claimjobs("dead", *words, "--url", backend.url, stdin=stdin.encode())


def listed(backend: Backend, *words: str) -> Ended:
    return claimjobs("list", "--state", "dead", *words, "--url", backend.url)


def timeless(out: str) -> str:
    """The lines of a list, with `at` in place of each time."""
    return re.sub(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "at", out)


def states(backend: Backend) -> dict[int, str]:
    return {row["id"]: row["status"] for row in backend.rows()}


# --- list --------------------------------------------------------------------------------------------------


def test_list_is_a_line_a_job_with_its_key_first(database: Backend) -> None:
    dead_jobs(database, "no such street", "Timeout: over\n  there", "no such street")
    ended = listed(database)
    assert (ended.code, ended.err) == (exits.OK, "")
    lines = ("1\tdead\t1\tat\tno such street", "2\tdead\t1\tat\tTimeout: over there", "3\tdead\t1\tat\tno such street")
    assert timeless(ended.out).splitlines() == list(lines)


def test_list_takes_a_predicate_and_a_limit(database: Backend) -> None:
    dead_jobs(database, "a", "Timeout: b", "Timeout: c")
    words = ("--where", "last_error like 'Timeout%'", "--limit", "1")
    ended = listed(database, *words)
    assert timeless(ended.out) == "2\tdead\t1\tat\tTimeout: b\n"
    assert ended.err == "claimjobs: these are 1 of 2: --limit N lists more\n"


def test_a_list_without_dead_jobs_is_empty(anywhere: Backend) -> None:
    dead_jobs(anywhere)
    none = "claimjobs: jobs has no dead job\n"
    assert listed(anywhere) == Ended(exits.OK, "", none)
    assert listed(anywhere, "--json") == Ended(exits.OK, "", none)
    assert listed(anywhere, "--where", "id > 5").err == "claimjobs: jobs has no such dead job\n"


def test_json_has_every_column(database: Backend) -> None:
    dead_jobs(database, "no such street", "Müller")
    ended = listed(database, "--json")
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert [(job["id"], job["d"], job["status"], job["last_error"]) for job in found] == [
        (1, "0001", "dead", "no such street"),
        (2, "0002", "dead", "Müller"),
    ]
    assert list(found[0]) == ["claimjobs_state", *JOBS.columns.keys()]
    assert found[0]["run_at"].endswith("+00:00")


def test_on_a_terminal_a_line_is_no_longer_than_it_is_wide(anywhere: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.cli.jobs.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    dead_jobs(anywhere, "x" * 500)
    header, line = listed(anywhere).out.splitlines()
    assert header.split() == ["key", "state", "failures", "time", "(UTC)", "last", "error"]
    assert re.fullmatch(r"1       dead    1       20[\d-]+ [\d:]+     x{12}", line), line


def test_a_predicate_that_cannot_be_read(anywhere: Backend) -> None:
    dead_jobs(anywhere, "a")
    for words in (("list",), ("dead", "retry"), ("dead", "drop", "--yes")):
        ended = claimjobs(*words, "--where", "colour = 'red'", "--url", anywhere.url)
        assert (ended.code, ended.out) == (exits.INPUT, "")
        assert "colour" in ended.err
    assert states(anywhere) == {1: "dead", 2: "unclaimed"}


# --- retry -------------------------------------------------------------------------------------------------


def test_retry_by_ids_prints_how_many(database: Backend) -> None:
    dead_jobs(database, "a", "b", "c")
    assert dead(database, "retry", "1", "3", "1") == Ended(exits.OK, "2\n", "")
    assert states(database) == {1: "unclaimed", 2: "dead", 3: "unclaimed", 4: "unclaimed"}
    assert [row["attempts"] for row in database.rows()] == [0, 1, 0, 0]


def test_retry_by_predicate_and_all(database: Backend) -> None:
    dead_jobs(database, *["Timeout: x"] * 5, "other", "other")
    by_predicate = ("retry", "--where", "last_error like 'Timeout%'")
    assert dead(database, *by_predicate, "--json").out == '{"retried": 5}\n'
    assert dead(database, "retry", "--all").out == "2\n"
    assert dead(database, "retry", "--all") == Ended(exits.OK, "0\n", "")
    assert set(states(database).values()) == {"unclaimed"}


def test_ids_that_are_not_dead_are_told_and_the_others_retried(anywhere: Backend) -> None:
    dead_jobs(anywhere, "a", "b")
    ended = dead(anywhere, "retry", "1", "3", "99")
    assert (ended.code, ended.out) == (exits.INPUT, "1\n")
    assert "claimjobs: no dead job: " in ended.err
    assert "claimjobs list --state dead" in ended.err
    assert states(anywhere) == {1: "unclaimed", 2: "dead", 3: "unclaimed"}


@pytest.mark.parametrize("way", ["retry", "drop"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "either IDs, or --where SQL, or --all"),
        (("1", "--all"), "either IDs, or --where SQL, or --all"),
        (("1", "--where", "d = ''"), "either IDs, or --where SQL, or --all"),
        (("--where", "d = ''", "--all"), "either IDs, or --where SQL, or --all"),
    ],
)
def test_it_must_be_said_which_and_in_one_way(way: str, words: tuple[str, ...], said: str) -> None:
    ended = claimjobs("dead", way, *words, "--url", "postgresql://nowhere.invalid/x")
    assert (ended.code, ended.out) == (exits.USAGE, "")
    assert said in ended.err


@pytest.mark.parametrize("way", ["retry", "drop"])
def test_a_wrong_choice_starts_no_server(way: str, tmp_path: Path) -> None:
    ended = claimjobs("dead", way, env={"CLAIMJOBS_DATA": str(tmp_path / "data")})
    assert (ended.code, (tmp_path / "data").exists()) == (exits.USAGE, False), ended.err


# --- drop --------------------------------------------------------------------------------------------------


def test_drop_with_yes(database: Backend) -> None:
    dead_jobs(database, "a", "b", "c", "d")
    assert dead(database, "drop", "2", "--yes") == Ended(exits.OK, "1\n", "")
    assert dead(database, "drop", "--where", "d > '0002'", "--yes", "--json").out == '{"dropped": 2}\n'
    assert dead(database, "drop", "--all", "--yes").out == "1\n"
    assert states(database) == {5: "unclaimed"}


def test_without_a_terminal_drop_needs_yes_and_says_how_many(anywhere: Backend) -> None:
    dead_jobs(anywhere, *["a"] * 3)
    for words, count in [
        (("--all",), 3),
        (("1", "2", "4"), 2),
        (("--where", "d = '0003'"), 1),
    ]:
        ended = dead(anywhere, "drop", *words)
        assert (ended.code, ended.out) == (exits.USAGE, "")
        assert f"would drop {count} dead job{'s' if count > 1 else ''} of jobs" in ended.err
        assert "give --yes" in ended.err
    assert len(states(anywhere)) == 4


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("\n", 4), ("n\n", 4)])
def test_on_a_terminal_it_asks(anywhere: Backend, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    monkeypatch.setattr("claimjobs.cli.console.asks", lambda: True)
    dead_jobs(anywhere, *["a"] * 3)
    ended = dead(anywhere, "drop", "--all", stdin=answer)
    assert ended.code == (exits.OK if left == 1 else exits.FAILURE)
    assert "Drop 3 dead jobs of jobs in postgresql" in ended.err
    assert str(anywhere.engine.url.password) not in ended.err.replace(str(anywhere.engine.url.username), "")
    assert len(states(anywhere)) == left
    assert ended.out == ("3\n" if left == 1 else "")


# --- any key -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x", "", "1.5", "1,2"])
def test_what_can_be_no_key_is_told(anywhere: Backend, text: str) -> None:
    dead_jobs(anywhere, "a")
    for way in (("retry",), ("drop", "--yes")):
        ended = dead(anywhere, *way, text)
        assert (ended.code, ended.out) == (exits.USAGE, "")
        assert f"{text!r} is no key of jobs (id): {text!r} is no whole number" in ended.err


def test_keys_of_several_columns_are_written_as_csv(database: Backend) -> None:
    database.make(PAIRS)
    keys = [("eu", 1), ("eu", 2), ('a "b", c', 3)]
    database.insert(PAIRS, [{"region": region, "number": number, "status": "dead"} for region, number in keys])
    ended = listed(database, "--table", "pairs")
    texts = [line.split("\t")[0] for line in ended.out.splitlines()]
    assert sorted(texts) == ['"a ""b"", c",3', "eu,1", "eu,2"]
    assert dead(database, "retry", "--table", "pairs", *texts[:2]).out == "2\n"
    assert dead(database, "drop", "--yes", "--table", "pairs", texts[2]).out == "1\n"
    for text in ("eu", "eu,1,2", "", "eu\r,1"):
        ended = dead(database, "retry", "--table", "pairs", text)
        assert ended.code == exits.USAGE
        assert f"{text!r} is no key of pairs (region, number): write its parts as REGION,NUMBER" in ended.err


def test_what_list_prints_the_others_read(anywhere: Backend, models: Any) -> None:
    tables: list[tuple[Any, list[Any]]] = [
        (models.uuids, [uuid.UUID(int=1), uuid.UUID(int=2)]),
        (models.blobs, [b"\0\xff", b"abc"]),
    ]
    for table, keys in tables:
        anywhere.make(table)
        anywhere.insert(table, [{"id": key, "status": "dead"} for key in keys])
        name = f"cli_dead_models:{table.name}"
        texts = [line.split("\t")[0] for line in listed(anywhere, "--table", name).out.splitlines()]
        assert len(texts) == 2
        assert claimjobs("show", "--json", "--table", name, texts[0], "--url", anywhere.url).code == exits.OK
        assert dead(anywhere, "retry", "--table", name, *texts) == Ended(exits.OK, "2\n", "")


def test_an_id_in_another_spelling_is_that_job(database: Backend) -> None:
    """A CHAR of Postgres is filled with blanks; most collations of MySQL take `AB` for `ab`."""
    database.make()
    database.run("CREATE TABLE codes (code CHAR(4) PRIMARY KEY, status VARCHAR(10), owner_id INT, attempts INT)")
    database.run("INSERT INTO codes VALUES ('ab', 'unclaimed', NULL, 0)")
    typed = ("AB" if database.has("table collation") else "ab", "--table", "codes", "--url", database.url)
    assert claimjobs("cancel", *typed) == Ended(exits.OK, "1\n", "")
    assert claimjobs("show", *typed).err == ""
    assert claimjobs("dead", "retry", *typed) == Ended(exits.OK, "1\n", "")
    claimjobs("cancel", *typed)
    ended = claimjobs("dead", "drop", *typed)
    assert (ended.code, ended.out) == (exits.USAGE, ""), "it asks first"
    assert "would drop 1 dead job" in ended.err
    assert claimjobs("dead", "drop", *typed, "--yes") == Ended(exits.OK, "1\n", "")


def test_a_group_without_a_command_shows_its_help() -> None:
    ended = claimjobs("dead")
    assert ended.code == exits.USAGE
    assert all(f"  {name} " in ended.said for name in ("retry", "drop"))


def test_where_there_is_nothing_to_drop_nothing_is_asked(anywhere: Backend) -> None:
    anywhere.make()
    assert dead(anywhere, "drop", "--all") == Ended(exits.OK, "0\n", "")

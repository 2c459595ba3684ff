"""`claimjobs list`, `show` and `cancel`."""

from __future__ import annotations

import json
import re

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs
from tests.cli.hostile.test_streams import shell
from tests.cli.test_dead import dead_jobs, timeless
from tests.docs.markdown import COMMANDS

pytestmark = pytest.mark.one_server("a command parses and prints; the jobs are tested beside the Queue")


def run(backend: Backend, *words: str) -> Ended:
    return claimjobs(*words, "--url", backend.url)


def test_a_line_has_key_state_attempts_time_and_error(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no\nway", "b")
    listed = "1\tdead\t1\tat\tno way\n2\tdead\t1\tat\tb\n3\tunclaimed\t0\tat\t\n"
    assert timeless(run(anywhere, "list").out) == listed
    chosen = run(anywhere, "list", "--state", "unclaimed", "--where", "d = '0003'").out
    assert timeless(chosen) == "3\tunclaimed\t0\tat\t\n"
    assert run(anywhere, "list", "--limit", "2").err == "claimjobs: these are 2 of 3: --limit N lists more\n"
    assert run(anywhere, "list", "--limit", "3").err == ""
    found = [json.loads(line) for line in run(anywhere, "list", "--json").out.splitlines()]
    assert [(job["claimjobs_state"], job["d"]) for job in found[1:]] == [("dead", "0002"), ("unclaimed", "0003")]
    assert run(anywhere, "list", "--state", "done").err == "claimjobs: jobs has no done job\n"


def test_show_is_a_block_a_job(database: Backend) -> None:
    dead_jobs(database, "Traceback:\n  line 1\nValueError", "b")
    ended = run(database, "show", "3", "1")
    assert (ended.code, ended.err) == (exits.OK, "")
    first, second = ended.out.split("\n\n")
    assert first.splitlines()[:4] == [
        "claimjobs_state  dead",
        "id               1",
        "d                0001",
        "e",
    ]
    assert "last_error       Traceback:\n                   line 1\n                 ValueError\n" in first
    assert second.startswith("claimjobs_state  unclaimed\nid               3\n")
    ended = run(database, "show", "--json", "1", "99")
    assert (json.loads(ended.out)["id"], ended.code) == (1, exits.INPUT)
    assert ended.err == "claimjobs: no row of jobs: 99\n"


def test_a_column_with_the_name_of_the_state_hides_it_not(anywhere: Backend) -> None:
    anywhere.run("CREATE TABLE odd (id INT PRIMARY KEY, claimjobs_state TEXT, status TEXT, owner_id INT)")
    anywhere.run("INSERT INTO odd VALUES (1, 'mine', 'unclaimed', NULL)")
    anywhere.make()
    [line] = run(anywhere, "list", "--json", "--table", "odd").out.splitlines()
    found = json.loads(line)
    assert found["claimjobs_state"] == "unclaimed"


def test_cancel_says_what_it_did_not_do(anywhere: Backend) -> None:
    dead_jobs(anywhere, "a")
    ended = run(anywhere, "cancel", "2", "--reason", "enough")
    assert ended == Ended(exits.OK, "1\n", "")
    ended = run(anywhere, "cancel", "1", "99", "--json")
    assert (ended.code, json.loads(ended.out)) == (exits.INPUT, {"cancelled": 0})
    assert ended.err.splitlines() == [
        "claimjobs: 1 was not cancelled: it is dead",
        "claimjobs: 99 was not cancelled: no row of jobs has this key",
    ]
    listed = timeless(run(anywhere, "list", "--state", "dead").out)
    assert listed == "1\tdead\t1\tat\ta\n2\tdead\t0\tat\tcancelled: enough\n"


OWN = "status text DEFAULT 'unclaimed', owner_id int, owner_date timestamptz, last_error text"


def test_json_has_what_is_no_number_as_a_text(anywhere: Backend) -> None:
    anywhere.make()
    anywhere.run(f"CREATE TABLE floats (id int PRIMARY KEY, x float, parts float[], {OWN})")
    anywhere.run("INSERT INTO floats (id, x, parts) VALUES (1, 'NaN', '{1.5,-Infinity}')")
    for words in (("list",), ("show", "1")):
        found = json.loads(run(anywhere, *words, "--json", "--table", "floats").out, parse_constant=pytest.fail)
        assert (found["x"], found["parts"]) == ("nan", [1.5, "-inf"])


def test_the_documented_pipes_take_keys_that_look_like_options(anywhere: Backend) -> None:
    anywhere.make()
    anywhere.run("DROP TABLE jobs")
    anywhere.run(f"CREATE TABLE jobs (id text PRIMARY KEY, {OWN})")
    anywhere.run("INSERT INTO jobs (id) VALUES ('--all'), ('-5'), ('--json')")
    lines = re.findall(r"^claimjobs .*\| xargs .*$", COMMANDS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        ended = shell(line, anywhere)
        assert ended.returncode == exits.OK, ended.stderr
    assert {row["status"] for row in anywhere.rows("jobs")} == {"dead"}

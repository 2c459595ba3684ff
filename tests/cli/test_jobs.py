"""`claimjobs list`, `show` and `cancel`."""

from __future__ import annotations

import json

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs
from tests.cli.test_dead import dead_jobs

pytestmark = pytest.mark.one_server("a command parses and prints; the jobs are tested beside the Queue")


def run(backend: Backend, *words: str) -> Ended:
    return claimjobs(*words, "--url", backend.url)


def test_a_line_has_key_state_attempts_and_error(anywhere: Backend) -> None:
    dead_jobs(anywhere, "no\nway", "b")
    assert run(anywhere, "list").out == "1\tdead\t1\tno way\n2\tdead\t1\tb\n3\tunclaimed\t0\t\n"
    assert run(anywhere, "list", "--state", "unclaimed", "--where", "d = '0003'").out == "3\tunclaimed\t0\t\n"
    more = "claimjobs: these are the first 2: --limit 20 lists more\n"
    assert run(anywhere, "list", "--limit", "2").err == more
    found = [json.loads(line) for line in run(anywhere, "list", "--json").out.splitlines()]
    assert [(job["claimjobs_state"], job["d"]) for job in found[1:]] == [("dead", "0002"), ("unclaimed", "0003")]
    assert run(anywhere, "list", "--state", "done").err == "claimjobs: no such job in jobs\n"


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
    assert run(anywhere, "list", "--state", "dead").out == "1\tdead\t1\ta\n2\tdead\t0\tcancelled: enough\n"

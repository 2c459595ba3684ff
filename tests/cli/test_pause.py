"""`claimjobs pause` and `resume`, and `status` in between."""

from __future__ import annotations

import json

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs


def test_pause_and_resume_are_told_by_status(database: Backend) -> None:
    database.queue().enqueue([{"d": "d", "e": "e"}])
    paused = claimjobs("pause", "--reason", "the mail server is down", "--url", database.url)
    assert paused.code == exits.OK
    assert "jobs is paused: `claimjobs resume --url URL` ends that" in paused.out
    status = claimjobs("status", "--url", database.url).out
    assert "jobs: paused for " in status
    assert " (the mail server is down): `claimjobs resume --url URL` ends it\n" in status
    found = json.loads(claimjobs("status", "--json", "--url", database.url).out)
    assert (found["pause_reason"], found["paused_seconds"] >= 0) == ("the mail server is down", True)
    for words in ("jobs is not paused any more", "jobs was not paused"):
        resumed = claimjobs("resume", "--url", database.url)
        assert (resumed.code, words in resumed.out) == (exits.OK, True)
    found = json.loads(claimjobs("status", "--json", "--url", database.url).out)
    assert (found["paused_seconds"], found["pause_reason"]) == (None, None)


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_table_that_does_not_exist_is_named(anywhere: Backend, command: str) -> None:
    anywhere.make()
    ended = claimjobs(command, "--table", "nowhere", "--url", anywhere.url)
    assert ended.code == exits.TABLE
    assert "nowhere" in ended.err

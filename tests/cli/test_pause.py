"""`claimjobs pause` and `resume`, and `status` in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs, mapped


def test_pause_and_resume_are_told_by_status(database: Backend) -> None:
    database.queue().enqueue([{"d": "d", "e": "e"}])
    paused = claimjobs("pause", "--reason", "the mail server is down", "--url", database.url)
    assert paused.code == exits.OK
    assert "jobs is paused: `claimjobs resume` ends that" in paused.out
    status = claimjobs("status", "--url", database.url).out
    assert "jobs: paused for " in status
    assert " (the mail server is down): `claimjobs resume` ends it\n" in status
    found = json.loads(claimjobs("status", "--json", "--url", database.url).out)
    assert (found["pause_reason"], found["paused_seconds"] >= 0) == ("the mail server is down", True)
    for words in ("jobs is not paused any more", "jobs was not paused"):
        resumed = claimjobs("resume", "--url", database.url)
        assert (resumed.code, words in resumed.out) == (exits.OK, True)
    found = json.loads(claimjobs("status", "--json", "--url", database.url).out)
    assert (found["paused_seconds"], found["pause_reason"]) == (None, None)


def test_the_next_step_can_be_pasted(anywhere: Backend, tmp_path: Path) -> None:
    """It has the options that describe the queue; without them it would work on another table."""
    anywhere.make("mails")
    anywhere.run("ALTER TABLE mails RENAME COLUMN owner_id TO worker")
    described = ("--table", "mails", *mapped(tmp_path, "[columns]\nowner_id = 'worker'"))
    words = (*described, "--url", anywhere.url)
    resume = f"`claimjobs resume {' '.join(described)}` ends "
    assert f"mails is paused: {resume}that" in claimjobs("pause", *words).out
    assert f": {resume}it\n" in claimjobs("status", *words).out
    anywhere.run("DROP TABLE claimjobs_owners")
    missing = claimjobs("status", *words).err
    anywhere.make()
    assert f"run `claimjobs setup-tables {' '.join(described)}`" in missing


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_table_that_does_not_exist_is_named(anywhere: Backend, command: str) -> None:
    anywhere.make()
    ended = claimjobs(command, "--table", "nowhere", "--url", anywhere.url)
    assert ended.code == exits.TABLE
    assert "nowhere" in ended.err

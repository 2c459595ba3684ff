"""`claimjobs status`."""

from __future__ import annotations

import json
import os
import socket

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs


def test_json_is_one_object_with_the_documented_keys(database: Backend) -> None:
    queue = database.queue(on_done="keep")
    queue.enqueue([{"d": str(n), "e": ""} for n in range(6)])
    with queue.claim(3) as batch:
        batch.fail(batch[0], "no", retry=False)
        batch.done()
    batch = queue.claim(2)
    ended = claimjobs("status", "--json", "--url", database.url)
    found = json.loads(ended.out)
    assert (ended.code, ended.err, ended.out.count("\n")) == (exits.OK, "", 1)
    [owner] = found.pop("owners")
    assert found.pop("oldest_due_seconds") >= 0
    assert found == {"table": "jobs", "unclaimed": 1, "claimed": 2, "done": 2, "dead": 1}
    assert 0 <= owner.pop("age_seconds") < 60
    assert owner == {"id": queue.owner_id, "host": socket.gethostname(), "pid": os.getpid(), "jobs": 2}
    batch.settle()


def test_lines_where_there_is_no_terminal(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.enqueue({"d": "a", "e": "b"})
    anywhere.run("UPDATE jobs SET run_at = now() - interval '2 minutes'")
    owner = queue.owner_id
    lines = claimjobs("status", "--url", anywhere.url).out.splitlines()
    assert lines[:4] == ["jobs: 1 unclaimed", "jobs: 0 claimed", "jobs: 0 done", "jobs: 0 dead"]
    assert lines[4].startswith("jobs: the oldest job has been due for 2 min")
    assert lines[5].startswith(f"jobs: owner {owner} {socket.gethostname()}:{os.getpid()} since ")


def test_a_table_on_a_terminal(anywhere: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimjobs.cli.status.on_terminal", lambda: True)
    queue = anywhere.queue()
    queue.enqueue([{"d": str(n), "e": ""} for n in range(1200)])
    owner = queue.owner_id
    shown = claimjobs("status", "--url", anywhere.url).out
    assert "1,200" in shown
    assert str(owner) in shown
    assert "the oldest job has been due for" in shown


def test_of_another_table(anywhere: Backend) -> None:
    anywhere.make("mails")
    ended = claimjobs("status", "--table", "mails", "--url", anywhere.url)
    assert "mails: no job is due" in ended.out


def test_without_tables_the_next_step_is_told(anywhere: Backend) -> None:
    ended = claimjobs("status", "--url", anywhere.url)
    assert (ended.code, ended.out) == (exits.TABLE, "")
    assert "claimjobs setup-tables" in ended.err

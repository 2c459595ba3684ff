"""The commands beside a table that must not be altered."""

from __future__ import annotations

import json

import pytest

from claimjobs import Queue
from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs

BESIDE = ("--table", "frozen", "--side-car")


@pytest.fixture
def frozen(database: Backend) -> Backend:
    """A table with three rows and a side-car: jobs 1 and 2 are dead."""
    database.run("CREATE TABLE frozen (id INT PRIMARY KEY)")
    database.run("INSERT INTO frozen VALUES (1), (2), (3)")
    assert on(database, "setup-tables", *BESIDE).code == exits.OK
    with Queue(database.engine, "frozen", side_car=True) as queue, queue.claim(2) as batch:
        for job in batch.jobs:
            batch.fail(job, "broken", retry=False)
    return database


def on(backend: Backend, *words: str) -> Ended:
    return claimjobs(*words, "--url", backend.url)


def test_a_drop_says_that_the_rows_stay(frozen: Backend) -> None:
    ended = on(frozen, "dead", "drop", "--where", "id = 1", "--yes", "--json", *BESIDE)
    assert (ended.code, json.loads(ended.out)) == (exits.OK, {"dropped": 1})
    assert ended.err == "claimjobs: the rows of frozen stay; frozen_claims says that they are done\n"
    assert [row["id"] for row in frozen.rows("frozen")] == [1, 2, 3]
    found = json.loads(on(frozen, "status", "--json", *BESIDE).out)
    assert {state: found[state] for state in ("unclaimed", "done", "dead")} == {"unclaimed": 1, "done": 1, "dead": 1}


def test_a_purge_is_refused_with_the_next_step(frozen: Backend) -> None:
    ended = on(frozen, "purge", "--older-than", "0s", "--state", "dead", *BESIDE)
    assert (ended.code, ended.out) == (exits.TABLE, "")
    assert "delete the row of 'frozen' first, and then its entry in 'frozen_claims'" in ended.err


def test_a_next_step_is_told(frozen: Backend) -> None:
    assert "no run_at in the rows says for how long" in on(frozen, "status", *BESIDE).out
    ended = on(frozen, "dead", "retry", "3", *BESIDE)
    assert "`claimjobs list --state dead --table frozen --side-car --url URL` shows which are" in ended.err

"""`claimjobs purge`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click
import pytest

from claimjobs.cli import exits
from claimjobs.cli.options import Duration
from claimjobs.table.definitions import article_table
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs

JOBS = article_table()


def purge(backend: Backend, *words: str) -> Ended:
    return claimjobs("purge", *words, "--url", backend.url)


def left(backend: Backend) -> list[str]:
    return [row["d"] for row in backend.rows()]


@pytest.fixture
def old(database: Backend) -> Backend:
    """Jobs that have been done, or dead, for 1, 3 and 10 days, and one that waits."""
    queue = database.queue(JOBS)
    now = queue.now()
    old = [(status, days) for status in ("done", "dead") for days in (1, 3, 10)]
    database.insert(
        JOBS,
        [
            {"d": f"{status} {days}", "e": "", "status": status, "owner_date": now - timedelta(days=days)}
            for status, days in old
        ],
    )
    queue.enqueue({"d": "waits", "e": ""})
    return database


def test_jobs_that_were_done_long_ago_go(old: Backend) -> None:
    ended = purge(old, "--older-than", "2d")
    assert (ended.code, ended.out, ended.err) == (exits.OK, "2\n", "")
    assert left(old) == ["done 1", "dead 1", "dead 3", "dead 10", "waits"]


def test_dead_ones_go_if_they_are_meant(old: Backend) -> None:
    assert purge(old, "--older-than", "1w", "--state", "dead").out == "1\n"
    assert left(old) == ["done 1", "done 3", "done 10", "dead 1", "dead 3", "waits"]


def test_a_dry_run_counts(old: Backend) -> None:
    assert purge(old, "--older-than", "60h", "--dry-run").out == "2\n"
    assert json.loads(purge(old, "--older-than", "0s", "--dry-run", "--json").out) == {"would_purge": 3}
    assert len(left(old)) == 7


def test_it_can_be_narrowed_and_told_as_json(old: Backend) -> None:
    ended = purge(old, "--older-than", "1h", "--where", "d like '%1' or d like '%0'", "--json")
    assert json.loads(ended.out) == {"purged": 2}
    assert left(old)[0] == "done 3"
    ended = purge(old, "--older-than", "1h", "--where", "colour = 1")
    assert ended.code == exits.INPUT
    assert "colour" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--older-than", "7"),
        ("--older-than", "-1d"),
        ("--older-than", "1y"),
        ("--older-than", "99999999999d"),
        ("--older-than", "1d", "--state", "unclaimed"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...]) -> None:
    assert claimjobs("purge", *words, "--url", "postgresql://nowhere.invalid/x").code == exits.USAGE


def test_a_table_that_does_not_say_since_when(anywhere: Backend) -> None:
    anywhere.make()
    anywhere.run("ALTER TABLE jobs DROP COLUMN owner_date")
    ended = purge(anywhere, "--older-than", "1d")
    assert ended.code == exits.TABLE
    assert "no column 'owner_date'" in ended.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5m", 90), ("12h", 43_200), ("7d", 604_800), (" 2w ", 1_209_600), ("0s", 0)]
)
def test_a_span_of_time_has_a_unit(text: str, seconds: float) -> None:
    read: Any = Duration().convert(text, None, None)
    assert read == timedelta(seconds=seconds)
    with pytest.raises(click.BadParameter, match="such as 90s, 15m, 12h, 7d or 2w"):
        Duration().convert(text.strip()[:-1], None, None)


def test_a_table_known_by_its_name(anywhere: Backend) -> None:
    columns = "a int, b int, status text, owner_id int, owner_date timestamptz, PRIMARY KEY (a, b)"
    anywhere.run(f"CREATE TABLE pairs ({columns})")
    anywhere.run("INSERT INTO pairs SELECT n, -n, 'done', NULL, now() - interval '3 days' FROM generate_series(1, 5) n")
    anywhere.make()
    assert purge(anywhere, "--older-than", "1d", "--table", "pairs").out == "5\n"

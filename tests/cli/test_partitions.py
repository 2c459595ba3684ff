"""`setup-tables --partition-by-time`, and `purge` of such a table."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.dialects.partitions import coming
from claimjobs.table.definitions import article_table
from claimjobs.table.time_partitions import first_partitions, run
from tests.backends import Backend
from tests.cli.accounts import accounts
from tests.cli.command import claimjobs, shared
from tests.conformance.test_time_partitions import partitions

JOBS = article_table(partition_by_time="week")
PAST = timedelta(weeks=10)


@pytest.fixture
def past(database: Backend) -> Backend:
    """A table whose partitions are all over, with a done job in the first of them."""
    then = datetime.now(UTC) - PAST
    with database.engine.begin() as connection:
        JOBS.create(connection)
        connection.execute(sa.schema.SetTableComment(JOBS))
        for statement in first_partitions(database.dialect, JOBS, then):
            run(connection, statement)
    database.insert(JOBS, [{"d": "old", "e": "", "status": "done", "owner_date": then, "created": then}])
    return database


def test_a_table_is_made_with_partitions_and_later_gets_more(past: Backend) -> None:
    weeks = [period.name for period in coming("week", datetime.now(UTC))]
    ended = claimjobs("setup-tables", "--partition-by-time", "week", "--url", past.url)
    lines = "".join(f"{name}: partition of coming time, made\n" for name in weeks)
    assert (ended.code, ended.out) == (exits.OK, f"{shared('made')}jobs: was there\n{lines}")
    again = claimjobs("setup-tables", "--url", past.url)
    assert (again.code, again.out) == (exits.OK, f"jobs: was there\n{shared('was there')}")


def test_old_partitions_are_dropped_and_explain_says_if_some_are_missing(past: Backend) -> None:
    claimjobs("setup-tables", "--url", past.url)
    parts = past.dialect.partitions
    first, *rest = [parts.shown(JOBS, name) for name in sorted({*partitions(past)} - {parts.rest})][:5]
    waiting = sorted({*partitions(past)} - {parts.rest})[2]
    stays = parts.shown(JOBS, waiting)
    at = datetime.strptime(f"{waiting} +0000", "p%Y%m%d %z") + timedelta(hours=1)
    past.insert(JOBS, [{"d": "waits", "e": "", "created": at}])
    words = ("purge", "--older-than", "1w", "--url", past.url)
    dropped = ", ".join([first, *(name for name in rest if name != stays)])
    told = f"claimjobs: partition {stays} stays: 1 job is not done\n"
    ended = claimjobs(*words, "--dry-run")
    assert (ended.code, ended.out) == (exits.OK, "1\n")
    assert ended.err == f"{told}claimjobs: would drop 4 partitions of jobs: {dropped}\n"
    ended = claimjobs(*words)
    assert (ended.code, ended.out) == (exits.OK, "1\n")
    assert ended.err == f"{told}claimjobs: dropped 4 partitions of jobs: {dropped}\n"
    past.run("UPDATE jobs SET status = 'done', owner_date = now() WHERE status = 'unclaimed'")
    assert claimjobs(*words).err == f"claimjobs: partition {stays} stays: 1 job is not done for long enough\n"
    past.run(parts.removal(JOBS, waiting))
    assert len(partitions(past)) == 6
    assert "there is a partition for each coming week" in claimjobs("explain", "--url", past.url).said
    for name in sorted({*partitions(past)} - {parts.rest})[1:]:
        past.run(parts.removal(JOBS, name))
    assert "there is no partition for the time from" in claimjobs("explain", "--url", past.url).said


def test_explain_and_setup_name_a_time_whose_jobs_are_in_the_partition_for_others(past: Backend) -> None:
    claimjobs("setup-tables", "--url", past.url)
    parts = past.dialect.partitions
    *_, before, last = coming("week", datetime.now(UTC))
    for name in (before.name, last.name):
        past.run(parts.removal(JOBS, name))
    at = datetime.combine(before.first, time(hour=1), UTC)
    past.insert(JOBS, [{"d": "far", "e": "", "created": at}])
    ended = claimjobs("setup-tables", "--url", past.url)
    assert ended.code == exits.OK
    assert f"{last.name}: partition of coming time, made" in ended.out
    if parts.moves_rows:
        assert "there is a partition for each coming week" in claimjobs("explain", "--url", past.url).said
        return
    says = f"there is no partition jobs_{before.name}, because rows of that time are in the partition jobs_default"
    assert says in ended.err
    explained = claimjobs("explain", "--url", past.url).said
    assert " ".join(says.split()) in " ".join(explained.split())
    assert "there is a partition for each" not in explained


def test_who_may_not_alter_the_table_is_told_and_deletes_jobs(past: Backend) -> None:
    claimjobs("setup-tables", "--url", past.url)
    names = partitions(past)
    first = min({*names} - {past.dialect.partitions.rest})
    with accounts(past) as given:
        counted = claimjobs("purge", "--older-than", "1w", "--dry-run", "--url", given.url("operator"))
        ended = claimjobs("purge", "--older-than", "1w", "--url", given.url("operator"))
    assert (counted.code, counted.out) == (exits.OK, "1\n")
    assert (ended.code, ended.out) == (exits.OK, "1\n")
    parts = past.dialect.partitions
    assert f"partition {parts.shown(JOBS, first)!r} of table 'jobs' was not dropped" in ended.err
    assert f"to drop partitions an account needs {parts.needs}" in ended.err
    assert partitions(past) == names


def test_an_operator_makes_and_drops_partitions_with_the_optional_rights_and_with_no_fewer(past: Backend) -> None:
    claimjobs("setup-tables", "--url", past.url)
    parts = past.dialect.partitions
    past.run(parts.removal(JOBS, max({*partitions(past)} - {parts.rest})))
    with accounts(past) as given:
        assert f"-- The account needs to be, or to have: {parts.needs}.\n" in given.printed
        words = ("purge", "--older-than", "1w", "--url", given.url("operator"))
        optional = given.lines("operator", optional=True)
        for line in [*optional] or [""]:
            ended = claimjobs(*words)
            assert (ended.code, f"may do it ({parts.needs})" in ended.err) == (exits.OK, True), ended.err
            if line:
                past.run(line)
        if not optional:  # only the owner may
            return
        account = optional[0].partition(" TO ")[2].rstrip(";")
        for right in ("ALTER", "DROP"):
            past.run(f"REVOKE {right} ON jobs FROM {account}")
            assert "was not dropped" in claimjobs(*words).err
            past.run(f"GRANT {right} ON jobs TO {account}")
        ended = claimjobs(*words)
    assert "dropped 5 partitions of jobs" in ended.err
    assert "not" not in ended.err
    assert len(partitions(past)) == 6


def test_the_ddl_is_printed_for_a_dba(database: Backend) -> None:
    ddl = claimjobs("setup-tables", "--partition-by-time", "month", "--sql", "--url", database.url).out
    for statement in ddl.split(";\n"):
        if statement.strip():
            database.run(statement)
    assert len(partitions(database)) == 5
    ended = claimjobs("setup-tables", "--partition-by-time", "month", "--url", database.url)
    assert (ended.code, ended.out) == (exits.OK, f"jobs: was there\n{shared('was there')}")


def test_an_existing_table_is_refused_and_recreated_if_asked(database: Backend) -> None:
    words = ("setup-tables", "--partition-by-time", "day", "--url", database.url)
    claimjobs("setup-tables", "--url", database.url)
    ended = claimjobs(*words)
    assert (ended.code, ended.out) == (exits.TABLE, "")
    assert "'jobs' exists with no partitions by time" in ended.err
    ended = claimjobs(*words, "--recreate", "--yes")
    assert (ended.code, "Done jobs of jobs are kept" in ended.err) == (exits.OK, True), ended.err
    assert len(partitions(database)) == 9
    ended = claimjobs("setup-tables", "--recreate", "--yes", "--url", database.url)
    assert ended.code == exits.TABLE
    assert "would be made without created: add --partition-by-time day, or drop it yourself" in ended.err


def test_the_time_of_a_dead_job_has_its_zone_and_a_key_may_leave_it_out(past: Backend) -> None:
    claimjobs("setup-tables", "--url", past.url)
    past.insert(JOBS, [{"d": "a", "e": "", "status": "dead"}, {"d": "b", "e": "", "status": "dead"}])
    found = [json.loads(line) for line in claimjobs("dead", "list", "--json", "--url", past.url).out.splitlines()]
    assert [row["created"][-6:] for row in found] == ["+00:00"] * 2
    for row, key in zip(found, (found[0]["created"], found[1]["created"].removesuffix("+00:00")), strict=True):
        ended = claimjobs("dead", "show", "--json", f"{row['id']},{key}", "--url", past.url)
        assert json.loads(ended.out)["created"] == row["created"]
        ended = claimjobs("dead", "retry", f"{row['id']},{key}", "--url", past.url)
        assert (ended.code, ended.out) == (exits.OK, "1\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--table", "shop.models:emails"), "write partition_by_time= there"),
        (("--side-car",), "leave out --add, --ledger and --side-car"),
    ],
)
def test_it_is_for_a_table_that_is_made_here(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    ended = claimjobs("setup-tables", "--partition-by-time", "day", *words, "--url", f"mysql:///{tmp_path.name}")
    assert ended.code == exits.USAGE
    assert why in ended.err

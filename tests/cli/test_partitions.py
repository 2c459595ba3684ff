"""`setup-tables --partition-by-time`, and `purge` of such a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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
    ended = claimjobs("purge", "--older-than", "1w", "--url", past.url)
    assert (ended.code, ended.out, ended.err) == (exits.OK, "1\n", "")
    assert len(partitions(past)) == 6
    assert "there is a partition for each coming week" in claimjobs("explain", "--url", past.url).said
    parts = past.dialect.partitions
    for name in sorted({*partitions(past)} - {parts.rest})[1:]:
        past.run(parts.removal(JOBS, name))
    assert "there is no partition for the time from" in claimjobs("explain", "--url", past.url).said


def test_who_may_not_alter_the_table_is_told_and_deletes_jobs(past: Backend) -> None:
    claimjobs("setup-tables", "--url", past.url)
    names = partitions(past)
    first = min({*names} - {past.dialect.partitions.rest})
    with accounts(past) as given:
        ended = claimjobs("purge", "--older-than", "1w", "--url", given.url("operator"))
    assert (ended.code, ended.out) == (exits.OK, "1\n")
    assert f"partition {first!r} of table 'jobs' was not dropped" in ended.err
    assert partitions(past) == names


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
    assert claimjobs(*words, "--recreate", "--yes").code == exits.OK
    assert len(partitions(database)) == 9
    assert claimjobs("setup-tables", "--recreate", "--yes", "--url", database.url).code == exits.TABLE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--table", "shop.models:emails"), "write partition_by_time= there"),
        (("--side-car",), "leave out --add, --ledger and --side-car"),
        (("--column", "key=nr"), "leave out --map and --column"),
    ],
)
def test_it_is_for_a_table_that_is_made_here(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    ended = claimjobs("setup-tables", "--partition-by-time", "day", *words, "--url", f"mysql:///{tmp_path.name}")
    assert ended.code == exits.USAGE
    assert why in ended.err

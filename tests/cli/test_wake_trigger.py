"""`claimjobs setup-tables --wake-trigger`, and where it is shown."""

from __future__ import annotations

import pytest

from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs


def test_it_is_made_shown_and_dropped_again(anywhere: Backend) -> None:
    url = ("--url", anywhere.url)
    made = claimjobs("setup-tables", "--wake-trigger", *url)
    assert (made.code, made.out.splitlines()[-1]) == (exits.OK, "jobs: wake trigger made"), made.err
    for words in (("--wake-trigger",), ()):
        again = claimjobs("setup-tables", *words, *url)
        assert (again.code, again.out.splitlines()[-1]) == (exits.OK, "jobs: wake trigger was there")
    assert "jobs: a trigger wakes consumers at each INSERT\n" in claimjobs("status", *url).out
    for word in ("dropped", "was not there"):
        dropped = claimjobs("setup-tables", "--drop-wake-trigger", *url)
        assert (dropped.code, dropped.out) == (exits.OK, f"jobs: wake trigger {word}\n")
    assert "trigger" not in claimjobs("status", *url).out


def test_a_table_that_does_not_exist_has_no_trigger_to_drop(anywhere: Backend) -> None:
    dropped = claimjobs("setup-tables", "--table", "nowhere", "--drop-wake-trigger", "--url", anywhere.url)
    assert (dropped.code, dropped.out) == (exits.TABLE, "")
    assert "table 'nowhere' is not in this database" in dropped.err


def test_recreate_drops_it_with_the_table(anywhere: Backend) -> None:
    url = ("--url", anywhere.url)
    claimjobs("setup-tables", "--wake-trigger", *url)
    assert "wake trigger" not in claimjobs("setup-tables", "--recreate", "--yes", *url).out
    with_it = claimjobs("setup-tables", "--recreate", "--wake-trigger", "--yes", *url)
    assert with_it.out.splitlines()[-1] == "jobs: wake trigger made"


def test_its_statement_can_be_printed_and_run_by_a_person(anywhere: Backend) -> None:
    url = ("--url", anywhere.url)
    claimjobs("setup-tables", *url)
    printed = claimjobs("setup-tables", "--wake-trigger", "--sql", "--url", "postgresql://")
    assert (printed.code, printed.err) == (exits.OK, "")
    with anywhere.engine.begin() as connection:
        statement = "DO $make$" + printed.out.split("DO $make$")[1]
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    assert "a trigger wakes consumers" in claimjobs("status", *url).out
    dropped = claimjobs("setup-tables", "--drop-wake-trigger", "--sql", "--url", "postgresql://")
    assert dropped.out == "DROP TRIGGER IF EXISTS claimjobs_wake ON jobs;\n"


@pytest.mark.parametrize("url", ["mysql://", "mariadb://"])
def test_a_database_that_cannot_says_why(url: str) -> None:
    refused = claimjobs("setup-tables", "--wake-trigger", "--sql", "--url", url)
    assert (refused.code, refused.out) == (exits.USAGE, "")
    assert "its triggers run before the commit, once for each row" in refused.err


def test_it_wakes_consumers_by_transaction_too(anywhere: Backend) -> None:
    made = claimjobs("setup-tables", "--wake-trigger", "--hold", "transaction", "--url", anywhere.url)
    assert (made.code, made.out.splitlines()[-1]) == (exits.OK, "jobs: wake trigger made"), made.err

"""A sample database that nobody here made: its tables are worked through as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.article import Connection, connected
from examples import any_table
from examples.harness import rows, scalar
from servers import Unavailable
from tests.backends import Backend
from tests.examples import world

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

ROWS = {"country": 239, "city": 4_079, "countrylanguage": 984}
PREDICATES = {
    "country": "Population > 1000000",
    "city": "Country in ('DEU', 'FIN', 'CHN')",
    "countrylanguage": "Percentage < 50 or Language like 'E%'",
}
"""Its keys are a text, a number, and two texts."""


@pytest.fixture(scope="session")
def files() -> Path:
    try:
        return world.fetch()
    except Unavailable as error:
        pytest.skip(f"no sample database: {error}")


@pytest.fixture
def tables(db: Connection, files: Path) -> dict[str, str]:
    """The names of the three tables in this database, by their names in small letters."""
    counts = world.load(db, files)
    assert {name.lower(): count for name, count in counts.items()} == ROWS
    return {name.lower(): name for name in counts}


def contents(db: Connection, table: str) -> set[object]:
    found = set(rows(db, f"select * from {table}"))
    db.commit()
    return found


@pytest.mark.parametrize("table", ROWS)
def test_four_consumers_claim_each_row_once(
    database: Backend, db: Connection, tables: dict[str, str], table: str
) -> None:
    before = contents(db, tables[table])
    shares = any_table.work_through(database.url, tables[table], PREDICATES[table])
    assert len(shares) == 4
    assert sum(shares) == scalar(db, f"select count(*) from {tables[table]} where {PREDICATES[table]}")
    db.commit()
    assert contents(db, tables[table]) == before


def test_what_is_done_stays_done_and_the_rest_can_follow(database: Backend, tables: dict[str, str]) -> None:
    [first] = any_table.work_through(database.url, tables["country"], PREDICATES["country"], consumers=1)
    rest = 0
    with any_table.queue_on(database.url, tables["country"]) as queue:
        for batch in queue.batches(drain=True):
            with batch:
                rest += len(batch)
                batch.done()
    assert 0 < first < ROWS["country"]
    assert first + rest == ROWS["country"]


def test_the_command_says_what_it_did(anywhere: Backend, files: Path) -> None:
    with connected(anywhere.url) as db:
        world.load(db, files)
    options = ["--url", anywhere.url, "--table", "city", "--consumers", "2", "--size", "500"]
    command = [sys.executable, "-m", "examples.any_table", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4,079 rows of city, each claimed once: ")

"""What becomes of done rows: refused where nobody has said it, and told before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import article
from claimjobs.cli import exits
from tests.backends import Backend
from tests.cli.command import claimjobs, mapped, shared
from tests.process.command import HANDLERS

pytestmark = pytest.mark.one_server(
    "a command parses and prints; what differs between databases is tested beside the Queue"
)

BOOKS = 'table = "books"\n[columns]\nowner_id = "worker"\n'


@pytest.fixture
def books(database: Backend) -> Backend:
    """A table of the user's own, without a status."""
    database.run("CREATE TABLE books (id INT PRIMARY KEY, worker INT)")
    database.run("INSERT INTO books VALUES (1, NULL), (2, NULL)")
    return database


def test_nothing_is_begun_on_a_foreign_table_before_somebody_has_said_it(books: Backend, tmp_path: Path) -> None:
    said = (
        "claimjobs did not make table 'books', and on_done does not say what happens to its done jobs: choose on_done="
    )
    words = mapped(tmp_path, BOOKS)
    ended = claimjobs("setup-tables", *words, "--url", books.url)
    assert (ended.code, ended.out) == (
        exits.OK,
        f"{shared('made')}books: was there\n",
    )
    assert said in ended.err
    ended = claimjobs("start-processing", f"{HANDLERS}:note_job", *words, "--drain", "--url", books.url)
    assert ended.code == exits.TABLE
    assert said in ended.err
    assert "--on-done delete" in ended.err
    assert books.rows("claimjobs_owners") == []
    assert [row["worker"] for row in books.rows("books")] == [None, None]


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["", "json"])
def test_it_is_told_before_a_run(books: Backend, tmp_path: Path, json: tuple[str, ...]) -> None:
    books.make()
    words = (*mapped(tmp_path, BOOKS), "--on-done", "delete", "--consumers", "1", "--drain", *json, "--url", books.url)
    ended = claimjobs("start-processing", "tests.cli.map_work:do_nothing", *words)
    assert ended.code == exits.OK, ended.err
    assert "Done jobs are deleted from table 'books'." in ended.err.splitlines()[0]
    assert books.rows("books") == []


def test_it_is_told_before_tables_are_made(database: Backend) -> None:
    for words, told in (
        ((), "Done jobs are deleted from table 'jobs'."),
        (
            ("--table", "jobs", "--side-car"),
            "Done jobs of table 'jobs' are kept; their keys are marked as done in the side-car",
        ),
    ):
        ended = claimjobs("setup-tables", *words, "--url", database.url)
        assert ended.code == exits.OK
        assert ended.err.startswith(f"claimjobs: {told}")
    database.run("CREATE TABLE pages (id INT PRIMARY KEY, status VARCHAR(9), owner_id INT)")
    ended = claimjobs("setup-tables", "--table", "pages", "--url", database.url)
    assert ended.err.startswith("claimjobs: Done jobs of table 'pages' are kept with status 'done'.\n")


@pytest.mark.parametrize("generators", ["0", "1"])
def test_the_demonstration_does_not_take_the_articles_table_for_its_own(database: Backend, generators: str) -> None:
    """It has the same columns, and live jobs in it."""
    article.setup_tables(database.url)
    with article.connected(database.url) as db:
        article.generate(db, article.payload(20))
    assert claimjobs("setup-tables", "--url", database.url).code == exits.OK
    words = ("--generators", generators, "--consumers", "1", "--duration", "1", "--url", database.url)
    ended = claimjobs("start-processing", *words)
    assert ended.code == exits.TABLE
    assert "table 'jobs' was not made for the demonstration, which throws jobs away" in ended.err
    assert [row["status"] for row in database.rows()] == ["unclaimed"] * 20


def test_the_demonstration_runs_on_a_table_that_was_made_for_it(anywhere: Backend) -> None:
    assert claimjobs("setup-tables", "--table", "shown", "--url", anywhere.url).code == exits.OK
    words = ("--table", "shown", "--jobs", "20", "--consumers", "1", "--drain", "--url", anywhere.url)
    ended = claimjobs("start-processing", *words)
    assert ended.code == exits.OK, ended.err
    assert "20 generated + 0 there before = 20 done + 0 dead + 0 left" in ended.out


@pytest.mark.parametrize(("handler", "due"), [("note_return", []), ("forget_return", [1])])
def test_rows_are_left_as_the_handler_wrote_them(books: Backend, handler: str, due: list[int]) -> None:
    books.run("ALTER TABLE books ADD COLUMN returned INT")
    words = ("--table", "books", "--where", "returned IS NULL", "--hold", "transaction", "--on-done", "leave")
    run = (f"tests.cli.map_work:{handler}", *words, "--consumers", "1", "--drain", "--url", books.url)
    ended = claimjobs("start-processing", *run)
    assert ended.code == exits.OK, ended.err
    rows = sorted(books.rows("books"), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == [1, 2]
    assert [row["id"] for row in rows if row["returned"] is None] == due
    assert ended.err.count("these rows are still due: 1;") == len(due)

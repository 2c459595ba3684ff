"""The article's table is a queue as it stands, and the table that `setup-tables` makes is one for the article."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from benchmarks import article
from claimjobs import Queue
from claimjobs.errors import ColumnMissing
from tests.backends import Backend

SIX = ["id", "d", "e", "status", "owner_id", "owner_date"]
ROWS = [{"d": f"{letter}{number}", "e": "x"} for number in range(3) for letter in "abc"]


@pytest.fixture
def queue(backend: Backend) -> Queue:
    """On the article's own table, beside which only the table of owners was made."""
    article.setup_tables(backend.url)
    return backend.queue("jobs", on_done="delete")


@pytest.fixture
def db(database: Backend) -> Iterator[article.Connection]:
    """The article's connection to the table that `setup-tables` makes."""
    database.make("jobs")
    with article.connected(database.url) as connection:
        yield connection


# --- the article's table, our consumer ---------------------------------------------------------------------


def test_the_articles_table_stays_as_it_is(backend: Backend, queue: Queue) -> None:
    queue.check()
    assert [column["name"] for column in sa.inspect(backend.engine).get_columns("jobs")] == SIX
    assert queue.payload == ("d", "e")


def test_jobs_go_in_with_or_without_a_status_and_come_out_in_order(queue: Queue) -> None:
    queue.enqueue(ROWS[:5])
    queue.enqueue({**row, "status": "unclaimed"} for row in ROWS[5:])
    with queue.claim() as batch:
        assert [job.d for job in batch.jobs] == [row["d"] for row in ROWS]
        batch.done()
    assert batch.lost == ()
    assert queue.stats().left == 0


def test_a_random_letter_for_each_claim(backend: Backend) -> None:
    article.setup_tables(backend.url)
    jobs = sa.Table("jobs", sa.MetaData(), autoload_with=backend.engine)
    queue = backend.queue(
        jobs, on_done="delete", where=lambda: jobs.c.d.like(random.choice(string.ascii_lowercase[:3]) + "%")
    )
    queue.enqueue(ROWS)
    done: list[str] = []
    while len(done) < len(ROWS):
        with queue.claim() as batch:
            assert len({job.d[0] for job in batch.jobs}) <= 1
            done += [job.d for job in batch.jobs]
            batch.done()
    assert sorted(done) == sorted(row["d"] for row in ROWS)


def test_a_claim_says_who_and_when_and_a_release_forgets_it(backend: Backend, queue: Queue) -> None:
    queue.enqueue(ROWS[0])
    batch = queue.claim()
    [row] = backend.rows("jobs")
    assert (row["status"], row["owner_id"]) == ("claimed", queue.owner_id)
    assert row["owner_date"] is not None
    batch.release()
    batch.settle()
    [row] = backend.rows("jobs")
    assert (row["status"], row["owner_id"], row["owner_date"]) == ("unclaimed", None, None)


def test_done_jobs_can_be_kept(backend: Backend, queue: Queue) -> None:
    keeping = backend.queue("jobs", on_done="keep")
    keeping.enqueue(ROWS)
    with keeping.claim() as batch:
        batch.done()
    assert {row["status"] for row in backend.rows("jobs")} == {"done"}
    assert not queue.claim()


def test_a_failure_needs_a_column_to_count_in(queue: Queue) -> None:
    queue.enqueue(ROWS[0])
    with queue.claim() as batch:
        with pytest.raises(ColumnMissing, match="attempts"):
            batch.fail(batch[0], "no")
        batch.release()
    assert queue.stats().unclaimed == 1


# --- our table, the article's script -----------------------------------------------------------------------


def test_the_six_columns_are_the_articles_but_for_a_wider_key(database: Backend) -> None:
    article.setup_tables(database.url)
    theirs = _columns(database)
    database.run("DROP TABLE jobs")
    if database.family == "postgres":
        database.run("DROP TYPE jobs_status")
    database.make("jobs")
    ours = _columns(database)
    assert ours["id"][0].startswith("BIGINT")
    assert {name: ours[name] for name in SIX[1:]} == {name: theirs[name] for name in SIX[1:]}
    assert ours["id"][1] == theirs["id"][1]


def _columns(database: Backend) -> dict[str, tuple[str, bool]]:
    """Name, type and whether it may be NULL; of an enum the states that the article knows."""
    columns = sa.inspect(database.engine).get_columns("jobs")
    return {column["name"]: (_type(column["type"]), column["nullable"]) for column in columns}


def _type(column: sa.types.TypeEngine[object]) -> str:
    return str(column.enums[:3]) if isinstance(column, sa.Enum) else repr(column)


def test_the_articles_script_works_on_our_table(database: Backend, db: article.Connection) -> None:
    done: list[str] = []
    payload = list(article.payload(255))
    assert article.generate(db, payload) == 255
    tally = article.consume(db, 1, lambda jobs: done.extend(d for _, d, _ in jobs))
    assert tally.jobs == 255
    assert sorted(done) == sorted(d for d, _ in payload)
    assert database.rows("jobs") == []


def test_what_the_articles_consumer_holds_is_not_ours(database: Backend, db: article.Connection) -> None:
    article.generate(db, article.payload(5))
    _, theirs = article.claim(db, number=1, letters=False)
    assert len(theirs) == 5
    with database.queue("jobs") as queue:
        assert not queue.claim()
    assert {row["owner_id"] for row in database.rows("jobs")} == {1}


def test_what_we_hold_is_not_the_articles(database: Backend, db: article.Connection) -> None:
    article.generate(db, article.payload(5))
    queue = database.queue("jobs")
    batch = queue.claim()
    assert len(batch) == 5
    assert article.consume(db, 1, lambda jobs: pytest.fail(f"took {jobs}")).jobs == 0
    batch.done()
    batch.settle()
    assert batch.lost == ()

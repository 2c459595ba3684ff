"""At REPEATABLE READ a consumer looks through a frozen read view, until its transaction ends: why both of us end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import article
from tests.backends import Backend


@pytest.fixture
def frozen(database: Backend) -> Iterator[article.Connection]:
    """The article's connection, at the server's own default isolation."""
    with database.engine.connect() as connection:
        if connection.default_isolation_level != "REPEATABLE READ":
            pytest.skip(f"{database.name} lacks REPEATABLE READ as its default")
    article.setup_tables(database.url)
    with article.connected(database.url) as connection:
        yield connection


def test_what_others_took_stays_a_candidate_for_ever(database: Backend, frozen: article.Connection) -> None:
    with article.connected(database.url) as other:
        article.generate(other, article.payload(10))
        found = article.find(frozen, letters=False)
        article.consume(other, 2, lambda jobs: None, letters=False)

    assert article.lock(frozen, found) == []
    assert article.find(frozen, letters=False) == found
    frozen.rollback()
    assert article.find(frozen, letters=False) == []


def test_what_others_insert_is_not_seen(database: Backend, frozen: article.Connection) -> None:
    assert article.find(frozen, letters=False) == []
    with article.connected(database.url) as other:
        article.generate(other, article.payload(10))
    assert article.find(frozen, letters=False) == []
    frozen.rollback()
    assert len(article.find(frozen, letters=False)) == 10


def test_ours_sees_both(database: Backend) -> None:
    article.setup_tables(database.url)
    queue = database.queue("jobs", bind=database.new_engine(isolation_level="REPEATABLE READ"))
    assert not queue.claim()
    with article.connected(database.url) as other:
        article.generate(other, article.payload(10))
        with queue.claim(5) as batch:
            batch.done()
        article.consume(other, 2, lambda jobs: None, letters=False)
    assert len(batch) == 5
    assert not queue.claim().contended

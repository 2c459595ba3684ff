"""The article's own loop and claimjobs, on the same rows at the same time: no job twice, none forgotten."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from benchmarks import article
from benchmarks.crew import Worker, gather
from benchmarks.drain import fill
from claimjobs.table.definitions import FIRST_OWNER
from tests.article import workers
from tests.backends import Backend

JOBS = 6_000
THERE_BEFORE = JOBS // 2  # full batches and one head for all; the rest comes while they work
GENERATORS = 2
CONSUMERS = 4  # of each kind


@pytest.mark.parametrize("letters", [True, False], ids=["our table, random letter", "the article's table, no letter"])
def test_each_job_is_done_once_by_one_of_them(database: Backend, letters: bool) -> None:
    if not letters:
        article.setup_tables(database.url)
    database.make("jobs")
    database.run(workers.AUDIT)
    payload = list(article.payload(JOBS))

    assert _work(database.url, payload, letters) == JOBS

    done = _processed(database)
    assert Counter(row.d for row in done) == Counter(d for d, _ in payload)
    assert len({row.job_id for row in done}) == JOBS
    assert database.rows("jobs") == []
    ours = {row.consumer for row in done if row.consumer >= FIRST_OWNER}
    theirs = {row.consumer for row in done if row.consumer < FIRST_OWNER}
    assert ours, "claimjobs had no part in it"
    assert theirs <= set(range(1, CONSUMERS + 1))
    assert theirs, "the article had no part in it"


def _work(url: str, payload: list[tuple[str, str]], letters: bool) -> int:
    """Everybody at once; how many jobs the consumers say they did."""
    fill(url, payload[:THERE_BEFORE])
    shift = workers.Shift(GENERATORS, 2 * CONSUMERS)
    generators = [
        Worker(workers.generate, url, shift, number, payload[THERE_BEFORE + number :: GENERATORS])
        for number in range(GENERATORS)
    ]
    consumers = [
        Worker(workers.consume_as_the_article, url, shift, number, letters=letters)
        for number in range(1, CONSUMERS + 1)
    ] + [Worker(workers.consume_as_claimjobs, url, shift) for _ in range(CONSUMERS)]
    return sum(gather([*generators, *consumers])[GENERATORS:])


def _processed(database: Backend) -> list[sa.Row[tuple[int, str, int]]]:
    with database.engine.connect() as connection:
        return list(connection.execute(sa.text("select job_id, d, consumer from processed")))

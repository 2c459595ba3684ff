"""S3: the article's run log, by its own loop and by ours, on each database."""

from __future__ import annotations

import re

import pytest

from benchmarks import article
from examples.harness import make_owners
from examples.s3_isotopp import run as example
from tests.backends import Backend
from tests.examples.conftest import at, told

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

SIZES = {"generators": 1, "consumers": 2, "jobs": 120, "pause": 0.0}


def test_both_do_each_job_once(anywhere: Backend) -> None:
    figures = told(example.run(anywhere.url, at(example, **SIZES)))
    assert all(figures[f"jobs: {way}"].startswith("120 in ") for way in ("the author's", "claimjobs"))


def test_candidates_come_from_a_replica_as_the_article_proposes(anywhere: Backend) -> None:
    """Here from the primary itself, which says so in the log."""
    options = at(example, **SIZES, replica=anywhere.url)
    _, stints = example.work(anywhere.url, example.consume_as_claimjobs, options)
    assert sum(len(stint.done) for stint in stints) == SIZES["jobs"]


@pytest.mark.parametrize("consumer", [example.consume_as_the_article, example.consume_as_claimjobs])
def test_the_log_is_the_articles(database: Backend, consumer: example.Consumer) -> None:
    _, stints = example.work(database.url, consumer, at(example, **SIZES))
    log = [line for stint in stints for line in stint.log]
    assert log
    assert all(re.fullmatch(r"consumer  \d+ #records = \d+ - \[\d+(, \d+)*\]", line) for line in log)
    assert sum(len(stint.done) for stint in stints) == SIZES["jobs"]


def test_the_queue_is_counted_by_one_group_by(database: Backend) -> None:
    article.setup_tables(database.url)
    assert example.count(database.url) == "empty"
    with article.connected(database.url) as db:
        article.generate(db, article.payload(20))
    assert example.count(database.url) == "20 unclaimed"
    make_owners(database.url)
    with database.bare_queue("jobs") as queue:
        batch = queue.claim(5)
        assert sorted(example.count(database.url).split(", ")) == ["15 unclaimed", "5 claimed"]
        batch.release()
        batch.settle()

"""The instructions of a batch: what callgrind writes is read, and the loop that is counted empties its table."""

from __future__ import annotations

import pytest

from benchmarks import article, instructions, tables
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")


@pytest.mark.parametrize("word", ["totals", "summary"])
def test_the_sum_is_read(word: str) -> None:
    assert instructions.total(f"version: 1\nevents: Ir\nfn=(1) main\n16 400\n\n{word}: 2413319147\n") == 2_413_319_147


@pytest.mark.parametrize("kind", instructions.KINDS)
def test_all_jobs_are_done(anywhere: Backend, kind: str) -> None:
    tables.setup_claimjobs(anywhere.url)
    tables.fill(anywhere.url, list(article.payload(250)))
    instructions.consume(anywhere.url, kind)
    assert anywhere.rows() == []

"""The benchmark of partitions measures both tables with the same jobs. No times."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import partitions
from benchmarks.partitions import BY_DAY, DAYS, PLAIN
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")


def test_both_tables_have_the_same_kept_jobs_and_lose_a_day_of_them(database: Backend) -> None:
    sizes = argparse.Namespace(kept=[0, 100 * DAYS], turns=2, repeat=1)
    *turns, plain, by_day = partitions.measure(database.server, sizes)
    assert [(sample.contestant, sample.at) for sample in turns] == [
        *((PLAIN, 0), (BY_DAY, 0), (PLAIN, 100 * DAYS), (BY_DAY, 100 * DAYS))
    ]
    assert all(sample.value > 0 for sample in turns)
    assert plain.at == by_day.at > 0

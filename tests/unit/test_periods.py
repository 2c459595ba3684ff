"""Periods of partitions: which days they have, and what their names say."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import pairwise

import pytest

from claimjobs.dialects.partitions import Unit, coming, period_at, period_named
from claimjobs.table.definitions import article_table
from claimjobs.table.time_partitions import unit_of


@pytest.mark.parametrize(
    ("unit", "first", "end"),
    [
        ("day", date(2026, 12, 31), date(2027, 1, 1)),
        ("week", date(2026, 12, 28), date(2027, 1, 4)),
        ("month", date(2026, 12, 1), date(2027, 1, 1)),
    ],
)
def test_a_period_is_named_by_its_first_day(unit: Unit, first: date, end: date) -> None:
    period = period_at(unit, date(2026, 12, 31))
    assert (period.first, period.end) == (first, end)
    assert period_named(unit, period.name) == period


def test_names_of_other_partitions_name_no_period() -> None:
    assert [period_named("day", name) for name in ("pmax", "default", "p2026", "p20261399", "jobs_p20261123")] == [
        None
    ] * 5


@pytest.mark.parametrize(("unit", "count"), [("day", 8), ("week", 5), ("month", 4)])
def test_coming_periods_follow_each_other(unit: Unit, count: int) -> None:
    found = list(coming(unit, datetime(2026, 2, 28, 23, 59, tzinfo=UTC)))
    assert len(found) == count
    assert found[0].first <= date(2026, 2, 28) < found[0].end
    assert all(one.end == two.first for one, two in pairwise(found))


def test_the_comment_of_a_table_says_its_unit() -> None:
    assert unit_of(article_table(partition_by_time="week").comment) == "week"
    assert unit_of(article_table().comment) is None
    assert unit_of("partitions by week") is None

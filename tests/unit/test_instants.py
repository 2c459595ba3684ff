"""The next whole hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimjobs import next_whole

HOUR = timedelta(hours=1)


def at(hour: int, minute: int = 0, second: int = 0, microsecond: int = 0) -> datetime:
    return datetime(2030, 1, 1, hour, minute, second, microsecond, tzinfo=UTC)


@pytest.mark.parametrize("instant", [at(11), at(11, 0, 0, 1), at(11, 30), at(11, 59, 59, 999_999)])
def test_an_hour_ends_where_the_next_one_begins(instant: datetime) -> None:
    assert next_whole(instant) == at(12)


def test_any_step_counts_from_midnight() -> None:
    assert next_whole(at(11, 7), timedelta(minutes=15)) == at(11, 15)
    assert next_whole(at(23), timedelta(days=1)) == datetime(2030, 1, 2, tzinfo=UTC)


def test_it_is_counted_in_utc_wherever_the_instant_is_from() -> None:
    india = timezone(timedelta(hours=5, minutes=30))
    assert next_whole(datetime(2030, 1, 1, 16, 45, tzinfo=india)) == at(12)
    assert next_whole(datetime(2030, 1, 1, 16, 45, tzinfo=india)).tzinfo is UTC


@given(st.datetimes(timezones=st.just(UTC), max_value=datetime(9000, 1, 1)), st.timedeltas(HOUR / 60, 24 * HOUR))  # noqa: DTZ001
def test_it_is_after_the_instant_by_one_step_at_most(instant: datetime, every: timedelta) -> None:
    assert timedelta(0) < next_whole(instant, every) - instant <= every


def test_what_leads_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        next_whole(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="do not advance"):
        next_whole(at(11), timedelta(0))

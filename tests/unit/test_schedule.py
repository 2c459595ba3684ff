"""When the ticks of a schedule are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from claimjobs.enqueue.recurring import Schedule


def first(schedule: Schedule, instant: datetime, count: int = 3) -> list[str]:
    found = []
    for _ in range(count):
        instant = schedule.after(instant)
        found.append(f"{instant:%d %H:%M}")
    return found


def test_an_interval_has_its_ticks_at_its_multiples() -> None:
    noon = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert first(Schedule("15m"), noon) == ["01 12:15", "01 12:30", "01 12:45"]
    assert first(Schedule(timedelta(hours=6)), noon - timedelta(minutes=1)) == ["01 12:00", "01 18:00", "02 00:00"]


def test_a_cron_expression_is_read_in_its_zone_also_when_clocks_change() -> None:
    before = datetime(2026, 3, 28, 0, 0, tzinfo=UTC)  # summer time begins in Berlin at 01:00 UTC on the 29th
    assert first(Schedule("30 2 * * *", "Europe/Berlin"), before) == ["28 01:30", "29 01:00", "30 00:30"]
    assert first(Schedule("0 6 * * 1"), before, 1) == ["30 06:00"]


def test_in_the_hour_that_is_repeated_a_tick_is_after_the_instant() -> None:
    repeated = datetime(2026, 10, 25, 1, 5, tzinfo=UTC)  # in Berlin 02:05, for the second time
    assert first(Schedule("30 2 * * *", "Europe/Berlin"), repeated, 1) == ["26 01:30"]
    assert first(Schedule("*/30 * * * *", "Europe/Berlin"), repeated) == ["25 01:30", "25 02:00", "25 02:30"]

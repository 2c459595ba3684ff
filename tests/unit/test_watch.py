"""Who is silent, for a watcher whose own clock goes on while the database's clock is set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from claimjobs.lease.registry import OwnerState, Watch

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = 3600.0


def seen(beat: float, now: float, id_: int = 1) -> OwnerState:
    """An owner with this heartbeat, in seconds after noon by the database's clock, which stands at `now`."""
    at = (NOON + timedelta(seconds=seconds) for seconds in (0, beat, now))
    started, beaten, looked = at
    return OwnerState(id_, "host", 1, started, beaten, 10.0, None, None, None, None, None, "rows", "[]", None, looked)


def silence(watch: Watch, beat: float, now: float, *, at: float) -> float:
    return watch.silences([seen(beat, now)], at)[1]


def test_at_first_sight_the_databases_clock_tells() -> None:
    assert silence(Watch(), 0, 30, at=5000) == 30


def test_a_heartbeat_that_does_not_change_is_silence_though_it_lies_in_the_future() -> None:
    watch = Watch()
    assert silence(watch, HOUR, 0, at=100) == 0
    assert silence(watch, HOUR, 8, at=108) == 8
    assert silence(watch, HOUR, 12, at=112) == 12


def test_the_clock_is_set_back_while_somebody_watches() -> None:
    watch = Watch()
    assert silence(watch, 0, 1, at=101) == 1
    assert silence(watch, 0, 4 - HOUR, at=104) == 4
    assert silence(watch, 5 - HOUR, 6 - HOUR, at=106) == 1
    assert silence(watch, 5 - HOUR, 17 - HOUR, at=117) == 12


def test_the_clock_is_set_forward_while_somebody_watches() -> None:
    """Neither an owner that has yet to beat is silent by that, nor one that beat a moment before."""
    watch = Watch()
    assert silence(watch, 0, 1, at=101) == 1
    assert silence(watch, 0, 2 + HOUR, at=102) == 2
    assert silence(watch, 1.5, 3 + HOUR, at=103) == 1
    assert silence(watch, 4 + HOUR, 5 + HOUR, at=105) == 1
    assert silence(watch, 4 + HOUR, 16 + HOUR, at=116) == 12


def test_who_was_away_itself_goes_by_the_databases_clock() -> None:
    watch = Watch()
    assert silence(watch, 0, 1, at=101) == 1
    assert silence(watch, 2, 302, at=402) == 300


def test_what_is_forgotten_is_seen_for_the_first_time() -> None:
    watch = Watch()
    assert silence(watch, 0, 0, at=100) == 0
    watch.heartbeats.clear()
    assert silence(watch, 0, HOUR, at=101) == HOUR


def test_each_owner_by_itself() -> None:
    watch = Watch()
    watch.silences([seen(0, 0, 1), seen(0, 0, 2)], 100)
    assert watch.silences([seen(9, 9, 1), seen(0, 9, 2), seen(8, 9, 3)], 109) == {1: 0, 2: 9, 3: 1}
    assert watch.silences([], 110) == {}

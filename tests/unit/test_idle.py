"""How long a loop pauses between two looks, and when it may sleep instead."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from claimjobs.queue.batch_loop import (
    LONGEST_REST,
    LONGEST_WAIT,
    REST_FACTOR,
    SHORT_SLEEP_SECONDS,
    SHORTEST_POLL,
    IdleBackoff,
)


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("claimjobs.queue.batch_loop.time", time)
    return time


def slept(idleness: IdleBackoff, time: Time, seconds: float) -> None:
    with idleness.asleep():
        time.now += seconds


def awake_before_it_sleeps(idleness: IdleBackoff, time: Time) -> float:
    began = time.now
    while not idleness.may_sleep:
        time.now += 0.001
    return time.now - began


def about(seconds: float) -> Callable[[float], bool]:
    return lambda pause: seconds / 2 <= pause <= seconds


def test_pauses_double_up_to_the_longest_and_begin_anew_with_work(time: Time) -> None:
    idleness = IdleBackoff(poll=0.07, idle=math.inf)
    for _ in range(2):
        for seconds in (SHORTEST_POLL, 2 * SHORTEST_POLL, 0.07, 0.07):
            assert about(seconds)(idleness.pause())
        idleness.worked()


def test_it_is_over_after_so_long_without_work_and_the_last_pause_is_no_storm(time: Time) -> None:
    idleness = IdleBackoff(poll=10.0, idle=3.0)
    time.now += 2.0
    assert idleness.seconds_left == pytest.approx(1.0)
    time.now += 0.9999
    for _ in range(10):
        assert about(SHORTEST_POLL)(idleness.pause())
    idleness.worked()
    assert idleness.seconds_left == pytest.approx(3.0)


def test_it_sleeps_at_once_unless_its_last_sleeps_were_short(time: Time) -> None:
    idleness = IdleBackoff(poll=1.0, idle=math.inf)
    assert idleness.may_sleep
    waits = []
    for _ in range(9):
        slept(idleness, time, SHORT_SLEEP_SECONDS / 2)
        waits.append(awake_before_it_sleeps(idleness, time))
    assert waits == pytest.approx(
        [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT], abs=0.01
    )
    slept(idleness, time, SHORT_SLEEP_SECONDS * 2)
    assert idleness.may_sleep


def test_a_loop_that_meets_only_locked_jobs_pauses_for_much_longer_than_its_claims_take(time: Time) -> None:
    idleness = IdleBackoff(poll=0.07, idle=math.inf)
    idleness.met_locked_jobs(0.3)  # the first one connects, too
    assert idleness.pause() <= 0.07
    idleness.met_locked_jobs(0.02)
    idleness.met_locked_jobs(0.03)
    assert idleness.pause() == pytest.approx(REST_FACTOR * 0.02)
    idleness.met_locked_jobs(60.0)
    idleness.met_locked_jobs(60.0)
    assert idleness.pause() == LONGEST_REST
    idleness.worked()
    assert idleness.pause() <= SHORTEST_POLL

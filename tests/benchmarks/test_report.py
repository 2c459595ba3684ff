"""Medians, spread and ratios, and what a run says of its limit."""

from __future__ import annotations

import os
import time

import pytest

from benchmarks import meter, report
from benchmarks.meter import Clocks, Load, Meter, Used, limit
from benchmarks.report import Sample
from tests.backends import Backend

pytestmark = pytest.mark.thorough("that the benchmarks measure what they say")


def test_a_figure_is_the_median_of_its_samples() -> None:
    samples = [
        Sample("a", 1, 30, {"cost": 3.0, "limit": "fsync"}, [1, 2]),
        Sample("a", 1, 10, {"cost": None, "limit": "fsync"}, [3, 4]),
        Sample("a", 1, 20, {"cost": 1.0, "limit": "server CPU"}, [5, 9]),
        Sample("b", 1, 5),
    ]
    first, second = report.figures(samples)
    assert (first.contestant, first.value, first.least, first.most) == ("a", 20, 10, 30)
    assert first.also == {"cost": 2.0, "limit": "fsync"}
    assert first.course == [3, 4]
    assert (second.contestant, second.value) == ("b", 5)


def test_the_table_has_the_ratios() -> None:
    samples = [Sample("a", 1, 100), Sample("b", 1, 50), Sample("a", 4, 200), Sample("b", 4, 300)]
    heading, *lines = report.lines(report.figures(samples), "consumers", "jobs/s")
    assert heading[:6] == ("consumers", "contestant", "jobs/s", "min - max", "of the first", "of its first")
    assert lines == [
        ("1", "a", "100", "100 - 100", "1.00", "1.00"),
        ("1", "b", "50", "50 - 50", "0.50", "1.00"),
        ("4", "a", "200", "200 - 200", "1.00", "2.00"),
        ("4", "b", "300", "300 - 300", "1.50", "6.00"),
    ]


@pytest.mark.parametrize(
    ("value", "said"), [(12345.6, "12,346"), (99.96, "100"), (3.14159, "3.14"), (0.0123, "0.0123"), (None, "-")]
)
def test_a_number_is_told_by_the_digits_that_count(value: float | None, said: str) -> None:
    assert report.said(value) == said


# --- limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(4, 2, 1.2, 2.0, Used(0.7, 0.2)), "client CPU"),  # all cores are busy
        (Load(4, 2, 0.4, 1.9, Used(1.4, 0.2)), "server CPU"),
        (Load(4, 2, 0.4, 1.9, Used()), "server CPU"),  # whoever is busy and no consumer
        (Load(4, 2, 0.3, 2.0, Used(0.4, 0.2)), "CPU of others"),
        (Load(1, 2, 0.7, 1.0, Used(0.2, 0.0)), "client CPU"),  # one consumer takes turns with its session
        (Load(1, 2, 0.2, 1.0, Used(0.7, 0.1)), "server CPU"),
        (Load(1, 2, 0.1, 0.3, Used(0.1, 0.8)), "fsync"),
        (Load(1, 2, 0.1, 0.3, Used(0.1, 0.0)), "waiting"),  # for a line, say
        (Load(2, 2, 0.2, 0.7, Used(0.4, 0.6)), "fsync"),
        (Load(1, 2, 0.1, 1.2, Used(0.1, 0.8)), "CPU of others"),
    ],
)
def test_a_run_says_what_limits_it(load: Load, expected: str) -> None:
    assert limit(load) == expected


def test_what_was_used_between_two_looks_is_taken_as_even() -> None:
    watched = Meter(1)
    watched._looks = [Clocks(0, 10, 0), Clocks(2, 12, 1), Clocks(4, 18, 1)]
    used = watched.between(1, 3)
    assert used.server == pytest.approx((15 - 11) / 2)
    assert used.disk in (pytest.approx((1 - 0.5) / 2), None)


def test_the_cpu_of_a_tree_is_that_of_its_children_too() -> None:
    before = meter.cpu_of_tree(os.getpid())
    child = os.fork()
    if not child:
        _burn(0.1)
        os._exit(0)
    os.waitpid(child, 0)
    assert meter.cpu_of_tree(os.getpid()) - before >= 0.05


def _burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def test_the_cpu_of_a_server_is_seen(database: Backend) -> None:
    if (pid := database.server.pid) is None:
        pytest.skip("the server is no process of this machine that we started")
    assert meter.cpu_of_tree(pid) > 0


def test_a_process_that_is_no_more_has_used_nothing() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert meter.cpu_of_tree(child) == 0

"""Histograms of a report."""

from __future__ import annotations

import pickle

from claimjobs.report import Histogram, Report


class Small(Histogram):
    bounds = (1.0, 10.0)


def test_a_value_at_a_bound_is_below_it() -> None:
    histogram = Small()
    for value in (0.5, 1.0, 5.0, 11.0):
        histogram.observe(value)
    assert histogram.cumulative == [("1.0", 2.0), ("10.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 17.5


def test_a_value_may_count_many_times() -> None:
    histogram = Small()
    histogram.observe(2.0, times=100)
    assert (histogram.counts, histogram.sum) == ([0, 100, 0], 200.0)


def test_reports_add_their_histograms_and_stay_as_they_are() -> None:
    first, second = Report(), Report()
    first.times.batch_jobs.observe(3)
    second.times.batch_jobs.observe(400)
    both = first + second + Report()
    assert both.times.batch_jobs.sum == 403
    assert sum(both.times.batch_jobs.counts) == 2
    assert sum(first.times.batch_jobs.counts) == 1
    copied = first.copy()
    first.times.batch_jobs.observe(1)
    assert copied.times.batch_jobs.sum == 3


def test_what_is_not_measured_is_small_to_send() -> None:
    assert Report().times.batch_jobs.cumulative[-1] == ("+Inf", 0.0)
    assert pickle.loads(pickle.dumps(Report())) == Report()
    measured = Report()
    measured.times.claimed_to_settled.observe(2.5, times=3)
    assert pickle.loads(pickle.dumps(measured)) == measured

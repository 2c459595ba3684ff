"""The metrics: their names, labels and help texts, and how they are made of a report and of a backlog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from claimjobs.batch.batch_timer import SAMPLES
from claimjobs.histogram import Histogram
from claimjobs.metrics.backlog_reader import Reading
from claimjobs.report import Report

OUTCOMES: Final = ("done", "retried", "dead", "released", "suspects", "lost")
"""Fields of a report: what became of claimed jobs."""


def of_report(report: Report, table: str) -> Iterator[Metric]:
    """What consumers and producers did."""
    yield _counter("claimjobs_enqueued_jobs", "Jobs enqueued.", table, report.enqueued)
    yield _counter("claimjobs_claimed_jobs", "Jobs claimed.", table, report.claimed)
    yield _settled(report, table)
    yield _counter("claimjobs_claims", "Claims, with empty ones.", table, report.claims)
    yield _counter("claimjobs_empty_claims", "Claims that got no job.", table, report.empty_claims)
    collisions = "Candidates that another consumer had locked or claimed before."
    yield _counter("claimjobs_collisions", collisions, table, report.collisions)
    unclaimable = "Rows that a consumer leaves, because the database refuses every claim of them."
    yield _counter("claimjobs_unclaimable_rows", unclaimable, table, report.unclaimable)
    yield _transients(report, table)
    yield _histogram("claimjobs_batch_jobs", "Jobs of each batch.", table, report.times.batch_jobs)
    due = f"Seconds from run_at until the claim, of up to {SAMPLES} jobs of each batch, evenly chosen."
    yield _histogram("claimjobs_due_to_claimed_seconds", due, table, report.times.due_to_claimed)
    settled = "Seconds from the claim until the settle, of each job."
    yield _histogram("claimjobs_claimed_to_settled_seconds", settled, table, report.times.claimed_to_settled)


def of_reading(reading: Reading, table: str) -> Iterator[Metric]:
    """What is in the database. Without a reading only `claimjobs_backlog_readable` is there, and is 0."""
    readable = "1 if the last reading of the backlog succeeded, else 0: then the other figures are old."
    yield _value("claimjobs_backlog_readable", readable, table, reading.error is None)
    backlog = reading.backlog
    if backlog is None:
        return
    yield _value("claimjobs_count_limit", "Jobs of a state are counted up to this number.", table, backlog.limit)
    jobs = {state: getattr(backlog, state) for state in ("unclaimed", "claimed", "dead")}
    yield _by_state("claimjobs_jobs", "Jobs in each state, up to claimjobs_count_limit.", table, jobs)
    due = "Jobs that may be claimed now, among the counted unclaimed ones, which are the first in the queue's order."
    yield _value("claimjobs_due_jobs", due, table, backlog.due)
    oldest = "Seconds for which the oldest of these has been due; 0 if none is."
    yield _value("claimjobs_oldest_due_seconds", oldest, table, backlog.oldest or 0.0)
    yield _by_state("claimjobs_owners", "Owners, by their leases.", table, backlog.owners)
    yield _value("claimjobs_paused", "1 while the queue is paused, else 0.", table, backlog.paused)


def of_processes(table: str, *, consumers: int, replaced: int) -> Iterator[Metric]:
    """What a supervisor knows about its processes."""
    yield _value("claimjobs_consumers", "Consumer processes of this supervisor that run.", table, consumers)
    yield _counter("claimjobs_replaced_processes", "Processes that died and were replaced.", table, replaced)


def _settled(report: Report, table: str) -> Metric:
    family = CounterMetricFamily(
        "claimjobs_settled_jobs", "Jobs by their outcome; `lost`: it was refused.", labels=["table", "outcome"]
    )
    for outcome in OUTCOMES:
        family.add_metric([table, outcome], getattr(report, outcome))
    return family


def _transients(report: Report, table: str) -> Metric:
    family = CounterMetricFamily("claimjobs_transients", "Transactions run again.", labels=["table", "kind"])
    for kind, count in sorted(report.transients.items()):
        family.add_metric([table, kind], count)
    return family


def _counter(name: str, text: str, table: str, value: float) -> Metric:
    family = CounterMetricFamily(name, text, labels=["table"])
    family.add_metric([table], value)
    return family


def _value(name: str, text: str, table: str, value: float) -> Metric:
    """A metric that may rise and fall."""
    family = Metric(name, text, "gauge")
    family.add_sample(name, {"table": table}, float(value))
    return family


def _by_state(name: str, text: str, table: str, values: Mapping[str, float]) -> Metric:
    family = Metric(name, text, "gauge")
    for state, value in values.items():
        family.add_sample(name, {"table": table, "state": state}, float(value))
    return family


def _histogram(name: str, text: str, table: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["table"])
    family.add_metric([table], buckets=histogram.cumulative, sum_value=histogram.sum)
    return family

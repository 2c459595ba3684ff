"""The metrics: their names, labels and help texts, and collectors of them for a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from claimjobs.admin.backlog import LIMIT
from claimjobs.batch.batch_timer import SAMPLES
from claimjobs.metrics.backlog_reader import EVERY, BacklogReader, Reading
from claimjobs.queue.queue import Queue
from claimjobs.report import Report

COUNTS: Final = {
    "enqueued_jobs": ("enqueued", "Jobs enqueued."),
    "claimed_jobs": ("claimed", "Jobs claimed."),
    "claims": ("claims", "Claims, with empty ones."),
    "empty_claims": ("empty_claims", "Claims that got no job."),
    "collisions": ("collisions", "Candidates that another consumer had locked or claimed before."),
    "unclaimable_rows": (
        "unclaimable",
        "Rows that a consumer leaves, because the database refuses every claim of them.",
    ),
}
"""For each counter the field of a report, and the help text."""
TIMES: Final = {
    "batch_jobs": "Jobs of each batch.",
    "due_to_claimed": f"Seconds from run_at until the claim, of up to {SAMPLES} jobs of each batch, evenly chosen.",
    "claimed_to_settled": "Seconds from the claim until the settle, of each job.",
}
OUTCOMES: Final = ("done", "retried", "dead", "released", "suspects", "lost")
"""Fields of a report: what became of claimed jobs."""


class TableCollector(Collector):
    """The metrics of a queue's table. A scrape never waits long for the database."""

    def __init__(self, reader: BacklogReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        return of_reading(self._reader.latest(), self._reader.table)

    def describe(self) -> list[Metric]:
        """No metrics: a registry asks for their names, and must not read the database for that."""
        return []


class QueueCollector(TableCollector):
    """The metrics of a Queue of your own program: `REGISTRY.register(QueueCollector(queue))`.

    It counts what this Queue does, and measures its batches from now on. The figures of the table are read in a thread,
    every `every` seconds at most, and jobs are counted up to `limit` in each state. Raises ConnectionFailed,
    ServerUnfit or UnfitTable.
    """

    def __init__(self, queue: Queue, *, every: float = EVERY, limit: int = LIMIT) -> None:
        queue.measure_batches()
        self._queue = queue
        super().__init__(BacklogReader(queue, every=every, limit=limit))

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        yield from of_report(self._queue.report.copy(), self._reader.table)
        yield from super().collect()


def metrics_page(*collectors: Any) -> WSGIApplication:
    """The page with the metrics of some collectors, which are objects with a method `collect`."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    page: WSGIApplication = make_wsgi_app(registry)
    return page


def of_report(report: Report, table: str) -> Iterator[Metric]:
    """What consumers and producers did."""
    for name, (field, text) in COUNTS.items():
        yield _counter(name, text, table, getattr(report, field))
    outcomes = {outcome: getattr(report, outcome) for outcome in OUTCOMES}
    settled = "Jobs by their outcome; `lost`: it was refused."
    yield _filled(CounterMetricFamily("claimjobs_settled_jobs", settled, labels=["table", "outcome"]), table, outcomes)
    kinds = CounterMetricFamily("claimjobs_transients", "Transactions run again.", labels=["table", "kind"])
    yield _filled(kinds, table, dict(sorted(report.transients.items())))
    for field, text in TIMES.items():
        histogram = getattr(report.times, field)
        name = f"claimjobs_{field}" if field == "batch_jobs" else f"claimjobs_{field}_seconds"
        family = HistogramMetricFamily(name, text, labels=["table"])
        family.add_metric([table], buckets=histogram.cumulative, sum_value=histogram.sum)
        yield family


def of_reading(reading: Reading, table: str) -> Iterator[Metric]:
    """What is in the database. Without a reading only `claimjobs_backlog_readable` is there, and is 0."""
    readable = "1 if the last reading of the backlog succeeded, else 0: then the other figures are old."
    yield _measured("backlog_readable", readable, table, reading.error is None)
    backlog = reading.backlog
    if backlog is None:
        return
    yield _measured("count_limit", "Jobs of a state are counted up to this number.", table, backlog.limit)
    jobs = {state: getattr(backlog, state) for state in ("unclaimed", "claimed", "dead")}
    yield _by_state("jobs", "Jobs in each state, up to claimjobs_count_limit.", table, jobs)
    due = "Jobs that may be claimed now, among the counted unclaimed ones, which are the first in the queue's order."
    yield _measured("due_jobs", due, table, backlog.due)
    retrying = "Jobs that failed and will be tried again, among the counted unclaimed ones."
    yield _measured("retrying_jobs", retrying, table, backlog.retrying)
    oldest = "Seconds for which the oldest of these has been due; 0 if none is."
    yield _measured("oldest_due_seconds", oldest, table, backlog.oldest or 0.0)
    yield _by_state("owners", "Owners, by their leases.", table, backlog.owners)
    yield _measured("paused", "1 while the queue is paused, else 0.", table, backlog.paused)


def of_processes(table: str, *, consumers: int, replaced: int) -> Iterator[Metric]:
    """What a supervisor knows about its processes."""
    yield _measured("consumers", "Consumer processes of this supervisor that run.", table, consumers)
    yield _counter("replaced_processes", "Processes that died and were replaced.", table, replaced)


def _counter(name: str, text: str, table: str, value: float) -> Metric:
    return _filled(CounterMetricFamily(f"claimjobs_{name}", text, labels=["table"]), table, {None: value})


def _measured(name: str, text: str, table: str, value: float) -> Metric:
    return _filled(GaugeMetricFamily(f"claimjobs_{name}", text, labels=["table"]), table, {None: value})


def _by_state(name: str, text: str, table: str, values: Mapping[str, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"claimjobs_{name}", text, labels=["table", "state"]), table, values)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, table: str, values: Mapping[str, float] | Mapping[None, float]
) -> Metric:
    """The family with a value for each value of its second label; None: it has only the label `table`."""
    for label, value in values.items():
        family.add_metric([table] if label is None else [table, label], value)
    return family

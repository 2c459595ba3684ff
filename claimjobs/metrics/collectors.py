"""The metrics: their names, labels and help texts, and collectors of them for a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final
from wsgiref.types import WSGIApplication

from claimjobs.admin.overview import COUNTED_STATES, LIMIT
from claimjobs.batch.batch import SAMPLES
from claimjobs.errors import ExtraMissing
from claimjobs.metrics.backlog_reader import READ_EVERY_SECONDS, BacklogReader, Reading
from claimjobs.queue.queue import Queue
from claimjobs.report import Report
from claimjobs.settle.outcomes import OUTCOME_KINDS

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ExtraMissing("prometheus_client is not installed: run `pip install 'claimjobs[metrics]'`") from error

Figure = tuple[str, str, float | Mapping[str, float]]
"""The name of a metric, its help text and its value; with a label of LABELS a value for each value of that."""
COUNTS: Final = {
    "enqueued_jobs": ("enqueued", "Jobs enqueued."),
    "claimed_jobs": ("claimed", "Jobs claimed."),
    "claims": ("claims", "Claims, with empty ones."),
    "empty_claims": ("empty_claims", "Claims that got no job."),
    "collisions": ("collisions", "Candidates that another consumer had locked or claimed before."),
    "unclaimable_rows": ("unclaimable", "Rows that a consumer leaves: the database refuses every claim of them."),
}
"""For each counter the field of a report, and the help text."""
TIMES: Final = {
    "batch_jobs": "Jobs of each batch.",
    "due_to_claimed": f"Seconds from run_at until the claim, of up to {SAMPLES} jobs of each batch, evenly chosen.",
    "claimed_to_settled": "Seconds from the claim until the settle, of each job.",
}
LABELS: Final = {"settled_jobs": "outcome", "transients": "kind", "jobs": "state", "owners": "state"}
"""The metrics that have a value for each value of a second label."""
OUTCOMES: Final = (*OUTCOME_KINDS, "lost")
"""Fields of a report: what became of claimed jobs."""


class TableCollector(Collector):
    """The metrics of a queue's table. A scrape never waits long for the database."""

    def __init__(self, *readers: BacklogReader) -> None:
        self._readers = readers

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        return chain.from_iterable(of_reading(reader.latest(), reader.table) for reader in self._readers)

    def describe(self) -> list[Metric]:
        """No metrics: a registry asks for their names, and must not read the database for that."""
        return []


class QueueCollector(TableCollector):
    """The metrics of the Queues of your own program, one for each table: `REGISTRY.register(QueueCollector(queue))`.

    It counts what these Queues do, and measures their batches from now on. The figures of a table are read in a thread,
    every `every` seconds at most, and jobs are counted up to `limit` in each state. Raises ConnectionFailed,
    ServerUnfit or UnfitTable.
    """

    def __init__(self, *queues: Queue, every: float = READ_EVERY_SECONDS, limit: int = LIMIT) -> None:
        for queue in queues:
            queue.measure_batches()
        self._queues = queues
        super().__init__(*(BacklogReader(queue, every=every, limit=limit) for queue in queues))

    def collect(self) -> Iterable[Metric]:
        """The metrics now. Each name is there once, with the samples of all tables, as the format requires."""
        found: dict[str, Metric] = {}
        reports = (of_report(queue.report.copy(), queue.table.fullname) for queue in self._queues)
        for metric in chain(*reports, super().collect()):
            if (first := found.setdefault(metric.name, metric)) is not metric:
                first.samples += metric.samples
        return found.values()


def metrics_page(*collectors: Any) -> WSGIApplication:
    """The page with the metrics of some collectors, which are objects with a method `collect`."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    page: WSGIApplication = make_wsgi_app(registry)
    return page


def of_report(report: Report, table: str) -> Iterator[Metric]:
    """What consumers and producers did."""
    figures: list[Figure] = [(name, text, getattr(report, field)) for name, (field, text) in COUNTS.items()]
    outcomes = {outcome: getattr(report, outcome) for outcome in OUTCOMES}
    figures.append(("settled_jobs", "Jobs by their outcome; `lost`: it was refused.", outcomes))
    figures.append(("transients", "Transactions run again.", dict(sorted(report.transients.items()))))
    yield from _metrics(CounterMetricFamily, table, *figures)
    for field, text in TIMES.items():
        histogram = getattr(report.times, field)
        name = f"claimjobs_{field}" if field == "batch_jobs" else f"claimjobs_{field}_seconds"
        family = HistogramMetricFamily(name, text, labels=["table"])
        family.add_metric([table], buckets=histogram.cumulative, sum_value=histogram.sum)
        yield family


def of_reading(reading: Reading, table: str) -> Iterator[Metric]:
    """What is in the database. Without a reading only `claimjobs_backlog_readable` is there, and is 0."""
    readable = "1 if the last reading of the backlog succeeded, else 0: then the other figures are old."
    figures: list[Figure] = [("backlog_readable", readable, reading.error is None)]
    if (backlog := reading.backlog) is not None:
        due = (
            "Jobs that may be claimed now, among the counted unclaimed ones, which are the first in the queue's order."
        )
        retrying = "Jobs that failed and will be tried again, among the counted unclaimed ones."
        oldest = "Seconds for which the oldest of these has been due; 0 if none is."
        jobs = {state: getattr(backlog, state) for state in COUNTED_STATES}
        figures += [
            ("count_limit", "Jobs of a state are counted up to this number.", backlog.limit),
            ("jobs", "Jobs in each state, up to claimjobs_count_limit.", jobs),
            ("due_jobs", due, backlog.due),
            ("retrying_jobs", retrying, backlog.retrying),
            ("oldest_due_seconds", oldest, backlog.oldest or 0.0),
            ("owners", "Owners.", backlog.owners),
            ("paused", "1 while the queue is paused, else 0.", backlog.paused),
        ]
    return _metrics(GaugeMetricFamily, table, *figures)


def of_processes(table: str, *, consumers: int, replaced: int) -> Iterator[Metric]:
    """What a supervisor knows about its processes."""
    running, died = "Consumer processes of this supervisor that run.", "Processes that died and were replaced."
    yield from _metrics(GaugeMetricFamily, table, ("consumers", running, consumers))
    yield from _metrics(CounterMetricFamily, table, ("replaced_processes", died, replaced))


def _metrics(kind: type[CounterMetricFamily | GaugeMetricFamily], table: str, *figures: Figure) -> Iterator[Metric]:
    for name, text, value in figures:
        family = kind(f"claimjobs_{name}", text, labels=["table", LABELS[name]] if name in LABELS else ["table"])
        if isinstance(value, Mapping):
            for label, of_label in value.items():
                family.add_metric([table, label], of_label)
        else:
            family.add_metric([table], value)
        yield family

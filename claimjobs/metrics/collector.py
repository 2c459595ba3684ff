"""Collectors for a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from claimjobs.admin.backlog import LIMIT
from claimjobs.metrics.backlog_reader import EVERY, BacklogReader
from claimjobs.metrics.families import of_reading, of_report
from claimjobs.queue.queue import Queue


class TableCollector(Collector):
    """The metrics of a queue's table. A scrape never waits long for the database."""

    def __init__(self, reader: BacklogReader, table: str) -> None:
        self._reader = reader
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        return of_reading(self._reader.latest(), self._table)

    def describe(self) -> list[Metric]:
        """No metrics: a registry asks for their names, and must not read the database for that."""
        return []


class QueueCollector(Collector):
    """The metrics of a Queue of your own program: `REGISTRY.register(QueueCollector(queue))`.

    It counts what this Queue does, and measures its batches from now on. The figures of the table are read in a thread,
    every `every` seconds at most, and jobs are counted up to `limit` in each state. Raises ConnectionFailed,
    ServerUnfit or UnfitTable.
    """

    def __init__(self, queue: Queue, *, every: float = EVERY, limit: int = LIMIT) -> None:
        queue.measure_batches()
        self._queue = queue
        self._name = queue.table.fullname
        self._table = TableCollector(BacklogReader(queue, self._name, every=every, limit=limit), self._name)

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        yield from of_report(self._queue.report.copy(), self._name)
        yield from self._table.collect()

    def describe(self) -> list[Metric]:
        """No metrics: a registry asks for their names, and must not read the database for that."""
        return []

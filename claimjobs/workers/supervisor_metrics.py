"""SupervisorCollector: the counts of all processes of a supervisor, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from claimjobs.metrics.families import of_processes, of_report
from claimjobs.report import Report
from claimjobs.workers.supervisor import Supervisor


class SupervisorCollector(Collector):
    """The counts of the last snapshot. A process that was replaced stays in them, so no count goes back."""

    def __init__(self, supervisor: Supervisor, table: str) -> None:
        self._supervisor = supervisor
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """The metrics now; before the first snapshot all counts are 0."""
        snapshot = self._supervisor.latest
        yield from of_report(Report() if snapshot is None else snapshot.total, self._table)
        lines = () if snapshot is None else (*snapshot.consumers, *snapshot.generators)
        running = 0 if snapshot is None else sum(line.pid is not None for line in snapshot.consumers)
        yield from of_processes(self._table, consumers=running, replaced=sum(line.restarts for line in lines))

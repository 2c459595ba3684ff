"""The page /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from claimjobs.metrics.http_server import Answer, Page


class MetricsPage(Page):
    """The metrics of some collectors, as Prometheus reads them."""

    path = "/metrics"

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self._registry.register(collector)

    def answer(self) -> Answer:
        """The metrics now."""
        return Answer(generate_latest(self._registry).decode(), type=CONTENT_TYPE_LATEST)

"""Endpoints: the HTTP servers of a supervisor for metrics and health."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from claimjobs.log_events import SERVING
from claimjobs.metrics import require_prometheus_client
from claimjobs.metrics.backlog_reader import BacklogReader
from claimjobs.metrics.http_server import LOOPBACK, HttpServer, Page
from claimjobs.workers.health import LivePage, ReadyPage
from claimjobs.workers.process_main import Plan
from claimjobs.workers.supervisor import Supervisor

log = logging.getLogger("claimjobs.endpoints")


@dataclass(frozen=True)
class Endpoints:
    """Where metrics and health are served; None: not at all. One port for both is one server; 0 is any free port."""

    metrics_port: int | None = None
    health_port: int | None = None
    host: str = LOOPBACK

    @property
    def used(self) -> bool:
        """Whether anything is served."""
        return self.metrics_port is not None or self.health_port is not None

    @contextlib.contextmanager
    def served(self, supervisor: Supervisor, plan: Plan) -> Iterator[None]:
        """Serve while the block lasts. The ports are taken at once. Raises ClaimjobsError or ExtraMissing."""
        queue = plan.queue()
        name = queue.table.fullname
        reader = BacklogReader(queue, name)
        pages: defaultdict[int, list[Page]] = defaultdict(list)
        if self.metrics_port is not None:
            pages[self.metrics_port].append(self._metrics(supervisor, reader, name))
        if self.health_port is not None:
            live = LivePage(supervisor, plan.liveness.max_batch_time)
            pages[self.health_port] += [live, ReadyPage(supervisor, reader)]
        with contextlib.ExitStack() as block:
            block.callback(queue.engine.dispose)
            servers = [HttpServer(self.host, port, served) for port, served in pages.items()]
            for server, served in zip(servers, pages.values(), strict=True):
                block.enter_context(server)
                paths = ", ".join(page.path for page in served)
                url = f"http://{self.host}:{server.port}"
                log.info("%s on %s", paths, url, extra={"event": SERVING, "pages": paths, "url": url})
            yield

    @staticmethod
    def _metrics(supervisor: Supervisor, reader: BacklogReader, table: str) -> Page:
        require_prometheus_client()
        from claimjobs.metrics.collector import TableCollector  # noqa: PLC0415 - an extra
        from claimjobs.metrics.metrics_page import MetricsPage  # noqa: PLC0415
        from claimjobs.workers.supervisor_metrics import SupervisorCollector  # noqa: PLC0415

        return MetricsPage(SupervisorCollector(supervisor, table), TableCollector(reader, table))

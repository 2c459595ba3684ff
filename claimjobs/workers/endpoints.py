"""What a supervisor serves to monitoring: /metrics, and for an orchestrator /livez and /readyz."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from claimjobs.log_events import SERVING
from claimjobs.metrics.backlog_reader import BacklogReader
from claimjobs.metrics.http_server import answer, serving
from claimjobs.report import Report
from claimjobs.workers.process_main import Plan
from claimjobs.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TICKS_WITHIN: Final = 15.0
"""Seconds without a tick after which the supervisor counts as stuck."""
REPORTS_WITHIN: Final = 30.0
"""Seconds without a report after which a consumer counts as stuck. It reports every two seconds."""
LIVE: Final = "/livez"
READY: Final = "/readyz"

log = logging.getLogger("claimjobs.endpoints")


@contextmanager
def monitored(
    supervisor: Supervisor, plan: Plan, host: str, *, metrics_port: int | None, health_port: int | None
) -> Iterator[None]:
    """Serve metrics and health while the block lasts; without a port not. One port for both is one server; 0 is any
    free port. The ports are taken at once. Raises ClaimjobsError or ExtraMissing.
    """
    queue = plan.queue()
    reader, pages = BacklogReader(queue), defaultdict[int, dict[str, WSGIApplication]](dict)

    def live(_environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return _answer(start, stuck(supervisor, plan.liveness.max_batch_time))

    def ready(_environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return _answer(start, missing(supervisor, reader))

    if metrics_port is not None:
        from claimjobs.metrics.collectors import TableCollector, metrics_page  # noqa: PLC0415 - an extra

        counts = SupervisorCollector(supervisor, reader.table)
        pages[metrics_port]["/metrics"] = metrics_page(counts, TableCollector(reader))
    if health_port is not None:
        pages[health_port] |= {LIVE: live, READY: ready}
    with ExitStack() as block:
        block.callback(queue.engine.dispose)
        for port, served in pages.items():
            url = block.enter_context(serving(host, port, served))
            paths = ", ".join(served)
            log.info("%s on %s", paths, url, extra={"event": SERVING, "pages": paths, "url": url})
        yield


def _answer(start: StartResponse, wrong: Iterable[str]) -> list[bytes]:
    """200, or 503 and what is wrong, a line for each."""
    lines = "".join(f"{line}\n" for line in wrong)
    return answer(start, lines, "503 Service Unavailable") if lines else answer(start, "ok\n")


def stuck(supervisor: Supervisor, max_batch_time: float) -> Iterator[str]:
    """What makes no progress, so that only a restart helps.

    A database that cannot be reached is no reason: consumers wait for it. A consumer that is starting, or is about to
    be replaced, counts as alive.
    """
    ticked = supervisor.ticked_at
    if ticked is not None and (silence := time.monotonic() - ticked) > TICKS_WITHIN:
        yield f"the supervisor has not looked after its processes for {silence:.0f} s"
        return
    for slot in supervisor.consumers:
        if slot.silence > REPORTS_WITHIN:
            yield f"consumer {slot.number} has not reported for {slot.silence:.0f} s"
        elif slot.state.stalled > max_batch_time:
            yield f"consumer {slot.number} has made no progress on its batch for {slot.state.stalled:.0f} s"


def missing(supervisor: Supervisor, reader: BacklogReader) -> Iterator[str]:
    """What consumers lack to work: they are started, one of them reports, the database answers, the table fits."""
    if supervisor.ends:
        yield "the run is about to end"
    if starting := sum(not slot.was_ready for slot in supervisor.consumers):
        yield f"{starting} consumers are starting"
    elif all(time.monotonic() - slot.reported_at > REPORTS_WITHIN for slot in supervisor.consumers):
        yield f"no consumer has reported for {REPORTS_WITHIN:g} s"
    if (error := reader.latest().error) is not None:
        yield error


@dataclass(frozen=True)
class SupervisorCollector:
    """The counts of the last snapshot. A process that was replaced stays in them, so no count goes back."""

    supervisor: Supervisor
    table: str

    def collect(self) -> Iterator[Metric]:
        from claimjobs.metrics.collectors import of_processes, of_report  # noqa: PLC0415 - an extra

        snapshot = self.supervisor.latest
        yield from of_report(Report() if snapshot is None else snapshot.total, self.table)
        lines = () if snapshot is None else (*snapshot.consumers, *snapshot.generators)
        running = 0 if snapshot is None else sum(line.pid is not None for line in snapshot.consumers)
        yield from of_processes(self.table, consumers=running, replaced=sum(line.restarts for line in lines))

"""`claimjobs exporter`: serves the metrics of a table, for Prometheus."""

from __future__ import annotations

import click

from claimjobs.admin.backlog import LIMIT
from claimjobs.cli.console import log_as_messages, say
from claimjobs.cli.options import AT_LEAST_1, Seconds, bind, port
from claimjobs.cli.queue_options import Target, queue_options
from claimjobs.metrics import require_prometheus_client
from claimjobs.metrics.backlog_reader import EVERY, BacklogReader
from claimjobs.metrics.http_server import HttpServer
from claimjobs.signals import graceful


@click.command()
@port("--port", "/metrics", required=True)
@bind
@click.option("--every", type=Seconds(), default=EVERY, help="Read the table at most so often.")
@click.option(
    "--limit", type=AT_LEAST_1, default=LIMIT, metavar="JOBS", help="Count the jobs of each state up to this number."
)
@queue_options
def exporter(target: Target, port: int, bind: str, every: float, limit: int) -> None:
    """Serve metrics of a table on /metrics, without consumers, until Ctrl-C or SIGTERM.

    It needs the extra `metrics`, and an account that may SELECT from its table and those of owners and queues. It reads
    at most --limit rows of each state, and not the whole table: a number that is equal to --limit means "so many or
    more". docs/monitoring.md has the list of the metrics.

    If the table cannot be read at the start, the command ends with the exit code of that error. If it cannot be read
    later, claimjobs_backlog_readable is 0, and a line on standard error says why.

    \b
    Examples:
      claimjobs exporter --port 9187
      claimjobs exporter --port 9187 --map orders.toml
    """
    require_prometheus_client()
    from claimjobs.metrics.collector import TableCollector  # noqa: PLC0415 - an extra
    from claimjobs.metrics.metrics_page import MetricsPage  # noqa: PLC0415

    with target.queue() as queue, log_as_messages():
        queue.backlog(limit)
        name = queue.table.fullname
        page = MetricsPage(TableCollector(BacklogReader(queue, name, every=every, limit=limit), name))
        with HttpServer(bind, port, [page]) as server:
            say(f"/metrics of table {name} on http://{bind}:{server.port}")
            with graceful(queue.stop, queue.stop):
                while not queue.stopping:
                    queue.wait(60.0)

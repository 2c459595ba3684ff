"""Latency: consumers whose server is 0.1, 1 or 10 ms away, by batch size. `python -m benchmarks.latency --help`

The delay is that of a round trip: the proxy adds it to what a consumer says, and nothing to the answer. What it really
was is measured with a statement that does nothing, sent many times with it and without it. The fastest of each count:
the others waited for the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks import article, tables
from benchmarks.contestants import LOOPS, OURS, OURS_BATCHES, contestant
from benchmarks.goals import Found, Goal
from benchmarks.harness import Run, run_of, together
from benchmarks.report import Sample, Value
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Drain, by latency"
VARIES = "ms of delay"
UNIT = "jobs/s"
PLOT: Plot = None
SIZES = {
    "delays_ms": [0.1, 1.0, 10.0],
    "batch": [10, 100, 1000],
    "consumers": [1, 4],
    "jobs": {"postgres": 40_000, "mysql": 20_000, "mariadb": 20_000},
    "batches": 150,
}
"""A run has so many batches for each consumer, and at most so many jobs."""
SMALL = {"delays_ms": [1.0], "batch": [10, 100], "jobs": 2_000, "batches": 20}
FULL = {"jobs": {"postgres": 200_000, "mysql": 60_000, "mariadb": 60_000}, "batches": 500}

CLAIMS = {"rows": OURS, "batches": OURS_BATCHES}
"""Contestants by where their claims are recorded."""
ADDED, RECORDED, BATCH, CONSUMERS, TURN = "added ms", "claims", "batch", "consumers", "ms a turn"
"""Headings. A turn is a settle and the next claim."""
TIMES = 300
"""So often the round trip is measured each way."""


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """For each delay: each batch size, with claims in rows and per batch, by one consumer and by several."""
    from servers.proxy import Proxy  # noqa: PLC0415 - servers are slow to import, and a worker needs none

    for delay in sizes.delays_ms:
        with Proxy(server.url, delay / 1000) as proxy:
            added = least_ms(proxy.url) - least_ms(server.url)
            for size in sizes.batch:
                for consumers in sizes.consumers:
                    rows = list(article.payload(min(sizes.jobs, sizes.batches * consumers * size)))
                    for claims in CLAIMS:
                        run = _drain((server.url, proxy.url), rows, claims=claims, size=size, consumers=consumers)
                        yield _sample(run, delay, added, claims=claims, size=size)


def _sample(run: Run, delay: float, added: float, *, claims: str, size: int) -> Sample:
    turn = run.seconds * 1000 * run.consumers * size / run.jobs
    also: dict[str, Value] = {ADDED: added, RECORDED: claims, BATCH: size, CONSUMERS: run.consumers, TURN: turn}
    return Sample(run.contestant, delay, run.rate, also)


def _drain(urls: tuple[str, str], rows: Sequence[tuple[str, str]], *, claims: str, size: int, consumers: int) -> Run:
    """By consumers that go through the second URL."""
    near, far = urls
    opened, options = LOOPS[CLAIMS[claims]]
    name = f"{CLAIMS[claims]}, batches of {size:,}, consumers: {consumers}"
    draining = contestant(name, opened, size=size, **options)
    tables.clear(near)
    draining.setup_tables(near)
    keys = tables.fill(near, rows)
    shares = together(draining, far, consumers)
    tables.verify(near, keys, shares)
    return run_of(name, shares)


def least_ms(url: str) -> float:
    """The fewest milliseconds that a statement takes which does nothing."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        return min(_milliseconds(connection) for _ in range(TIMES))


def _milliseconds(connection: sa.Connection) -> float:
    began = time.perf_counter()
    connection.exec_driver_sql("SELECT 1").close()
    return (time.perf_counter() - began) * 1000


def goals(_found: Found, _backend: str) -> Iterator[Goal]:
    """None: what a round trip costs depends on the network."""
    return iter(())


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("latency")

"""Drain: consumers empty a preloaded table, with a handler that does nothing. `python -m benchmarks.drain --help`

Counted is the time from the start line, which all consumers cross together with their modules imported and their
connections open, to the last settle. After each run every job must have been done once, and none be left.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import article, report
from benchmarks.contestants import (
    BATCHES_ANY_ORDER,
    OURS,
    OURS_BATCHES,
    OURS_HELD,
    RAW,
    batches_in_any_order,
    in_any_order,
    of_batches,
    of_the_article,
    raw_held,
)
from benchmarks.goals import CONSUMERS, Found, Goal
from benchmarks.harness import Contestant, Run, interleaved, run_of, together
from benchmarks.meter import Meter
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from benchmarks.tables import WrongCount, clear, fill, setup_claimjobs, verify
from benchmarks.written import written

if TYPE_CHECKING:
    from servers import Server

__all__ = ["WrongCount", "clear", "contestants", "drain", "fill", "setup_claimjobs", "verify"]

TITLE = "Drain, by consumers"
VARIES = "consumers"
UNIT = "jobs/s"
PLOT: Plot = "lines"
SIZES = {
    "jobs": {"postgres": 120_000, "mysql": 45_000, "mariadb": 45_000},
    "consumers": [1, 2, 4, 8, 10],
    "repeat": 3,
    "held": False,
    "no_letter": False,
    "any_order": False,
    "read_committed": False,
}
SMALL = {"jobs": 2_000, "consumers": [1, 2], "repeat": 1}
FULL = {
    "jobs": {"postgres": 400_000, "mysql": 120_000, "mariadb": 120_000},
    "repeat": 5,
    "held": True,
    "no_letter": True,
}


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """`held` adds the raw loop that is held by a transaction, `no_letter` the article's loop without its letter,
    `any_order` adds other claims in any order, `read_committed` has the article's loop at READ COMMITTED on MySQL.
    """
    rows = list(article.payload(sizes.jobs))
    run = partial(drain, url=server.url, rows=rows, pid=server.pid)
    return map(report.sample, interleaved(list(_chosen(sizes)), sizes.consumers, sizes.repeat, run))


def goals(found: Found, backend: str) -> Iterator[Goal]:
    """Points 1 and 8: the worst of all numbers of consumers counts."""
    yield Goal(1, "drain, of the raw loop", min(found.value(OURS, n) / found.value(RAW, n) for n in CONSUMERS), 0.9)
    held = min(found.value(OURS_HELD, n) / found.value(OURS, n) for n in CONSUMERS)
    yield Goal(1, "hold=transaction, of the lease", held, 1.2)
    best = max(found.value(OURS, n) for n in found.places(OURS))
    yield Goal(1, "10 consumers, of the best number", found.value(OURS, 10) / best, 0.9)
    if (BATCHES_ANY_ORDER, CONSUMERS[-1]) in found:
        yield from _goals_of_batches(found, 1.9 if backend == "postgres" else 1.5)
    yield Goal(8, "client CPU for 1,000 jobs, of the raw loop", max(_cost(found, n) for n in CONSUMERS), 1.3, False)


def _goals_of_batches(found: Found, in_any_order: float) -> Iterator[Goal]:
    def of_raw(name: str, *consumers: int) -> float:
        return min(found.value(name, n) / found.value(RAW, n) for n in consumers)

    written = max(_bytes(found, OURS_BATCHES, n) / _bytes(found, OURS, n) for n in CONSUMERS)
    yield Goal(1, "claims=batches, 1 consumer, of the raw loop", of_raw(OURS_BATCHES, 1), 1.6)
    yield Goal(1, "claims=batches, 4 and 8 consumers, of the raw loop", of_raw(OURS_BATCHES, 4, 8), 1.3)
    yield Goal(
        1,
        "claims=batches in any order, 4 and 8 consumers, of the raw loop",
        of_raw(BATCHES_ANY_ORDER, 4, 8),
        in_any_order,
    )
    yield Goal(1, "claims=batches, log bytes a job, of claims=rows", written, 0.25, False)


def _bytes(found: Found, name: str, consumers: int) -> float:
    return found.also(name, consumers, report.LOG)


def _cost(found: Found, consumers: int) -> float:
    return found.also(OURS, consumers, report.CLIENT) / found.also(RAW, consumers, report.CLIENT)


def _chosen(sizes: argparse.Namespace) -> Iterator[Contestant]:
    yield from of_batches()
    yield batches_in_any_order()
    if sizes.any_order:
        yield from in_any_order()
    if sizes.held:
        yield raw_held()
    yield of_the_article(letters=True, read_committed=sizes.read_committed)
    if sizes.no_letter:
        yield of_the_article(letters=False, read_committed=sizes.read_committed)


def contestants(*, read_committed: bool = False) -> list[Contestant]:
    """All that there are, the raw loop first."""
    everything = argparse.Namespace(held=True, no_letter=True, any_order=True, read_committed=read_committed)
    return list(_chosen(everything))


def drain(
    contestant: Contestant, consumers: int, *, url: str, rows: Sequence[tuple[str, str]], pid: int | None = None
) -> Run:
    """Fill a new table, let the consumers empty it, and see that they did. `pid` is the server's, where it is known."""
    clear(url)
    contestant.setup_tables(url)
    keys = fill(url, rows)
    with written(url) as writes, Meter(pid) as meter:
        shares = together(contestant, url, consumers)
    verify(url, keys, shares)
    return run_of(contestant.name, shares, meter, writes)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("drain")

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
from benchmarks.contestants import of_batches, of_the_article, raw_held
from benchmarks.harness import Contestant, Run, interleaved, run_of, together
from benchmarks.meter import Meter
from benchmarks.report import Sample
from benchmarks.tables import WrongCount, clear, fill, setup_claimjobs, verify

if TYPE_CHECKING:
    from servers import Server

__all__ = ["WrongCount", "clear", "contestants", "drain", "fill", "setup_claimjobs", "verify"]

TITLE = "Drain, by consumers"
VARIES = "consumers"
UNIT = "jobs/s"
SIZES = {
    "jobs": {"postgres": 60_000, "mysql": 20_000, "mariadb": 20_000},
    "consumers": [1, 2, 4, 8, 10],
    "repeat": 3,
    "held": False,
    "no_letter": False,
    "read_committed": False,
}
SMALL = {"jobs": 2_000, "consumers": [1, 2], "repeat": 1}
FULL = {"jobs": {"postgres": 200_000, "mysql": 60_000, "mariadb": 60_000}, "repeat": 5, "held": True, "no_letter": True}


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """`held` adds the raw loop that is held by a transaction, `no_letter` the article's loop without its letter,
    `read_committed` has the article's loop at READ COMMITTED on MySQL.
    """
    rows = list(article.payload(sizes.jobs))
    run = partial(drain, url=server.url, rows=rows, pid=server.pid)
    return map(report.sample, interleaved(list(_chosen(sizes)), sizes.consumers, sizes.repeat, run))


def _chosen(sizes: argparse.Namespace) -> Iterator[Contestant]:
    yield from of_batches()
    if sizes.held:
        yield raw_held()
    yield of_the_article(letters=True, read_committed=sizes.read_committed)
    if sizes.no_letter:
        yield of_the_article(letters=False, read_committed=sizes.read_committed)


def contestants(*, read_committed: bool = False) -> list[Contestant]:
    """All that there are, the raw loop first."""
    everything = argparse.Namespace(held=True, no_letter=True, read_committed=read_committed)
    return list(_chosen(everything))


def drain(
    contestant: Contestant, consumers: int, *, url: str, rows: Sequence[tuple[str, str]], pid: int | None = None
) -> Run:
    """Fill a new table, let the consumers empty it, and see that they did. `pid` is the server's, where it is known."""
    clear(url)
    contestant.setup_tables(url)
    keys = fill(url, rows)
    with Meter(pid) as meter:
        shares = together(contestant, url, consumers)
    verify(url, keys, shares)
    return run_of(contestant.name, shares, meter)


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("drain")

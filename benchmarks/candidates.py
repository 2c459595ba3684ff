"""Candidates from a replica: what a consumer costs the primary with and without. `--help`

The primary and its replica are two servers on this machine, so jobs/s say little: counted is the CPU of the primary for
1,000 jobs. One job of so many meets a predicate that no index serves, and a search reads the others, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks import article, report, tables
from benchmarks.contestants import Ours, ours, share
from benchmarks.goals import Found, Goal
from benchmarks.harness import Contestant, run_of, together
from benchmarks.meter import Meter
from benchmarks.report import Sample
from benchmarks.scenario import Plot
from benchmarks.tables import WrongCount
from claimjobs.contrib.replica import Replica
from servers.replication import Pair, replicated

if TYPE_CHECKING:
    from servers import Server

TITLE = "Load of the primary, with candidates from a replica"
VARIES = "one job of"
UNIT = "ms of the primary's CPU for 1,000 jobs"
PLOT: Plot = None
SIZES: dict[str, Any] = {
    "rows": {"postgres": 300_000, "mysql": 100_000, "mariadb": 100_000},
    "jobs": 10_000,
    "one_of": [1, 10, 100],
    "repeat": 3,
}
SMALL: dict[str, Any] = {"rows": 3_000, "one_of": [1, 10], "repeat": 1}
FULL: dict[str, Any] = {"rows": 1_000_000, "repeat": 5}

PRIMARY: Final = "claimjobs"
REPLICA: Final = "claimjobs, candidates from a replica"


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """Two servers of the kind of `server` are started for it, because one alone has no replica."""
    with replicated(server.backend) as pair:
        for one_of, _, name in product(sizes.one_of, range(sizes.repeat), (PRIMARY, REPLICA)):
            yield _drained(pair, name, one_of, min(sizes.rows, sizes.jobs * one_of))


def _drained(pair: Pair, name: str, one_of: int, rows: int) -> Sample:
    """One consumer does all jobs that meet the predicate. Raises WrongCount."""
    url = pair.primary.url
    tables.clear(url)
    tables.setup_claimjobs(url)
    tables.fill(url, [(text, str(number % one_of)) for number, (text, _) in enumerate(article.payload(rows))])
    pair.wait_until_it_follows()
    opened = partial(_on_replica, candidates=pair.replica.url) if name == REPLICA else _by_predicate
    with Meter(pair.primary.pid) as meter:
        [done] = together(Contestant(name, tables.setup_claimjobs, partial(share, opened=opened)), url, 1)
    left, jobs = tables.count(url), len(range(0, rows, one_of))
    if len(set(done.keys)) != jobs or len(done.keys) != jobs or left != rows - jobs:
        raise WrongCount(f"{len(done.keys)} jobs done, {left} rows left: there were {jobs} of {rows}")
    run = run_of(name, [done], meter)
    cost = (run.server_cost or 0.0) * 1000
    return Sample(name, one_of, cost, {"jobs/s": run.rate, report.CLIENT: run.client_cost * 1000})


@contextmanager
def _by_predicate(url: str, number: int, **options: Any) -> Iterator[Ours]:
    with ours(url, number, where=sa.text("e = '0'"), **options) as loop:
        yield loop


@contextmanager
def _on_replica(url: str, number: int, *, candidates: str) -> Iterator[Ours]:
    """Raises WrongCount if the replica was left: a few claims at the end find nothing there."""
    replica = Replica(candidates)
    with _by_predicate(url, number, locking=replica) as loop:
        yield loop
        claims = loop.queue.report.claims
        if replica.reads < 0.9 * claims:
            raise WrongCount(f"the replica answered {replica.reads} of {claims} searches")


def goals(_found: Found, _backend: str) -> Iterator[Goal]:
    """None was set."""
    return iter(())


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("candidates")

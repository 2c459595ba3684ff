"""Partitions by a hash of the key: whether consumers that each prefer one gain by them. `--help`

The raw loop empties one table, in order and from a random place, and tables with some partitions: in order over all of
them, and each consumer in a partition of its own until that is empty. Beside it claimjobs on one table, in any order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import article, raw, report, tables
from benchmarks.article import connected, is_postgres
from benchmarks.contestants import OURS, RAW, contestant, in_any_order, ours, share
from benchmarks.drain import drain
from benchmarks.goals import Found, Goal
from benchmarks.harness import Contestant, interleaved
from benchmarks.report import Sample
from benchmarks.scenario import Plot

if TYPE_CHECKING:
    from servers import Server

TITLE = "Drain of partitions by a hash of the key"
VARIES = "consumers"
UNIT = "jobs/s"
PLOT: Plot = None
SIZES = {
    "jobs": {"postgres": 120_000, "mysql": 45_000, "mariadb": 45_000},
    "consumers": [1, 2, 4, 8],
    "partitions": [4, 16],
    "repeat": 3,
}
SMALL = {"jobs": 2_000, "consumers": [1, 2], "partitions": [4], "repeat": 1}
FULL: dict[str, int] = {}

DIVIDE = {
    True: (
        "alter table jobs rename to undivided",
        "create table jobs (like undivided including all) partition by hash (id)",
        "alter sequence jobs_id_seq owned by jobs.id",
        "drop table undivided",
    ),
    False: ("alter table jobs partition by hash (id) partitions {count}",),
}
"""By whether it is Postgres."""
PARTITION = "create table jobs_{number} partition of jobs for values with (modulus {count}, remainder {number})"


def measure(server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
    """All in turns."""
    rows = list(article.payload(sizes.jobs))
    run = partial(drain, url=server.url, rows=rows, pid=server.pid)
    return map(report.sample, interleaved(list(_chosen(sizes.partitions)), sizes.consumers, sizes.repeat, run))


def _chosen(partitions: list[int]) -> Iterator[Contestant]:
    yield contestant(RAW, raw.opened)
    yield contestant(OURS, ours)
    yield from in_any_order()
    for count in partitions:
        divided = partial(_setup_divided, count=count)
        yield Contestant(f"raw loop, {count} partitions, in order", divided, partial(share, opened=raw.opened))
        preferred = partial(share, opened=raw.opened, partitions=count)
        yield Contestant(f"raw loop, {count} partitions, one preferred", divided, preferred)


def _setup_divided(url: str, *, count: int) -> None:
    tables.setup_claimjobs(url)
    postgres = is_postgres(url)
    parts = [PARTITION.format(number=number, count=count) for number in range(count)] if postgres else []
    with connected(url) as db, db.cursor() as cursor:
        for statement in (*DIVIDE[postgres], *parts):
            cursor.execute(statement.format(count=count))
        db.commit()


def goals(_found: Found, _backend: str) -> Iterator[Goal]:
    """None: it is for a decision (0031)."""
    return iter(())


if __name__ == "__main__":
    from benchmarks.command import alone

    alone("hash_partitions")

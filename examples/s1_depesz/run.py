"""Each processor empties the same queue with 1, 2, 4 and 8 workers: seconds, rows done twice, and their shares."""

from __future__ import annotations

import argparse
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.article import Connection, connected
from benchmarks.harness import SECONDS_TO_START, Contestant, Share, now, run_of, together
from examples.harness import fill, fresh, make_owners, must, numbers, scalar
from examples.report import NOTHING, Figure
from examples.s1_depesz import ours, processors
from examples.s1_depesz.processors import Process, hashed

ARTICLE = "S1 depesz 2013, Pick a task to work on"
NAME = "s1_depesz"
DEFAULTS: Mapping[str, Any] = {"workers": [1, 2, 4, 8], "jobs": 10_000}
SMALL: Mapping[str, Any] = {"workers": [1, 4], "jobs": 500}
INSERT = "insert into queue (job, priority, added_on) values (%s, %s, %s)"
LONG_AGO = datetime(2013, 1, 1, tzinfo=UTC)

Processor = Callable[[Connection, Process], None]

AUTHORS: dict[str, Processor] = {
    "(a) plain select": processors.plain_select,
    "(b) select for update": processors.select_for_update,
    "(c) processed_by": processors.processed_by,
    "(d) advisory lock": processors.advisory_lock,
}
REPORTED = {
    ("(a) plain select", 2): "all twice",
    ("(b) select for update", 2): "no faster",
    ("(c) processed_by", 1): "twice as slow",
    ("(d) advisory lock", 1): "63.8 s",
    ("(d) advisory lock", 2): "62.3 s",
    ("(d) advisory lock", 4): "30.9 s",
    ("(d) advisory lock", 8): "14.7 s, 1249-1251 each",
}
DOES_TWICE = {"(a) plain select"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=numbers, metavar="N,N,...", help="processes at once")
    parser.add_argument("--jobs", type=int, help="strings to hash")


def run(url: str, options: argparse.Namespace) -> Iterator[Figure]:
    for contestant in contestants():
        for workers in options.workers:
            shares = empty(url, contestant, workers, options.jobs)
            yield Figure(f"{contestant.name}, {workers}", _said(shares), _reported(contestant.name, workers))


def contestants() -> list[Contestant]:
    """The article's four processors, then those with claimjobs."""
    theirs = [Contestant(name, setup, partial(work, name=name)) for name in AUTHORS]
    return [*theirs, *(Contestant(name, setup, partial(ours.work, name=name)) for name in ours.WAYS)]


def setup(url: str) -> None:
    """Make the empty queue and the table of owners."""
    fresh(url, NAME, ["queue"])
    make_owners(url)


def empty(url: str, contestant: Contestant, workers: int, jobs: int) -> list[Share]:
    """Fill the queue, let the workers empty it, and check the result."""
    contestant.setup_tables(url)
    with connected(url) as db:
        fill(db, INSERT, queue(jobs), "queue")
    shares = together(contestant, url, workers)
    with connected(url) as db:
        left = scalar(db, "select count(*) from queue")
    done = Counter(key for share in shares for key in share.keys)
    must(not left and len(done) == jobs, f"{contestant.name}: {left} rows left, {len(done)} of {jobs} done")
    must(contestant.name in DOES_TWICE or twice(shares) == 0, f"{contestant.name}: {twice(shares)} rows done twice")
    return shares


def queue(jobs: int) -> list[tuple[str, int, datetime]]:
    """Random strings of ten priorities, one a millisecond, in no order."""
    rows = [(_string(), random.randrange(10), LONG_AGO + timedelta(milliseconds=i)) for i in range(jobs)]
    random.shuffle(rows)
    return rows


def _string() -> str:
    return "".join(random.choices(string.ascii_letters, k=32))


def work(url: str, _number: int, line: Any, *, name: str) -> Share:
    """Run one worker of the article; its share is the strings that it hashed."""
    done: list[Any] = []
    with connected(url, read_committed=True) as db:
        scalar(db, "select count(*) from queue")
        db.commit()
        line.wait(SECONDS_TO_START)
        began = now()
        AUTHORS[name](db, lambda row: done.append(hashed(row)))
    ended = now()
    return Share(done, began, ended, ended.at, len(done), 0, 0)


def twice(shares: Sequence[Share]) -> int:
    """How many rows more than one worker did."""
    times = Counter(key for share in shares for key in share.keys)
    return sum(count > 1 for count in times.values())


def _said(shares: list[Share]) -> str:
    sizes = [len(share.keys) for share in shares]
    return f"{run_of('', shares).seconds:.1f} s, {twice(shares)} twice, {min(sizes)}-{max(sizes)} each"


def _reported(name: str, workers: int) -> str:
    return REPORTED.get((name, workers), NOTHING)

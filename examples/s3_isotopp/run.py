"""Two generators that commit every ten rows, and ten consumers, each with a random letter, as in the article."""

from __future__ import annotations

import argparse
import random
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

import sqlalchemy as sa

from benchmarks import article, drain
from benchmarks.crew import SPAWN, Worker, gather, orphaned
from claimjobs import Queue
from claimjobs.contrib.replica import Replica
from examples.harness import make_owners, must, rows
from examples.report import Figure

ARTICLE = "S3 isotopp 2021, A job queue in Python"
DEFAULTS: Mapping[str, Any] = {
    "generators": 2,
    "consumers": 10,
    "jobs": 12_000,
    "pause": 0.1,
    "log": False,
    "replica": None,
}
SMALL: Mapping[str, Any] = {"consumers": 4, "jobs": 600, "pause": 0.02}
A_MOMENT = 0.01
"""Seconds before a consumer that found nothing claims again."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--generators", type=int, help="processes that insert")
    parser.add_argument("--consumers", type=int, help="processes that claim")
    parser.add_argument("--jobs", type=int, help="rows to insert and do")
    parser.add_argument("--pause", type=float, help="seconds: of a generator for ten rows, of a consumer for a batch")
    parser.add_argument("--log", action="store_true", help="print what the article's program prints")
    parser.add_argument("--replica", metavar="URL", help="where claimjobs finds candidates, as the article proposes")


def run(url: str, options: argparse.Namespace) -> Iterator[Figure]:
    for way, consumer in {"the author's": consume_as_the_article, "claimjobs": consume_as_claimjobs}.items():
        counts, stints = work(url, consumer, options)
        sizes = [size for stint in stints for size in stint.sizes]
        yield Figure(f"jobs: {way}", f"{sum(sizes):,} in {len(sizes):,} batches, none twice", "12,000 in the log")
        yield Figure(f"records a batch: {way}", f"median {median(sizes):g}, most {max(sizes)}", "1-15, after a stop 31")
        yield Figure(f"the queue at work: {way}", counts, "47 unclaimed, 23 claimed")
        yield Figure(f"claims that came back empty: {way}", f"{sum(x.empty for x in stints):,}", "not counted")


# --- at work -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stint:
    """What one consumer did."""

    done: list[int]
    """The keys of its jobs."""
    sizes: list[int]
    """Of its batches."""
    empty: int
    log: list[str]
    """What the article's program prints."""


Consumer = Callable[[str, int, Any, argparse.Namespace], Stint]


def work(url: str, consumer: Consumer, options: argparse.Namespace) -> tuple[str, list[Stint]]:
    """The queue when half was generated, and the results of the consumers. Checks that every job was done once."""
    drain.clear(url)
    article.setup_tables(url)
    make_owners(url)
    ended = SPAWN.Event()
    consumers = [Worker(consumer, url, number, ended, options) for number in range(1, options.consumers + 1)]
    generated = gather([Worker(generate, url, number, options) for number in range(options.generators)])
    ended.set()
    stints = gather(consumers)
    verify(url, sum(inserted for inserted, _ in generated), stints)
    return generated[0][1], stints


def count(url: str) -> str:
    """The length of the queue by one GROUP BY, as in the article."""
    with article.connected(url) as db:
        counted = rows(db, "select status, count(status) from jobs group by status")
    return ", ".join(f"{number} {status}" for status, number in counted) or "empty"


def verify(url: str, generated: int, stints: list[Stint]) -> None:
    """Each job was done once, and none is left."""
    done = Counter(key for stint in stints for key in stint.done)
    twice = sum(times > 1 for times in done.values())
    must(not twice and len(done) == generated, f"{twice} jobs twice, {len(done)} of {generated} done")
    must(count(url) == "empty", f"left in the table: {count(url)}")


def generate(url: str, number: int, options: argparse.Namespace) -> tuple[int, str]:
    """Insert this generator's share, ten rows at a time; return how many, and the queue after half of them."""
    share = len(range(number, options.jobs, options.generators))
    payload, counter, length = article.payload(share), 0, ""
    with article.connected(url) as db:
        while ten := list(islice(payload, article.COMMIT_EVERY)):
            counter += article.generate(db, ten)
            time.sleep(options.pause)
            if options.log and counter % 1_000 == 0:
                print(f"counter = {counter}", flush=True)
            length = length or (count(url) if counter * 2 >= share else "")
    return counter, length


def line(number: int, keys: list[int]) -> str:
    """As the article's consumer prints it."""
    return f"consumer {number: } #records = {len(keys)} - {keys}"


# --- the article's consumer ----------------------------------------------------------------------------------


def consume_as_the_article(url: str, number: int, ended: Any, options: argparse.Namespace) -> Stint:
    done: list[int] = []
    log: list[str] = []

    def process(jobs: list[article.Row]) -> None:
        done.extend(job[0] for job in jobs)
        log.append(line(number, [job[0] for job in jobs]))
        _work_on(log[-1], options)

    with article.connected(url) as db:
        tally = article.consume(db, number, process, more_to_come=partial(_more_to_come, ended))
    return Stint(done, _sizes(log), tally.empty, log)


def _work_on(said: str, options: argparse.Namespace) -> None:
    if options.log:
        print(said, flush=True)
    time.sleep(options.pause)


def _more_to_come(ended: Any) -> bool:
    return not ended.wait(A_MOMENT) and not orphaned()


def _sizes(log: list[str]) -> list[int]:
    return [int(said.split(" = ")[1].split(" - ")[0]) for said in log]


# --- ours ----------------------------------------------------------------------------------------------------


def some_letter() -> sa.ColumnElement[bool]:
    """Another one for each claim."""
    return sa.column("d", sa.String).startswith(random.choice(string.ascii_lowercase))


def consume_as_claimjobs(url: str, number: int, ended: Any, options: argparse.Namespace) -> Stint:
    done: list[int] = []
    log: list[str] = []
    replica = None if options.replica is None else Replica(options.replica)
    with Queue(url, "jobs", where=some_letter, on_done="delete", locking=replica) as queue:
        misses = 0
        while misses < len(string.ascii_lowercase) or _more_to_come(ended) or queue.stats().unclaimed:
            with queue.claim(article.BATCH) as batch:
                misses = 0 if batch else misses + 1
                if batch:
                    log.append(line(number, [job.id for job in batch.jobs]))
                    done += [job.id for job in batch]
                    _work_on(log[-1], options)
        return Stint(done, _sizes(log), queue.report.empty_claims, log)

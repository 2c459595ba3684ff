"""The article's loop under different plans, then claimjobs with all bonus features."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.article import connected, is_postgres
from benchmarks.crew import SPAWN, Worker, gather, orphaned
from benchmarks.harness import SECONDS_TO_START, Contestant, Share, now, run_of, together
from examples.harness import must, numbers
from examples.report import Figure
from examples.s5_leontrolski import author, bonus, ours, plans
from examples.s5_leontrolski.events import setup, statuses

ARTICLE = "S5 leontrolski 2024, Postgres as queue"
DEFAULTS: Mapping[str, Any] = {"workers": [1, 4], "events": 10_000}
SMALL: Mapping[str, Any] = {"workers": [1, 4], "events": 500}
PLANS = list(plans.PLANS)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=numbers, metavar="N,N,...", help="processes at once")
    parser.add_argument("--events", type=int, help="rows to process")


def run(url: str, options: argparse.Namespace) -> Iterator[Figure]:
    for contestant in contestants():
        for workers in options.workers:
            shares = empty(url, contestant, workers, options.events)
            yield Figure(f"{contestant.name}, {workers}", f"{run_of('', shares).rate:,.0f} events/s, none twice")
    yield Figure("his statement, tried to break", tried_to_break(url, max(options.workers), options.events), "free?")
    yield fence(url) if is_postgres(url) else Figure("one statement, worst plan", "no UPDATE with a CTE", "1 event")
    yield from bonus_features(url)


def contestants() -> list[Contestant]:
    """The author's loop, then the one with claimjobs."""
    empty_queue = partial(setup, count=0)
    theirs = Contestant("his loop", empty_queue, work_as_the_author)
    return [theirs, *(Contestant(name, empty_queue, partial(ours.work, name=name)) for name in ours.WAYS)]


def bonus_features(url: str) -> Iterator[Figure]:
    """The bonus features, as the article describes them."""
    yield Figure(
        "left by a killed worker: his loop", f"{bonus.stuck(url, bonus.hold_as_the_author)} in processing", "retry"
    )
    yield Figure("left by a killed worker: claimjobs", f"{bonus.stuck(url, bonus.hold_as_claimjobs)} in processing")
    yield Figure("retry of odd statuses", bonus.retried(url, 100), "periodically")
    yield Figure("clean-up of what is processed", bonus.cleaned(url, 100), "by cron")
    yield Figure("bundled until the whole hour", bonus.bundled(url, 100), "ignore_before")


# --- emptying the queue --------------------------------------------------------------------------------------


def empty(url: str, contestant: Contestant, workers: int, events: int) -> list[Share]:
    """Fill the queue, let the workers process it, and check the result."""
    setup(url, events)
    shares = together(contestant, url, workers)
    verify(url, shares, events)
    return shares


def verify(url: str, shares: Sequence[Share], events: int) -> None:
    """Each event was processed once, and is marked as processed."""
    done = Counter(key for share in shares for key in share.keys)
    must(len(done) == events and done.total() == events, f"{done.total()} times {len(done)} of {events} events")
    must(statuses(url) == {author.PROCESSED: events}, f"not all are processed: {statuses(url)}")


def work_as_the_author(url: str, _number: int, line: Any, *, plan: str = PLANS[0]) -> Share:
    """One worker of the article, under a given plan."""
    done: list[Any] = []
    with connected(url, read_committed=True) as db:
        plans.force(db, plan)
        line.wait(SECONDS_TO_START)
        began = now()
        author.work(db, done.append)
    ended = now()
    return Share(done, began, ended, ended.at, len(done), 0, 0)


# --- under other plans ---------------------------------------------------------------------------------------


def tried_to_break(url: str, workers: int, events: int) -> str:
    """Many workers, each with another plan, and one session that moves events in the order meanwhile."""
    setup(url, events)
    line, ended = SPAWN.Barrier(workers + 1), SPAWN.Event()
    shuffler = Worker(shuffle, url, line, ended)
    plan_of = [PLANS[number % len(PLANS)] for number in range(workers)]
    shares = gather([Worker(work_as_the_author, url, 0, line, plan=plan) for plan in plan_of])
    ended.set()
    [moved] = gather([shuffler])
    verify(url, shares, events)
    return f"{events:,} events once by {workers} workers, {moved:,} moved meanwhile"


def shuffle(url: str, line: Any, ended: Any) -> int:
    with connected(url, read_committed=True) as db:
        line.wait(SECONDS_TO_START)
        return plans.shuffle(db, lambda: not ended.is_set() and not orphaned())


def fence(url: str) -> Figure:
    """How many events one statement with LIMIT 1 updates under the worst plan, with MATERIALIZED and without."""
    setup(url, 1_000)
    with connected(url) as db:
        plans.force(db, "nested loops over the table")
        taken = {fenced: plans.taken_by_one(db, fenced=fenced) for fenced in (True, False)}
    must(taken[True] == 1, f"a statement with LIMIT 1 took {taken[True]} events")
    return Figure("one statement, worst plan", f"{taken[True]} event; without MATERIALIZED {taken[False]:,}", "1 event")

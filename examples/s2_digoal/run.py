"""The article's three examples with 32 clients: pairs per second, and a check that no half is in two pairs."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.article import connected, is_postgres
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.harness import SECONDS_TO_START
from examples.harness import fill, fresh, must, rows
from examples.report import NOTHING as NO_FIGURE
from examples.report import Figure
from examples.s2_digoal import author
from examples.s2_digoal.author import Author
from examples.s2_digoal.client import ASSIGNED, NOTHING, Client
from examples.s2_digoal.ours import Ours

ARTICLE = "S2 digoal 2017, high-concurrency task allocation"
NAME = "s2_digoal"
DEFAULTS: Mapping[str, Any] = {"clients": 32, "free_workers": 1_000, "tasks": 100_000, "seconds": 20.0}
SMALL: Mapping[str, Any] = {"clients": 8, "free_workers": 50, "tasks": 500, "seconds": 2.0}
TABLES = ["java_pool", "task_pool", "pairs"]
PROCESSES = 2
"""Clients are threads of so many processes, because 32 interpreters would need longer to start than to work."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, help="connections at once")
    parser.add_argument("--free-workers", type=int, help="rows of java_pool")
    parser.add_argument("--tasks", type=int, help="rows of task_pool")
    parser.add_argument("--seconds", type=float, help="how long examples 1 and 3 go on; example 2 ends by itself")


def run(url: str, options: argparse.Namespace) -> Iterator[Figure]:
    for scene in SCENES:
        said = Play(url, scene, Author, options).run() if is_postgres(url) else "no lock that ends with a transaction"
        yield Figure(f"{scene.title}: the author's", said, scene.reported)
    for scene in SCENES:
        yield Figure(f"{scene.title}: claimjobs", Play(url, scene, Ours, options).run(), scene.reported)


# --- one client ----------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """The outcomes of one client."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Worker and task of each assignment."""
    released: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    began: float = 0.0
    ended: float = 0.0

    def note(self, outcome: str, worker: int | None, task: int | None) -> None:
        self.outcomes[outcome] += 1
        if outcome == ASSIGNED:
            assert worker is not None
            assert task is not None
            self.pairs.append((worker, task))


def pick_a_worker(client: Client, ledger: Ledger, options: argparse.Namespace) -> None:
    """As the author's pgbench: a random task gets a worker, a random worker is released."""
    while time.monotonic() < ledger.began + options.seconds:
        task, worker = random.randint(100, options.tasks), random.randint(1, options.free_workers)
        outcome, found = client.pick_worker(task)
        ledger.note(outcome, found, task)
        ledger.released += client.release(worker)


def pick_a_task(client: Client, ledger: Ledger, options: argparse.Namespace) -> None:
    """A random worker out of ten times as many as there are tasks, until no task is free."""
    outcome = ""
    while outcome != NOTHING:
        worker = random.randint(1, options.tasks * 10)
        outcome, task = client.pick_task(worker)
        ledger.note(outcome, worker, task)


def insert_a_pair(client: Client, ledger: Ledger, options: argparse.Namespace) -> None:
    while time.monotonic() < ledger.began + options.seconds:
        worker, task = random.randint(1, options.tasks * 10), random.randint(1, options.tasks * 10)
        outcome, _ = client.insert(worker, task)
        ledger.note(outcome, worker, task)


@dataclass(frozen=True)
class Scene:
    """One of the article's examples."""

    title: str
    table: str
    loop: Callable[[Client, Ledger, argparse.Namespace], None]
    size: str | None
    """The option that says how many rows the table has at the start."""
    reported: str = NO_FIGURE


SCENES = [
    Scene("1 given a task, pick a worker", "java_pool", pick_a_worker, "free_workers", "57,301 calls/s with a release"),
    Scene("2 given a worker, pick a task", "task_pool", pick_a_task, "tasks", "42,693-32,344 pairs/s, about 6 s"),
    Scene("3 insert the pair", "pairs", insert_a_pair, None),
]


# --- all of them ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Play:
    """One example, by one kind of client, on one database."""

    url: str
    scene: Scene
    client: type[Client]
    options: argparse.Namespace

    def run(self) -> str:
        """The result in words."""
        self._set_up()
        ledgers = [ledger for crew in self._at_work() for ledger in crew]
        overwritten = self._verify(ledgers)
        seconds = max(ledger.ended for ledger in ledgers) - min(ledger.began for ledger in ledgers)
        pairs, calls = sum(len(x.pairs) for x in ledgers), sum(x.outcomes.total() for x in ledgers)
        return f"{pairs / seconds:,.0f} pairs/s, {calls / seconds:,.0f} calls/s, {seconds:.1f} s, {overwritten} undone"

    def _set_up(self) -> None:
        fresh(self.url, NAME, TABLES)
        if self.client is Author:
            author.setup(self.url)
        if self.scene.size:
            fill_pool(self.url, self.scene.table, getattr(self.options, self.scene.size))

    def _at_work(self) -> list[list[Ledger]]:
        line = SPAWN.Barrier(self.options.clients)
        shares = [len(range(number, self.options.clients, PROCESSES)) for number in range(PROCESSES)]
        return gather([Worker(self.clients, line, share) for share in shares if share])

    def clients(self, line: Any, share: int) -> list[Ledger]:
        """So many clients in this process."""
        with ThreadPoolExecutor(share) as pool:
            started = [pool.submit(self._client, line) for _ in range(share)]
            return [one.result() for one in started]

    def _client(self, line: Any) -> Ledger:
        ledger, client = Ledger(), self.client(self.url)
        try:
            line.wait(SECONDS_TO_START)
            ledger.began = time.monotonic()
            self.scene.loop(client, ledger, self.options)
            ledger.ended = time.monotonic()
        finally:
            client.close()
        return ledger

    def _verify(self, ledgers: Sequence[Ledger]) -> int:
        """How many pairs were undone because one half was assigned again; with claimjobs none may be."""
        with connected(self.url) as db:
            table = f"select tid, taskid from {self.scene.table} where tid is not null and taskid is not null"
            left = rows(db, table)
        made = [pair for ledger in ledgers for pair in ledger.pairs]
        for half, name in enumerate(("worker", "task")):
            must(len({pair[half] for pair in left}) == len(left), f"{self.scene.title}: a {name} twice")
        must(set(left) <= set(made), f"{self.scene.title}: a pair that no client got")
        undone = len(made) - sum(ledger.released for ledger in ledgers) - len(left)
        must(undone == 0 or self.client is Author, f"{self.scene.title}: {undone} pairs were undone by another")
        return undone


def fill_pool(url: str, table: str, count: int) -> None:
    """So many workers, or tasks, all free."""
    with connected(url) as db:
        key = "tid" if table == "java_pool" else "taskid"
        fill(db, f"insert into {table} ({key}) values (%s)", [(number,) for number in range(1, count + 1)], table)

"""Drain a full queue with claimjobs and with other job queues, each at its best batch size. `make bench-peers`

Each system runs in its best documented settings, in an environment of its own with its versions pinned
(catalogue.py), and in a database of its own on one durable server; claimjobs runs at every batch size that one of them
has. The clock runs from the start line, which all workers cross together, to the last job that is done in the
database. After each run every job must have been done once, and none be left.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import article, machine
from benchmarks.peers import race, report
from benchmarks.peers.catalogue import (
    CLAIMJOBS,
    CLAIMJOBS_BATCHES,
    CLAIMJOBS_PER_KEY,
    MYSQL,
    PEERS,
    PER_KEY,
    POSTGRES,
    Peer,
    claimjobs_at,
)
from benchmarks.peers.driver import Order
from benchmarks.peers.environments import Environment, NotHere, environment
from benchmarks.peers.report import Absence
from servers import Server, start
from servers.sources import Backend

FEWEST_JOBS = 50
OURS = {"rows": CLAIMJOBS, "batches": CLAIMJOBS_BATCHES, "per-key": CLAIMJOBS_PER_KEY}


@dataclass
class Tally:
    """What came out of the runs on one server."""

    outcomes: list[race.Outcome] = field(default_factory=list)
    absences: dict[str, str] = field(default_factory=dict)
    """Why a system has no figure."""

    def told(self) -> list[Absence]:
        return [Absence(title, why) for title, why in self.absences.items()]


def main() -> None:
    options = _parser().parse_args()
    before = machine.load()
    here, missing = environments(_chosen(options))
    if options.install:
        print(*(f"{title}: {why}" for title, why in missing.items()), sep="\n")
        return
    results = {backend: _on(backend, options, here, missing) for backend in options.backend}
    facts = {"command": _command(), "remarks": machine.remarks(before), "repeat": options.repeat, "servers": results}
    if options.json:
        report.write(options.json, facts)


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]])


def _chosen(options: argparse.Namespace) -> list[Peer]:
    return [peer for peer in (*PEERS, *PER_KEY) if peer.module in (options.only or [peer.module for peer in PEERS])]


def _sized(options: argparse.Namespace) -> list[Peer]:
    """The chosen ones, at the batch sizes that are asked for, or at their best."""
    return [replace(peer, batch=size) for peer in _chosen(options) for size in options.batch or [peer.batch]]


def environments(peers: Sequence[Peer]) -> tuple[dict[str, Environment], dict[str, str]]:
    """Of each system, made where they are not there yet; and why some have none."""
    here, missing = {}, {}
    for peer in (*OURS.values(), *peers):
        try:
            here[peer.module] = environment(peer)
        except NotHere as reason:
            missing[peer.title] = str(reason)
            print(f"NOT RUN: {peer.title}: {reason}", file=sys.stderr, flush=True)
    return here, missing


def contestants(backend: str, peers: Sequence[Peer], claims: Sequence[str] = ("rows",)) -> list[Peer]:
    """Those that run there, and claimjobs with each kind of claims at each batch size that one of them has."""
    there = [peer for peer in peers if backend in peer.jobs]
    sizes = sorted({peer.batch for peer in there})
    return [*(claimjobs_at(size, OURS[kind]) for kind in claims for size in sizes), *there]


# --- one server ----------------------------------------------------------------------------------------------


def _on(
    backend: Backend, options: argparse.Namespace, here: dict[str, Environment], missing: dict[str, str]
) -> dict[str, Any]:
    """All runs on one server; tells the table, returns everything."""
    racing = contestants(backend, [peer for peer in _sized(options) if peer.module in here], options.claims)
    jobs = {peer.name: max(FEWEST_JOBS, round(peer.jobs[backend] * options.scale)) for peer in racing}
    tally = Tally(absences=dict(missing))
    with start(backend) as server, tempfile.TemporaryDirectory(prefix="claimjobs-peers-") as folder:
        rows = Path(folder, "rows")
        race.write_rows(rows, max(jobs.values()))
        order = partial(Order, url=server.url, rows=str(rows), number=0)
        for peer, workers in turns(racing, options.workers, options.repeat):
            _run(tally, peer, here[peer.module], order(jobs=jobs[peer.name], batch=peer.batch, workers=workers))
        race.drop(server.url)
        heading = _heading(server, options)
    print(*heading, "", report.table(tally.outcomes, tally.told()), "", sep="\n", flush=True)
    return {"heading": heading, **report.as_json(tally.outcomes, tally.told())}


def turns(peers: Sequence[Peer], workers: Sequence[int], repeat: int) -> Iterator[tuple[Peer, int]]:
    """For each number of workers: A B C, A B C, ..."""
    for count in workers:
        for _ in range(repeat):
            for peer in peers:
                yield peer, count


def _run(
    tally: Tally,
    peer: Peer,
    environment: Environment,
    order: Order,
    *,
    run: Callable[[Peer, Environment, Order], race.Outcome] = race.run,
) -> None:
    """A run that fails is told, and the system has no further one: the others go on."""
    if peer.name in tally.absences:
        return
    print(f"{order.workers:>3} {peer.name} ...", end=" ", file=sys.stderr, flush=True)
    try:
        outcome = run(peer, environment, order)
    except race.RunFailed as reason:
        tally.absences[peer.name] = f"with {order.workers} workers: {reason}"
        print(f"FAILED: {reason}", file=sys.stderr, flush=True)
        return
    tally.outcomes.append(outcome)
    print(f"{outcome.rate:,.0f} jobs/s", file=sys.stderr, flush=True)


def _heading(server: Server, options: argparse.Namespace) -> list[str]:
    settings = machine.durability(server.backend, server.url)
    return [
        f"{server.backend} {server.version} ({server.how}); {', '.join(f'{k}={v}' for k, v in settings.items())}",
        f"jobs of two {article.LENGTH}-character strings, a handler that does nothing; medians of {options.repeat} "
        "interleaved runs, each job verified done once",
    ]


# --- the command ---------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--backend", nargs="+", choices=(POSTGRES, MYSQL), default=[POSTGRES, MYSQL])
    parser.add_argument("--only", nargs="+", choices=[peer.module for peer in (*PEERS, *PER_KEY)], help="not all")
    parser.add_argument("--claims", nargs="+", choices=[*OURS], default=["rows"], help="what a claim of ours writes")
    parser.add_argument("--batch", type=_numbers, metavar="N,N,...", help="not the best sizes that are known: find out")
    parser.add_argument("--workers", type=_numbers, default=[1, 2, 4], metavar="N,N,...", help="processes at once")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contestant")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the jobs of each run")
    parser.add_argument("--install", action="store_true", help="make the environments, and run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()

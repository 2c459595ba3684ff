"""Harness: contestants take turns on one server, run by run, so that what changes meanwhile changes for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks import machine
from benchmarks.crew import SPAWN, Worker, gather
from benchmarks.meter import Load, Meter, Used, limit
from benchmarks.written import Written

SECONDS_TO_START = 120.0


@dataclass(frozen=True)
class Moment:
    """Clocks, read at one time. All count seconds."""

    at: float
    own: float
    """CPU of this process."""
    busy: float
    """CPU of the whole machine, by whomever."""


def now() -> Moment:
    times = psutil.cpu_times()
    return Moment(time.monotonic(), time.process_time(), sum(times) - times.idle - times.iowait)


@dataclass(frozen=True)
class Share:
    """What one consumer did of a run."""

    keys: list[int]
    began: Moment
    ended: Moment
    last: float
    """When its last batch was settled, on the monotonic clock."""
    claims: int
    empty: int
    """Claims that took nothing."""
    again: int
    """Transactions run again after a deadlock or a lock timeout."""


@dataclass(frozen=True)
class Contestant:
    """A name, an empty table of its own, and a consumer: a function of URL, number and start line that returns a
    Share. It connects first, then waits at the start line, and reads `now()` when it may go and when it is done.
    """

    name: str
    setup_tables: Callable[[str], object]
    consume: Callable[[str, int, Any], Share]


@dataclass(frozen=True)
class Run:
    """One contestant's drain of a full table."""

    contestant: str
    consumers: int
    jobs: int
    seconds: float
    """From the start of the first consumer to the last settle of any."""
    claims: int
    empty: int
    again: int
    client_cores: float
    """Cores that the consumers kept busy, on average."""
    busy_cores: float
    """Cores that were busy, on average: the consumers, the server and everybody else."""
    client_seconds: float = 0.0
    """CPU of the consumers."""
    server_seconds: float | None = None
    """CPU of the server, where it is known."""
    disk: float | None = None
    """The share of the time in which somebody waited for the disk, where it is known."""
    limit: str = ""
    """What limited it, by what was measured."""
    log_bytes: int | None = None
    """What the server wrote to its log, where it was counted."""
    dead_rows: int | None = None
    """Versions of rows that an UPDATE or a DELETE left, where they were counted."""

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds

    @property
    def client_cost(self) -> float:
        """CPU seconds of the consumers for 1,000 jobs."""
        return self.client_seconds * 1000 / self.jobs

    def each(self, count: int | None) -> float | None:
        """A count for each job, where it is known."""
        return None if count is None else count / self.jobs

    @property
    def server_cost(self) -> float | None:
        """CPU seconds of the server for 1,000 jobs, where it is known."""
        return None if self.server_seconds is None else self.server_seconds * 1000 / self.jobs


def together(contestant: Contestant, url: str, consumers: int) -> list[Share]:
    """Let the consumers start at the same time; return their shares."""
    line = SPAWN.Barrier(consumers)
    return gather([Worker(contestant.consume, url, number, line) for number in range(1, consumers + 1)])


def run_of(contestant: str, shares: Sequence[Share], meter: Meter | None = None, writes: Written | None = None) -> Run:
    """Add up what the consumers did; `meter` and `writes` have looked at the server meanwhile."""
    began, ended = min(share.began.at for share in shares), max(share.ended.at for share in shares)
    whole = ended - began
    busy = max(share.ended.busy for share in shares) - min(share.began.busy for share in shares)
    client = sum(share.ended.own - share.began.own for share in shares)
    used = meter.between(began, ended) if meter else Used()
    load = Load(len(shares), machine.cores(), client / whole, busy / whole, used)
    return Run(
        contestant=contestant,
        consumers=len(shares),
        jobs=sum(len(share.keys) for share in shares),
        seconds=max(share.last for share in shares) - began,
        claims=sum(share.claims for share in shares),
        empty=sum(share.empty for share in shares),
        again=sum(share.again for share in shares),
        client_cores=client / whole,
        busy_cores=busy / whole,
        client_seconds=client,
        server_seconds=None if used.server is None else used.server * whole,
        disk=used.disk,
        limit=limit(load),
        log_bytes=writes.log_bytes if writes else None,
        dead_rows=writes.dead_rows if writes else None,
    )


def interleaved(
    contestants: Sequence[Contestant], consumers: Sequence[int], repeat: int, run: Callable[[Contestant, int], Run]
) -> Iterator[Run]:
    """For each number of consumers: A B C, A B C, ..."""
    for count in consumers:
        for _ in range(repeat):
            for contestant in contestants:
                yield run(contestant, count)

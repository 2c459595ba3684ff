"""Sizes: what one primary carries, by its cores, the kind of claims and the size of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scale.costs import Costs, Results
from benchmarks.scale.model import Cores, consumers_for, throughput

BUSY = 0.9
"""Of what the cores carry: from here on more consumers make hardly more jobs a second."""
HANDLERS_MS = (1.0, 10.0, 100.0)
"""For a job."""


@dataclass(frozen=True)
class Primary:
    """A machine with nothing on it but the server."""

    cores: int
    round_trip: float
    """Seconds from a consumer to it and back."""

    def rate(self, costs: Costs, consumers: int, handler: float) -> float:
        """Jobs a second of so many consumers, whose handler takes so many seconds for a job."""
        return throughput(consumers, self._away(costs, handler), Cores(self.cores, costs.server)) * costs.batch

    def most(self, costs: Costs) -> float:
        """Jobs a second at which its cores are busy, with the competition of many consumers."""
        return BUSY * Cores(self.cores, costs.server).most * costs.batch

    def consumers(self, costs: Costs, handler: float, jobs: float | None = None) -> int:
        """So many do so many jobs a second; None: so many make its cores busy."""
        turns = (self.most(costs) if jobs is None else jobs) / costs.batch
        return consumers_for(turns, self._away(costs, handler), Cores(self.cores, costs.server))

    def _away(self, costs: Costs, handler: float) -> float:
        return costs.away(self.round_trip) + handler * costs.batch


@dataclass(frozen=True)
class Size:
    """A primary that is busy."""

    claims: str
    batch: int
    cores: int
    jobs: float
    """A second."""
    log_megabytes: float
    """A second."""
    client_cores: float
    """Cores that claiming and settling needs on the consumers' machines, without the handlers."""
    consumers: Mapping[float, int]
    """That make it busy, by the milliseconds of a job; each has a connection."""


def size(
    results: Results, claims: str, batch: int, primary: Primary, *, handlers_ms: Sequence[float] = HANDLERS_MS
) -> Size:
    """Raises NotMeasured."""
    costs = results.costs(claims, batch)
    jobs = primary.most(costs)
    turns = jobs / batch
    return Size(
        claims,
        batch,
        primary.cores,
        jobs,
        log_megabytes=turns * costs.log_bytes / 1e6,
        client_cores=turns * costs.client.at(1),
        consumers={handler: primary.consumers(costs, handler / 1000) for handler in handlers_ms},
    )


def lines(sizes: Sequence[Size]) -> Iterator[tuple[str, ...]]:
    """A table, the heading first. All sizes have consumers for the same jobs."""
    handlers = [f"consumers, {handler:g} ms a job" for handler in sizes[0].consumers]
    yield ("claims", "batch", "cores", "jobs/s", "log MB/s", "client cores", *handlers)
    for found in sizes:
        yield (
            found.claims,
            f"{found.batch:,}",
            f"{found.cores}",
            f"{found.jobs:,.0f}",
            f"{found.log_megabytes:,.0f}",
            f"{found.client_cores:.1f}",
            *(f"{consumers:,}" for consumers in found.consumers.values()),
        )


# --- from the jobs a second that are wanted ------------------------------------------------------------------

STEPS = (("rows", 100), ("rows", 500), ("rows", 1_000), ("batches", 1_000), ("rows", 10))
"""The kind of claims and the size of a batch, the simplest first. Batches of 10 are for slow handlers alone."""
CORES = (2, 4, 8)
RESERVE = 2
"""A primary must carry so many times the rate: the model may promise so many times too much."""
LONGEST = 5.0
"""Seconds that a batch may take: all its jobs are held until its end."""


@dataclass(frozen=True)
class Step:
    """What does so many jobs a second, with a reserve."""

    claims: str
    batch: int
    cores: int
    consumers: int
    """Without a reserve: they can be added at any time."""
    log_megabytes: float
    """A second."""


def step_for(results: Results, jobs: float, round_trip: float, handler: float) -> Step | None:
    """The fewest cores, and of these the simplest step, that do so many jobs a second; None: those of `CORES` do not.

    `handler`: seconds for a job. Raises NotMeasured.
    """
    for cores in CORES:
        primary = Primary(cores, round_trip)
        for claims, batch in _steps(handler):
            costs = results.costs(claims, batch)
            if primary.most(costs) >= RESERVE * jobs:
                consumers = primary.consumers(costs, handler, jobs)
                return Step(claims, batch, cores, consumers, jobs / batch * costs.log_bytes / 1e6)
    return None


def _steps(handler: float) -> Sequence[tuple[str, int]]:
    """Those whose batches do not take too long. The smallest batch is left if all do."""
    return [(claims, batch) for claims, batch in STEPS if batch * handler <= LONGEST] or STEPS[-1:]


def step_lines(
    results: Results, rates: Sequence[float], round_trip: float, handlers_ms: Sequence[float]
) -> Iterator[tuple[str, ...]]:
    """A table of what is enough for these rates, the heading first."""
    yield ("jobs/s", "ms a job", "cores", "claims", "batch", "consumers", "log MB/s")
    for rate in rates:
        for handler in handlers_ms:
            found = step_for(results, rate, round_trip, handler / 1000)
            wanted = (f"{rate:,.0f}", f"{handler:g}")
            if found is None:
                yield (*wanted, f"more than {CORES[-1]}", *["-"] * 4)
            else:
                log = f"{found.log_megabytes:,.1f}"
                yield (*wanted, f"{found.cores}", found.claims, f"{found.batch:,}", f"{found.consumers:,}", log)

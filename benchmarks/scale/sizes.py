"""Sizes: what one primary carries, by its cores, the kind of claims and the size of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.scale.costs import Costs, Results
from benchmarks.scale.model import Cores, consumers_for, throughput

BUSY = 0.9
"""Of what the cores carry: from here on more consumers make hardly more jobs a second."""
HANDLERS_MS = (1, 10, 100)
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
    consumers: Sequence[int]
    """That make it busy, by `HANDLERS_MS`; each has a connection."""


def size(results: Results, claims: str, batch: int, primary: Primary) -> Size:
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
        consumers=[primary.consumers(costs, milliseconds / 1000) for milliseconds in HANDLERS_MS],
    )


def lines(sizes: Sequence[Size]) -> Iterator[tuple[str, ...]]:
    """A table, the heading first."""
    handlers = [f"consumers, {milliseconds} ms a job" for milliseconds in HANDLERS_MS]
    yield ("claims", "batch", "cores", "jobs/s", "log MB/s", "client cores", *handlers)
    for found in sizes:
        yield (
            found.claims,
            f"{found.batch:,}",
            f"{found.cores}",
            f"{found.jobs:,.0f}",
            f"{found.log_megabytes:,.0f}",
            f"{found.client_cores:.1f}",
            *(f"{consumers:,}" for consumers in found.consumers),
        )


# --- from the jobs a second that are wanted ------------------------------------------------------------------

STEPS = (("rows", 100), ("rows", 1_000), ("batches", 1_000))
"""The kind of claims and the size of a batch, the simplest first."""
CORES = (2, 4, 8)


@dataclass(frozen=True)
class Step:
    """What does so many jobs a second, and is not busy with it."""

    claims: str
    batch: int
    cores: int
    consumers: int
    log_megabytes: float
    """A second."""


def step_for(results: Results, jobs: float, round_trip: float, handler: float) -> Step | None:
    """The fewest cores, and of these the simplest step, that do so many jobs a second; None: those of `CORES` do not.

    Raises NotMeasured.
    """
    for cores in CORES:
        primary = Primary(cores, round_trip)
        for claims, batch in STEPS:
            costs = results.costs(claims, batch)
            if primary.most(costs) >= jobs:
                consumers = primary.consumers(costs, handler, jobs)
                return Step(claims, batch, cores, consumers, jobs / batch * costs.log_bytes / 1e6)
    return None

"""Costs: what a turn costs, read from the files that the scenarios `drain`, `batch_size` and `round_trip` wrote.

A turn is the settle of one batch and the claim of the next. `drain` has batches of 100 by one and more consumers.
`batch_size` has two consumers: how the cost of other batches grows with consumers is taken from `drain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report, scenario
from benchmarks.article import BATCH
from benchmarks.contestants import OURS, OURS_BATCHES
from benchmarks.goals import Found
from benchmarks.round_trip import TRIPS
from benchmarks.scale.model import Curve
from benchmarks.scenario import Record

RESULTS = Path(__file__).parents[1] / "results"
NAMES = {"rows": OURS, "batches": OURS_BATCHES}
"""By the kind of claims the name of the contestant."""
NEEDED = ("drain", "batch_size", "round_trip", "slow_handlers")
WITH_HANDLERS, LATENCY = "with_handlers", "latency"
"""More runs that a prediction is held against, if they are there."""
TWO = 2
"""Consumers of `batch_size`."""
OF_1000_IN_MS = 1e-6


class NotMeasured(Exception):
    """A cost stands in no file: says which scenario to run first."""


@dataclass(frozen=True)
class Costs:
    """Of a turn."""

    batch: int
    client: Curve
    """CPU seconds of a consumer, by how many consumers compete."""
    server: Curve
    """CPU seconds of the server."""
    commit: float
    """Seconds in which one consumer waits for the disk."""
    trips: float
    """Answers of the server that it waits for."""
    log_bytes: float
    """Bytes that the server writes to its log."""

    @property
    def both(self) -> Curve:
        """CPU seconds of consumer and server, where they share the cores of one machine."""
        return Curve([(n, value + self.client.at(n)) for n, value in self.server.points])

    def away(self, round_trip: float) -> float:
        """Seconds of a turn that are not the server's CPU, with a consumer on another machine and a core of its own."""
        return self.client.at(1) + self.commit + self.trips * round_trip


@dataclass(frozen=True)
class Results:
    """What was measured on one kind of server."""

    backend: str
    records: Mapping[str, Record]
    """By scenario."""

    @property
    def title(self) -> str:
        """The server's name and version."""
        return self.records["drain"].title

    @property
    def cores(self) -> int:
        """Of the machine of the drains, which consumers and server shared."""
        return int(self.records["drain"].facts["machine"].split()[0])

    def found(self, name: str) -> Found:
        """The figures of a scenario."""
        return Found(self.records[name].figures)

    def costs(self, claims: str, batch: int) -> Costs:
        """Raises NotMeasured for a size of a batch that no scenario had."""
        name = NAMES[claims]
        drain = self.found("drain")
        if batch not in (BATCH, *self.found("batch_size").places(name)):
            run = f"python -m benchmarks.batch_size --batch 10,{batch},1000 --backend {self.backend} --json FOLDER"
            raise NotMeasured(f"batches of {batch} were not measured on {self.backend}: run `{run}` first")
        return Costs(
            batch,
            client=self._cpu(name, report.CLIENT, batch),
            server=self._cpu(name, report.SERVER, batch),
            commit=drain.also(name, 1, report.DISK) * BATCH / drain.value(name, 1),
            trips=self._trips(name),
            log_bytes=self._log_bytes(name, batch) * batch,
        )

    def _cpu(self, name: str, heading: str, batch: int) -> Curve:
        drain = self.found("drain")
        curve = Curve([(n, drain.also(name, n, heading)) for n in sorted(drain.places(name))])
        of_this = curve.at(TWO) if batch == BATCH else self.found("batch_size").also(name, batch, heading)
        return curve.times(of_this / curve.at(TWO) * OF_1000_IN_MS * batch)

    def _trips(self, name: str) -> float:
        """An older file has no claims per batch: their turn waits as often as that of claims in rows."""
        trips = self.found("round_trip")
        return trips.also(name if (name, 0) in trips else OURS, 0, TRIPS)

    def _log_bytes(self, name: str, batch: int) -> float:
        if batch == BATCH:
            return self.found("drain").also(name, 1, report.LOG)
        return self.found("batch_size").also(name, batch, report.LOG)


def read(backend: str, folder: Path = RESULTS) -> Results:
    """What the files of a folder say of a kind of server. Raises NotMeasured."""
    paths = {name: folder / f"{name}-{backend}.json" for name in (*NEEDED, WITH_HANDLERS, LATENCY)}
    if missing := [name for name in NEEDED if not paths[name].exists()]:
        run = f"python -m benchmarks --only {' '.join(missing)} --backend {backend} --json {folder}"
        raise NotMeasured(f"{folder} has no costs on {backend}: run `{run}` first")
    return Results(backend, {name: scenario.read(path) for name, path in paths.items() if path.exists()})

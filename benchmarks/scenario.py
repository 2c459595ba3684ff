"""Scenario: what each file of measurements offers, and what is written down of a run of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from benchmarks import report
from benchmarks.report import Figure, Sample

if TYPE_CHECKING:
    from servers import Server

NAMES = (
    "drain",
    "batch_size",
    "order",
    "held_snapshot",
    "backlog",
    "round_trip",
    "slow_handlers",
    "client",
)
"""The modules of `benchmarks` that are scenarios, in the order in which they run and are shown."""


class Scenario(Protocol):
    """A module that measures one thing. Add one: write this, and put its name among `NAMES`."""

    TITLE: str
    """What is measured: a line."""
    VARIES: str
    """What `Sample.at` is."""
    UNIT: str
    """Of `Sample.value`."""
    SIZES: Mapping[str, Any]
    """How much of it, by name; each is an option of the command. A mapping: by the kind of server."""
    SMALL: Mapping[str, Any]
    """What is less, to see that it works."""
    FULL: Mapping[str, Any]
    """What is more, where time does not matter."""

    def measure(self, server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
        """Measure on this server, sample by sample."""


@dataclass(frozen=True)
class Record:
    """A run of a scenario on one server, as it stands in a file."""

    scenario: str
    backend: str
    server: str
    command: str
    facts: Mapping[str, Any]
    """Machine, versions, durability, sizes, remarks."""
    samples: Sequence[Sample]

    @property
    def module(self) -> Scenario:
        return named(self.scenario)

    @property
    def figures(self) -> list[Figure]:
        return report.figures(self.samples)

    def lines(self) -> list[tuple[str, ...]]:
        """As lines of a table, the heading first."""
        return report.lines(self.figures, self.module.VARIES, self.module.UNIT)

    def write(self, folder: Path) -> None:
        """Into a file of the folder, for a machine to read."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1) + "\n"
        (folder / f"{self.scenario}-{self.backend}.json").write_text(text, encoding="utf-8")


def named(name: str) -> Scenario:
    """The scenario of this name."""
    return cast("Scenario", import_module(f"benchmarks.{name}"))


def read(path: Path) -> Record:
    """What a file says."""
    said = json.loads(path.read_text(encoding="utf-8"))
    return Record(**{**said, "samples": [Sample(**sample) for sample in said["samples"]]})


def sizes_of(scenario: Scenario, *, small: bool = False, full: bool = False) -> dict[str, Any]:
    """How much a scenario measures, where nothing else is said."""
    return {**scenario.SIZES, **(scenario.SMALL if small else {}), **(scenario.FULL if full else {})}


def for_server(sizes: Mapping[str, Any], backend: str) -> argparse.Namespace:
    """The same, with what depends on the kind of server decided."""
    return argparse.Namespace(**{name: _chosen(size, backend) for name, size in sizes.items()})


def _chosen(size: Any, backend: str) -> Any:
    return size[backend] if isinstance(size, Mapping) else size

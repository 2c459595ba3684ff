"""Scenario: what each file of measurements offers, and what is written down of a run of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from benchmarks import report
from benchmarks.chart import Chart, Line
from benchmarks.goals import Found, Goal
from benchmarks.report import Figure, Sample

if TYPE_CHECKING:
    from servers import Server

NAMES = (
    "drain",
    "batch_size",
    "order",
    "held_snapshot",
    "backlog",
    "pickup",
    "idle",
    "enqueue",
    "round_trip",
    "latency",
    "slow_handlers",
    "many_at_once",
    "one_transaction",
    "few_per_key",
    "with_handlers",
    "client",
    "candidates",
)
"""The modules of `benchmarks` that are scenarios, in the order in which they run and are shown."""


Plot = Literal["lines", "logarithmic", "course", None]
"""Values over what is varied; the same over a logarithmic axis; the course of each sample; nothing."""


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

    PLOT: Plot
    """What is drawn of it."""

    def measure(self, server: Server, sizes: argparse.Namespace) -> Iterator[Sample]:
        """Measure on this server, sample by sample."""

    def goals(self, found: Found, backend: str) -> Iterator[Goal]:
        """What was to be reached. Raises KeyError where not all of it was measured."""


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

    @property
    def goals(self) -> list[Goal]:
        """What was to be reached; nothing of a run that left out what they need."""
        with suppress(KeyError):
            return list(self.module.goals(Found(self.figures), self.backend))
        return []

    def chart(self) -> Chart:
        """As a panel of a picture."""
        draw = _courses if self.module.PLOT == "course" else _lines
        along = "seconds" if self.module.PLOT == "course" else self.module.VARIES
        logarithmic = self.module.PLOT == "logarithmic"
        return Chart(f"{self.module.TITLE}: {self.title}", along, self.module.UNIT, draw(self.figures), logarithmic)

    @property
    def title(self) -> str:
        """The server's name and version."""
        return self.server.partition(" (")[0]

    def lines(self) -> list[tuple[str, ...]]:
        """As lines of a table, the heading first."""
        return report.lines(self.figures, self.module.VARIES, self.module.UNIT)

    def write(self, folder: Path) -> None:
        """Into a file of the folder, for a machine to read."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1) + "\n"
        (folder / f"{self.scenario}-{self.backend}.json").write_text(text, encoding="utf-8")


def _lines(figures: Sequence[Figure]) -> list[Line]:
    names = dict.fromkeys(figure.contestant for figure in figures)
    return [Line(name, [(f.at, f.value) for f in figures if f.contestant == name]) for name in names]


def _courses(figures: Sequence[Figure]) -> list[Line]:
    """Of what is compared, not of what it is compared with: those stand at 0."""
    return [Line(figure.contestant, list(enumerate(figure.course, 1))) for figure in figures if figure.at]


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
    """The sizes for one kind of server."""
    return argparse.Namespace(**{name: _chosen(size, backend) for name, size in sizes.items()})


def _chosen(size: Any, backend: str) -> Any:
    return size[backend] if isinstance(size, Mapping) else size

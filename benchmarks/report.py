"""Report: medians of the runs as one table, and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Run

HEADINGS = (
    "consumers",
    "contestant",
    "jobs/s",
    "min - max",
    "of the first",
    "of 1 consumer",
    "empty claims",
    "run again",
    "clients' cores",
    "busy cores",
)


@dataclass(frozen=True)
class Medians:
    """What the runs of one contestant with one number of consumers come to."""

    consumers: int
    contestant: str
    rate: float
    slowest: float
    fastest: float
    empty: float
    """The share of claims that took nothing."""
    again: float
    client_cores: float
    busy_cores: float


def medians(runs: Iterable[Run]) -> list[Medians]:
    """In the order of the runs."""
    groups: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.consumers, run.contestant), []).append(run)
    return [_median(consumers, contestant, group) for (consumers, contestant), group in groups.items()]


def _median(consumers: int, contestant: str, runs: Sequence[Run]) -> Medians:
    rates = [run.rate for run in runs]
    return Medians(
        consumers=consumers,
        contestant=contestant,
        rate=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        empty=median(run.empty / run.claims for run in runs),
        again=median(run.again for run in runs),
        client_cores=median(run.client_cores for run in runs),
        busy_cores=median(run.busy_cores for run in runs),
    )


def table(runs: Iterable[Run]) -> str:
    """One line a contestant and number of consumers.

    `of the first` is the ratio to the first contestant with as many consumers, `of 1 consumer` to the contestant
    itself with the fewest.
    """
    lines = [HEADINGS, *_lines(medians(runs))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _lines(all_medians: list[Medians]) -> Iterable[tuple[str, ...]]:
    first = {m.consumers: m for m in reversed(all_medians)}
    fewest = {m.contestant: m for m in reversed(all_medians)}
    for m in all_medians:
        yield (
            str(m.consumers),
            m.contestant,
            f"{m.rate:,.0f}",
            f"{m.slowest:,.0f} - {m.fastest:,.0f}",
            f"{m.rate / first[m.consumers].rate:.2f}",
            f"{m.rate / fewest[m.contestant].rate:.2f}",
            f"{m.empty:.0%}",
            f"{m.again:g}",
            f"{m.client_cores:.1f}",
            f"{m.busy_cores:.1f}",
        )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if i == 1 else text.rjust(width)
        for i, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def write(path: Path, facts: dict[str, Any], runs: Sequence[Run]) -> None:
    """Everything, for a machine to read."""
    measured = {"runs": [{**asdict(run), "rate": run.rate} for run in runs]}
    summary = {"medians": [asdict(m) for m in medians(runs)]}
    path.write_text(json.dumps({**facts, **summary, **measured}, indent=2) + "\n")

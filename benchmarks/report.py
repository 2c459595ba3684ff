"""Report: what was measured, as samples; their medians as one table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Run

NOT_KNOWN = "-"
CLIENT = "client ms/1,000"
"""Milliseconds of CPU for 1,000 jobs."""
SERVER = "server ms/1,000"
"""Milliseconds of CPU for 1,000 jobs."""
DISK = "disk"
"""The share of the time in which somebody waited for it."""
LOG = "log bytes a job"
DEAD = "dead rows a job"

Value = float | str | None


@dataclass(frozen=True)
class Sample:
    """One measurement of one contestant."""

    contestant: str
    at: float
    """What a scenario varies: how many consumers, how large a batch."""
    value: float
    also: Mapping[str, Value] = field(default_factory=dict)
    """What else was seen of it, by its heading. None: not known."""
    course: Sequence[float] = ()
    """The value in each second, where a scenario follows it."""


@dataclass(frozen=True)
class Figure:
    """What the samples of one contestant at one place come to."""

    contestant: str
    at: float
    value: float
    """The median."""
    least: float
    most: float
    also: Mapping[str, Value]
    """Medians of numbers; of words the most frequent."""
    course: Sequence[float]
    """Second by second the median."""


def figures(samples: Iterable[Sample]) -> list[Figure]:
    """In the order of the samples."""
    groups: dict[tuple[float, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.at, sample.contestant), []).append(sample)
    return [_figure(contestant, at, group) for (at, contestant), group in groups.items()]


def _figure(contestant: str, at: float, group: Sequence[Sample]) -> Figure:
    values = [sample.value for sample in group]
    return Figure(
        contestant=contestant,
        at=at,
        value=median(values),
        least=min(values),
        most=max(values),
        also={name: _middle([sample.also.get(name) for sample in group]) for name in group[0].also},
        course=[median(second) for second in zip(*(sample.course for sample in group), strict=False)],
    )


def _middle(values: Sequence[Value]) -> Value:
    known = [value for value in values if value is not None]
    if not known:
        return None
    words = [value for value in known if isinstance(value, str)]
    if words:
        return Counter(words).most_common(1)[0][0]
    return median(value for value in known if not isinstance(value, str))


# --- as a table ----------------------------------------------------------------------------------------------


def lines(all_figures: Sequence[Figure], varies: str, unit: str) -> list[tuple[str, ...]]:
    """The heading, then one line a figure.

    `of the first` is the ratio to the first contestant at the same place, `of n ...` that to the contestant itself at
    the first place where it was measured.
    """
    names = list(dict.fromkeys(name for figure in all_figures for name in figure.also))
    first = {figure.at: figure for figure in reversed(all_figures)}
    earliest = {figure.contestant: figure for figure in reversed(all_figures)}
    heading = (varies, "contestant", unit, "min - max", "of the first", "of its first", *names)
    return [heading, *(_line(figure, names, first, earliest) for figure in all_figures)]


def _line(
    figure: Figure, names: Sequence[str], first: Mapping[float, Figure], earliest: Mapping[str, Figure]
) -> tuple[str, ...]:
    return (
        f"{figure.at:,.10g}",
        figure.contestant,
        said(figure.value),
        f"{said(figure.least)} - {said(figure.most)}",
        f"{figure.value / first[figure.at].value:.2f}",
        f"{figure.value / earliest[figure.contestant].value:.2f}",
        *(said(figure.also.get(name)) for name in names),
    )


def said(value: Value) -> str:
    """A number with three digits that count, and all of a large one's."""
    if value is None or isinstance(value, str):
        return value or NOT_KNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def aligned(table_lines: Sequence[tuple[str, ...]]) -> str:
    """Numbers to the right, names to the left."""
    widths = [max(map(len, column)) for column in zip(*table_lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in table_lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if i == 1 else text.rjust(width)
        for i, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


# --- of runs -------------------------------------------------------------------------------------------------


def sample(run: Run, at: float | None = None) -> Sample:
    """A drain as a sample, by the number of consumers where nothing else is said."""
    server = run.server_cost
    also: dict[str, Value] = {
        "empty claims": f"{run.empty / run.claims:.0%}" if run.claims else None,
        "run again": run.again,
        CLIENT: run.client_cost * 1000,
        SERVER: None if server is None else server * 1000,
        LOG: run.each(run.log_bytes),
        DEAD: run.each(run.dead_rows),
        "busy cores": run.busy_cores,
        DISK: run.disk,
        "limit": run.limit or None,
    }
    return Sample(run.contestant, run.consumers if at is None else at, run.rate, also)


def table(runs: Iterable[Run]) -> str:
    """Drains, one line a contestant and number of consumers."""
    return aligned(lines(figures(map(sample, runs)), "consumers", "jobs/s"))


def write(path: Path, facts: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """Drains and what is known of them, for a machine to read."""
    samples = [asdict(sample(run)) for run in runs]
    path.write_text(json.dumps({**facts, "samples": samples}, indent=1) + "\n", encoding="utf-8")

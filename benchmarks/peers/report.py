"""Report: medians of the runs beside those of claimjobs at the same batch size; as a table, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.catalogue import CLAIMJOBS
from benchmarks.peers.race import Outcome
from benchmarks.report import DEAD, LOG, said

HEADINGS = (
    "workers",
    "contestant",
    "batch",
    "jobs",
    "jobs/s",
    "min - max",
    "claimjobs / it",
    "clients' cores",
    "busy cores",
    LOG,
    DEAD,
)


@dataclass(frozen=True)
class Absence:
    """A system without a figure. Said, never left out."""

    title: str
    why: str


@dataclass(frozen=True)
class Medians:
    """What the runs of one contestant with one number of workers come to."""

    contestant: str
    batch: int
    workers: int
    jobs: int
    rate: float
    slowest: float
    fastest: float
    ratio: float | None
    """Of claimjobs at the same batch size with as many workers to this one; None where claimjobs has no figure."""
    client_cores: float
    busy_cores: float
    log_bytes: float | None
    dead_rows: float | None


def medians(outcomes: Iterable[Outcome]) -> list[Medians]:
    """In the order of the first runs, grouped by the number of workers."""
    groups: dict[tuple[int, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.workers, outcome.contestant), []).append(outcome)
    ours = {
        (group[0].workers, group[0].batch): median(one.rate for one in group)
        for group in groups.values()
        if _is_ours(group[0])
    }
    return [_median(group, ours) for group in groups.values()]


def _is_ours(outcome: Outcome) -> bool:
    return outcome.contestant.partition(",")[0] == CLAIMJOBS.title


def _median(group: Sequence[Outcome], ours: Mapping[tuple[int, int], float]) -> Medians:
    first, rates = group[0], [one.rate for one in group]
    beside = ours.get((first.workers, first.batch))
    return Medians(
        contestant=first.contestant,
        batch=first.batch,
        workers=first.workers,
        jobs=first.jobs,
        rate=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        ratio=beside and beside / median(rates),
        client_cores=median(one.client_cores for one in group),
        busy_cores=median(one.busy_cores for one in group),
        log_bytes=_middle([one.log_bytes for one in group]),
        dead_rows=_middle([one.dead_rows for one in group]),
    )


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def table(outcomes: Iterable[Outcome], absences: Sequence[Absence] = ()) -> str:
    """One line a contestant and number of workers, then who has none and why."""
    lines = [HEADINGS, *map(_cells, medians(outcomes))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join([*(_aligned(line, widths) for line in lines), *_told(absences)])


def _told(absences: Sequence[Absence]) -> Iterator[str]:
    for absence in absences:
        yield f"NOT RUN: {absence.title}: {absence.why}"


def _cells(line: Medians) -> tuple[str, ...]:
    return (
        str(line.workers),
        line.contestant,
        f"{line.batch:,}",
        f"{line.jobs:,}",
        f"{line.rate:,.0f}",
        f"{line.slowest:,.0f} - {line.fastest:,.0f}",
        "" if line.ratio is None else f"{line.ratio:.2f}",
        f"{line.client_cores:.1f}",
        f"{line.busy_cores:.1f}",
        said(line.log_bytes),
        said(line.dead_rows),
    )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if i == 1 else text.rjust(width)
        for i, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def as_json(outcomes: Sequence[Outcome], absences: Sequence[Absence]) -> dict[str, Any]:
    """Everything, for a machine to read."""
    return {
        "medians": [asdict(line) for line in medians(outcomes)],
        "not_run": [asdict(absence) for absence in absences],
        "runs": [{**asdict(outcome), "rate": outcome.rate} for outcome in outcomes],
    }


def write(path: Path, facts: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(facts, indent=1) + "\n")

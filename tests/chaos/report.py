"""The one table of a run, for people and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.chaos.verdict import Verdict

HEADINGS = (
    "database",
    "fault",
    "times",
    "jobs",
    "lost",
    "settled twice",
    "executed twice (bound)",
    "work went on after: median",
    "longest",
    "promises",
)


def cells(verdict: Verdict) -> list[str]:
    """A line of the table."""
    if verdict.skipped:
        return [verdict.database, verdict.fault, *["-"] * 7, f"skipped: {verdict.skipped}"]
    return [
        verdict.database,
        verdict.fault,
        str(verdict.times),
        str(verdict.jobs),
        str(verdict.lost),
        str(verdict.settled_twice),
        f"{verdict.executed_twice} ({verdict.bound})",
        _seconds(verdict.median),
        _seconds(verdict.longest),
        "BROKEN" if verdict.broken else "kept",
    ]


def line(verdict: Verdict) -> str:
    """A line of the log: each cell with its heading, then the broken promises."""
    named = ", ".join(f"{name} {cell}" for name, cell in zip(HEADINGS[2:], cells(verdict)[2:], strict=True))
    return "\n    ! ".join([f"  {verdict.database}: {verdict.fault}: {named}", *verdict.broken])


def show(verdicts: Sequence[Verdict]) -> None:
    """The table, and every promise that was broken."""
    table = Table(*HEADINGS)
    for verdict in verdicts:
        table.add_row(*cells(verdict))
    Console(width=170).print(table)
    for verdict in verdicts:
        for promise in verdict.broken:
            print(f"BROKEN {verdict.database}, {verdict.fault}: {promise}")


def markdown(verdicts: Sequence[Verdict], seed: int) -> str:
    """The table as Markdown."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *map(cells, verdicts)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\nSeed {seed}.\n"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"

"""Shows a run: as a live table, as a line every few seconds, or as JSON lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from claimjobs.cli.console import age, completed, data, log_to, number, show
from claimjobs.key_text import visible
from claimjobs.log_events import PROGRESS
from claimjobs.log_records import LogFormat, TextFormatter, stderr_handler
from claimjobs.report import Report
from claimjobs.workers.run import Snapshot, Summary

log = logging.getLogger("claimjobs.screen")


class Screen:
    """Shows a run while the block lasts: as a line on standard error every few seconds, among those of the log."""

    every = 2.0
    """Seconds between two states that are shown."""

    def __init__(self, log_format: LogFormat = "text") -> None:
        self._log_format = log_format
        self._next = 0.0

    def __enter__(self) -> Self:
        log_to(stderr_handler(self._log_format))
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, snapshot: Snapshot) -> None:
        """Show this state, if the last one was not shown just now."""
        if snapshot.elapsed >= self._next or snapshot.phase == "ended":
            self._next = snapshot.elapsed + self.every
            self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        show(_line(snapshot), err=True)


class LogLines(Screen):
    """A log record, so that all of standard error is in the format of the log."""

    def _show(self, snapshot: Snapshot) -> None:
        log.info("%s", _line(snapshot), extra={"event": PROGRESS, **_plain(snapshot)})


class JsonLines(Screen):
    """One JSON object a line on standard output."""

    def _show(self, snapshot: Snapshot) -> None:
        data(json.dumps({"event": PROGRESS, **_plain(snapshot)}))


class LiveTable(Screen):
    """A table on the terminal, redrawn in place; log lines scroll above it."""

    every = 0.0

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live = Live(console=console, refresh_per_second=5, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        log_to(_LinesAbove(self._console))
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, snapshot: Snapshot) -> None:
        self._live.update(drawn(snapshot))


class _LinesAbove(logging.Handler):
    """Prints log lines above the table, in the colour of their level."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = Text(self.format(record), f"logging.level.{record.levelname.lower()}")
            self._console.print(line, soft_wrap=True)
        except Exception:
            self.handleError(record)


def screen_for(as_json: bool, log_format: LogFormat) -> Screen:
    """JSON lines if asked for; else a live table if standard error is a terminal, otherwise lines."""
    if as_json:
        return JsonLines(log_format)
    if log_format == "json":
        return LogLines(log_format)
    # What is printed there is never read as markup, such as `[/red]`.
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    return LiveTable(console) if console.is_terminal else Screen()


# --- the table -----------------------------------------------------------------------------------------------


def drawn(snapshot: Snapshot) -> Group:
    """The live table."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("consumer", justify="right")
    for title in ("pid", "batch", "jobs", "jobs/s", "restarts"):
        table.add_column(title, justify="right", min_width=9)
    for line in snapshot.consumers:
        pid = "ended" if line.pid is None else str(line.pid)
        figures = (f"{line.batch:,}", f"{line.jobs:,}", f"{line.rate:,.0f}", str(line.restarts))
        table.add_row(str(line.number), pid, *figures)
    headline = Text.assemble(
        (f"{_phase(snapshot)} ", "bold cyan"),
        f"{snapshot.elapsed:.0f} s   ",
        (_pace(snapshot), "bold green"),
        f"   queue length {_or_unknown(snapshot.waiting)}",
    )
    total = snapshot.total
    totals = {**_figures(total), "empty claims": total.empty_claims, "collisions": total.collisions}
    shown = [part for name, count in totals.items() for part in (f"{name} ", (f"{count:,}   ", "bold"))]
    return Group(headline, *_bar(snapshot), Text(), table, Text(), Text.assemble(*shown))


def _bar(snapshot: Snapshot) -> Iterator[Table]:
    """The share of the work that is done, and the time for the rest, if the run has an end."""
    if snapshot.to_come is None:
        return
    done = snapshot.total.done + snapshot.total.dead
    share = done / (done + snapshot.to_come) if done + snapshot.to_come else 1.0
    left = f"{age(snapshot.to_come / snapshot.rate)} left" if snapshot.rate else ""
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=1.0, completed=share, width=40), f"{share:.0%}", left)
    yield row


# --- lines ---------------------------------------------------------------------------------------------------


def summary_lines(summary: Summary) -> list[str]:
    """The summary, for a person."""
    into = f"{summary.generated:,} generated + {summary.before:,} there before"
    out = f"{summary.done:,} done + {summary.failed:,} failed + {_or_unknown(summary.left)} left"
    sign = {None: "?", 0: "="}.get(summary.unaccounted, "≠")
    pace = f"{summary.rate:,.0f} jobs/s over {summary.seconds:.1f} s"
    lines = [f"{into} {sign} {out}", f"{pace}; {_effort(summary.total)}; {summary.total.retried:,} retried"]
    if summary.unaccounted:
        lines.append(
            f"off by {summary.unaccounted:,}: another program works on this table, or a process was killed "
            "between a commit and its report"
        )
    if summary.replaced:
        lines.append(f"processes that died, replaced: {summary.replaced}; jobs reclaimed: {summary.handed_back:,}")
    if summary.retries:
        lines.append(f"{summary.retries:,} wait for their retry{_next(summary)}; --drain-retries waits for them")
    if summary.gave_up is not None:
        lines.append(f"gave up: {completed(summary.gave_up)}")
    return lines


def _next(summary: Summary) -> str:
    """The time of the next retry by the local clock."""
    if summary.next_retry is None:
        return ""
    return f", the next at {datetime.now().astimezone() + timedelta(seconds=summary.next_retry):%Y-%m-%d %H:%M:%S}"


def summary_json(summary: Summary) -> str:
    """The summary as one JSON object."""
    more = {"unaccounted": summary.unaccounted, "rate": summary.rate}
    return json.dumps({"event": "summary", **_plain(summary), **more})


def _plain(numbers: Snapshot | Summary) -> dict[str, Any]:
    """As plain data. `asdict` alone would copy a Counter wrongly: from pairs, which it counts."""
    found = asdict(numbers)
    found["total"]["transients"] = dict(numbers.total.transients)
    del found["total"]["times"]  # the histograms are for --metrics-port
    return found


def _line(snapshot: Snapshot) -> str:
    figures = ", ".join(f"{name} {count:,}" for name, count in _figures(snapshot.total).items())
    waiting = f"queue length {_or_unknown(snapshot.waiting)}"
    return (
        f"{_phase(snapshot)} {snapshot.elapsed:.0f} s: {_pace(snapshot)}, {figures}, {waiting}, "
        f"{_effort(snapshot.total)}"
    )


def _figures(total: Report) -> dict[str, int]:
    return {
        "generated": total.enqueued,
        "claimed": total.claimed,
        "done": total.done,
        "failed": total.dead,
        "retried": total.retried,
    }


def _effort(total: Report) -> str:
    again = "".join(f", {count:,} x {kind}" for kind, count in sorted(total.transients.items()))
    return f"{total.claims:,} claims, {total.empty_claims:,} empty, {total.collisions:,} collisions{again}"


def _phase(snapshot: Snapshot) -> str:
    """The phase; of a pause also the reason."""
    reason = snapshot.pause_reason if snapshot.phase == "paused" else None
    return f"paused ({visible(reason)})" if reason else snapshot.phase


def _pace(snapshot: Snapshot) -> str:
    """The rate; before the run: how many processes are ready."""
    if snapshot.phase != "starting":
        return f"{snapshot.rate:,.0f} jobs/s"
    generators = f", {number(len(snapshot.generators), 'generator')}" if snapshot.generators else ""
    return f"{snapshot.ready} of {number(len(snapshot.consumers), 'consumer')} ready{generators}"


def _or_unknown(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"

"""Shows a run: as a live table, as a line every few seconds, or as JSON lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from claimjobs.cli.bursts import Bursts
from claimjobs.cli.console import completed, data, log_to, number, show
from claimjobs.instants import age
from claimjobs.key_text import visible
from claimjobs.log_events import PROGRESS
from claimjobs.log_records import LogFormat, TextFormatter, stderr_handler
from claimjobs.report import Report
from claimjobs.workers.run import Snapshot, Summary

EVERY: Final = 30.0
"""Seconds between two lines: a log is kept for long, and a run may be idle for days."""

log = logging.getLogger("claimjobs.screen")


class Screen:
    """Shows a run while the block lasts: as a line on standard error, among those of the log.

    A new phase is shown at once; within a phase the state is shown now and then, and only if it has changed.
    """

    def __init__(self, log_format: LogFormat = "text", every: float = EVERY, *, verbose: bool = False) -> None:
        """`every`: the seconds between two states that are shown. `verbose`: with the claims and what they met."""
        self._log_format, self._every, self._verbose = log_format, every, verbose
        self._bursts = Bursts()
        self._next = 0.0
        self._shown: tuple[object, ...] = ()

    def __enter__(self) -> Self:
        self._log_to(stderr_handler(self._log_format))
        return self

    def __exit__(self, *_: object) -> None:
        self._bursts.tell()

    def _log_to(self, handler: logging.Handler) -> None:
        """Write the log by this handler: as text that a person reads, without the rest of a burst."""
        if self._log_format == "text" and not self._verbose:
            handler.addFilter(self._bursts)
        log_to(handler)

    def update(self, snapshot: Snapshot) -> None:
        """Show this state, if it is news and the last one was not shown just now."""
        news = _phase(snapshot), _figures(snapshot.total), snapshot.waiting, snapshot.ready
        if news == self._shown:
            return
        if snapshot.elapsed >= self._next or news[:1] != self._shown[:1]:
            self._next = snapshot.elapsed + self._every
            self._shown = news
            self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        show(_line(snapshot, verbose=self._verbose), err=True)


class Quiet(Screen):
    """The log, and no state of the run."""

    def update(self, snapshot: Snapshot) -> None:
        """Show nothing."""


class LogLines(Screen):
    """A log record, so that all of standard error is in the format of the log."""

    def _show(self, snapshot: Snapshot) -> None:
        line = _line(snapshot, verbose=self._verbose)
        log.info("%s", line, extra={"event": PROGRESS, **_plain(snapshot)})


class JsonLines(Screen):
    """One JSON object a line on standard output."""

    def _show(self, snapshot: Snapshot) -> None:
        data(json.dumps({"event": PROGRESS, **_plain(snapshot)}))


class LiveTable(Screen):
    """A table on the terminal, redrawn in place; log lines scroll above it."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        self._console = console
        self._live = Live(console=console, refresh_per_second=5, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._log_to(_LinesAbove(self._console))
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Show this state: the time passes, too."""
        self._live.update(drawn(snapshot, verbose=self._verbose))


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


def screen_for(
    as_json: bool, log_format: LogFormat, every: float | None = None, *, quiet: bool = False, verbose: bool = False
) -> Screen:
    """JSON lines if asked for; else a live table if standard error is a terminal, otherwise lines. `every`: the seconds
    between two of them; None: the default, or the live table. `quiet`: no state is shown.
    """
    if quiet:
        return Quiet(log_format)
    seconds = EVERY if every is None else every
    if as_json:
        return JsonLines(log_format, seconds, verbose=verbose)
    if log_format == "json":
        return LogLines(log_format, seconds, verbose=verbose)
    # What is printed there is never read as markup, such as `[/red]`.
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if console.is_terminal and every is None:
        return LiveTable(console, verbose=verbose)
    return Screen(log_format, seconds, verbose=verbose)


# --- the table -----------------------------------------------------------------------------------------------


def drawn(snapshot: Snapshot, *, verbose: bool = False) -> Group:
    """The live table. `verbose`: with claims that got nothing, and candidates that others had locked."""
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
    totals = _figures(total)
    if verbose:
        totals |= {"empty claims": total.empty_claims, "collisions": total.collisions}
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


def summary_lines(summary: Summary, *, has_balance: bool = False, verbose: bool = False) -> list[str]:
    """The summary, for a person. `has_balance`: the run had the table for itself, so that its jobs must add up.

    `verbose`: with its claims, and what they met.
    """
    done = f"{summary.done:,} done, {summary.failed:,} dead, {summary.total.retried:,} failed and tried again"
    lines = [f"{done}; {_or_unknown(summary.left)} left in the queue"]
    if has_balance:
        into = f"{summary.generated:,} generated + {summary.before:,} there before"
        out = f"{summary.done:,} done + {summary.failed:,} dead + {_or_unknown(summary.left)} left"
        difference = f", {summary.unaccounted:+,} not accounted for" if summary.unaccounted else ""
        lines = [f"{into} = {out}{difference}"]
    pace = f"{summary.rate:,.0f} jobs/s over {summary.seconds:.1f} s"
    lines.append("; ".join([pace, *_effort(summary.total, verbose=verbose)]))
    if summary.replaced:
        died = f"processes that died, replaced: {summary.replaced}; jobs reclaimed: {summary.handed_back:,}"
        lines.append(f"{died}; what each of them did last may not be counted")
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


def _line(snapshot: Snapshot, *, verbose: bool) -> str:
    figures = [f"{name} {count:,}" for name, count in _figures(snapshot.total).items()]
    waiting = f"queue length {_or_unknown(snapshot.waiting)}"
    parts = [_pace(snapshot), *figures, waiting, *_effort(snapshot.total, verbose=verbose)]
    return f"{_phase(snapshot)} {snapshot.elapsed:.0f} s: {', '.join(parts)}"


def _figures(total: Report) -> dict[str, int]:
    return {
        "generated": total.enqueued,
        "claimed": total.claimed,
        "done": total.done,
        "dead": total.dead,
        "retried": total.retried,
    }


def _effort(total: Report, *, verbose: bool) -> Iterator[str]:
    """Which transactions ran again; if `verbose`, the claims, and the candidates that others had locked before."""
    if verbose:
        yield f"{total.claims:,} claims, {total.empty_claims:,} empty, {total.collisions:,} collisions"
    yield from (f"{count:,} x {kind}" for kind, count in sorted(total.transients.items()))


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

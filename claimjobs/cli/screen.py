"""Shows a run: as a live table, as a line every few seconds, or as JSON lines."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from claimjobs.cli.console import can_redraw, data, json_line, number, show
from claimjobs.instants import age
from claimjobs.key_text import visible
from claimjobs.log_events import FAILURES_COUNTED, JOB_DEAD, JOB_RETRY, PROGRESS
from claimjobs.log_records import LogFormat, TextFormatter, stderr_handler
from claimjobs.report import Report
from claimjobs.workers.run import Snapshot, Summary, ended

LINE_EVERY_SECONDS: Final = 30.0
"""Seconds between two lines: a log is kept for long, and a run may be idle for days."""
FAILURES_SHOWN: Final = 3
"""How many failures by the same error have a line each."""
BURST_SECONDS: Final = 5.0
"""Seconds after which the further ones are counted in a line. Without any in that time, the burst is over."""

log = logging.getLogger("claimjobs.screen")
settle_log = logging.getLogger("claimjobs.settle")


class Bursts(logging.Filter):
    """Of many jobs that fail by the same error a text log has the first ones, and how many more there were."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counter[tuple[str, str, int]]()
        """Records by event, error and level."""
        self._guard = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        event, error = getattr(record, "event", None), str(getattr(record, "error", ""))
        if event not in (JOB_RETRY, JOB_DEAD):
            return True
        with self._guard:
            self._counts[event, error, record.levelno] += 1
            return self._counts[event, error, record.levelno] <= FAILURES_SHOWN

    def tell(self) -> None:
        """Log how many more there were of each burst. Call it every BURST_SECONDS, and at the end."""
        with self._guard:
            counted = {kind: count for kind, count in self._counts.items() if count > FAILURES_SHOWN}
            self._counts = Counter(dict.fromkeys(counted, FAILURES_SHOWN))  # these go on, the others are over
        for (event, error, level), count in counted.items():
            became = "dead" if event == JOB_DEAD else "to run again"
            fields = {"event": FAILURES_COUNTED, "jobs": count - FAILURES_SHOWN, "error": error}
            words = "%s, %s, by the same error: %s"
            settle_log.log(level, words, number(count - FAILURES_SHOWN, "more failure"), became, error, extra=fields)


class Screen:
    """Shows a run, and writes the log, while the block lasts.

    A new phase is shown at once; within a phase the state is shown now and then, and only if it has changed.
    """

    def __init__(
        self,
        log_format: LogFormat = "text",
        every: float | None = None,
        *,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        terminal: Console | None = None,
    ) -> None:
        """The state is a JSON object on standard output (`as_json`), a record of a log of JSON, a table on a terminal,
        or else a line on standard error, `every` so many seconds. `quiet`: it is not shown. `verbose`: with the claims
        and what they met. `terminal`: where the table is drawn; None: on standard error, if that is one.
        """
        self._log_format, self._every = log_format, LINE_EVERY_SECONDS if every is None else every
        self._as_json, self._quiet, self._verbose = as_json, quiet, verbose
        self._bursts = Bursts()
        self._tell_at = self._next = 0.0
        self._shown: tuple[object, ...] = ()
        if terminal is None and every is None and log_format == "text" and not (quiet or as_json):
            # What is printed there is never read as markup, such as `[/red]`.
            terminal = Console(stderr=True, markup=False, emoji=False, highlight=False)
            terminal = terminal if can_redraw(terminal) else None
        self._live: Live | None = None
        if terminal is not None:
            self._live = Live(console=terminal, refresh_per_second=5, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        handler = stderr_handler(self._log_format) if self._live is None else _LinesAbove(self._live.console)
        if self._log_format == "text" and not self._verbose:
            handler.addFilter(self._bursts)
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bursts.tell()
        if self._live is not None:
            self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Show this state, if it is news and the last one was not shown just now. The table is always drawn anew."""
        if snapshot.elapsed >= self._tell_at:
            self._tell_at = snapshot.elapsed + BURST_SECONDS
            self._bursts.tell()
        if self._live is not None:
            self._live.update(drawn(snapshot, verbose=self._verbose))
            return
        phase, figures = _phase(snapshot), _figures(snapshot.total)
        news = phase, figures, snapshot.waiting, snapshot.ready
        is_early = snapshot.elapsed < self._next and news[:1] == self._shown[:1]
        if self._quiet or is_early or news == self._shown:
            return
        self._next, self._shown = snapshot.elapsed + self._every, news
        parts = [_pace(snapshot), *(f"{name} {count:,}" for name, count in figures.items())]
        parts += [f"queue length {_or_unknown(snapshot.waiting)}", *_effort(snapshot.total, verbose=self._verbose)]
        line = f"{phase} {snapshot.elapsed:.0f} s: {', '.join(parts)}"
        if self._as_json:
            data(json_line({"event": PROGRESS, **_plain(snapshot)}))
        elif self._log_format == "json":
            log.info("%s", line, extra={"event": PROGRESS, **_plain(snapshot)})
        else:
            show(line, err=True)


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
    parts: list[Any] = [headline]
    if snapshot.to_come is not None:  # the share of the work that is done, and the time for the rest
        done = sum(ended(snapshot.total).values())
        share = done / (done + snapshot.to_come) if done + snapshot.to_come else 1.0
        left = f"{age(snapshot.to_come / snapshot.rate)} left" if snapshot.rate else ""
        parts.append(Table.grid(padding=(0, 1)))
        parts[-1].add_row(ProgressBar(total=1.0, completed=share, width=40), f"{share:.0%}", left)
    totals = _figures(snapshot.total)
    if verbose:
        totals |= {"empty claims": snapshot.total.empty_claims, "collisions": snapshot.total.collisions}
    shown = [part for name, count in totals.items() for part in (f"{name} ", (f"{count:,}   ", "bold"))]
    return Group(*parts, Text(), table, Text(), Text.assemble(*shown))


# --- lines ---------------------------------------------------------------------------------------------------


def summary_lines(
    summary: Summary, *, has_balance: bool = False, drains: bool = False, verbose: bool = False
) -> list[str]:
    """The summary, for a person. `has_balance`: the run had the table for itself, so that its jobs must add up.

    `drains`: the run could have waited for retries. `verbose`: with its claims, and what they met.
    """
    out = [f"{count:,} {state}" for state, count in ended(summary.total).items()]
    became = ", ".join([*out, f"{summary.total.retried:,} failed and tried again"])
    lines = [f"{became}; {_or_unknown(summary.left)} left in the queue"]
    if has_balance:
        into = f"{summary.generated:,} generated + {summary.before:,} there before"
        difference = f", {summary.unaccounted:+,} not accounted for" if summary.unaccounted else ""
        lines = [f"{into} = {' + '.join(out)} + {_or_unknown(summary.left)} left{difference}"]
    pace = f"{number(round(summary.rate), 'job')}/s over {summary.seconds:.1f} s"
    lines.append("; ".join([pace, *_effort(summary.total, verbose=verbose)]))
    if summary.replaced:
        died = f"processes that died, replaced: {summary.replaced}; jobs reclaimed: {summary.handed_back:,}"
        lines.append(f"{died}; what each of them did last may not be counted")
    if summary.retries:
        line = f"{summary.retries:,} wait for their retry"
        if summary.next_retry is not None:  # by the local clock
            at = datetime.now().astimezone() + timedelta(seconds=summary.next_retry)
            line += f", the next at {at:%Y-%m-%d %H:%M:%S}"
        lines.append(f"{line}; --drain-retries waits for them" if drains else line)
    if summary.gave_up is not None:
        lines.append(f"gave up: {summary.gave_up}")
    return lines


def summary_json(summary: Summary) -> str:
    """The summary as one JSON object."""
    total, more = summary.total, {"unaccounted": summary.unaccounted, "rate": summary.rate}
    return json_line({"event": "summary", "done": total.done, "failed": total.dead, **_plain(summary), **more})


def _plain(numbers: Snapshot | Summary) -> dict[str, Any]:
    """As plain data. `asdict` alone would copy a Counter wrongly: from pairs, which it counts."""
    found = asdict(numbers)
    found["total"]["transients"] = dict(numbers.total.transients)
    del found["total"]["times"]  # the histograms are for --metrics-port
    return found


def _figures(total: Report) -> dict[str, int]:
    generated = {"generated": total.enqueued} if total.enqueued else {}
    return {**generated, "claimed": total.claimed, **ended(total), "retried": total.retried}


def _effort(total: Report, *, verbose: bool) -> Iterator[str]:
    """Which transactions ran again; if `verbose`, the claims, and the candidates that others had locked before."""
    if verbose:
        yield f"{total.claims:,} claims, {total.empty_claims:,} empty, {total.collisions:,} collisions"
    yield from (f"{count:,} x {kind}" for kind, count in sorted(total.transients.items()))


def _phase(snapshot: Snapshot) -> str:
    reason = snapshot.pause_reason if snapshot.phase == "paused" else None
    return f"paused ({visible(reason)})" if reason else snapshot.phase


def _pace(snapshot: Snapshot) -> str:
    """The rate; before the run: how many processes are ready."""
    if snapshot.phase != "starting":
        return f"{number(round(snapshot.rate), 'job')}/s"
    generators = f", {number(len(snapshot.generators), 'generator')}" if snapshot.generators else ""
    return f"{snapshot.ready} of {number(len(snapshot.consumers), 'consumer')} ready{generators}"


def _or_unknown(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"

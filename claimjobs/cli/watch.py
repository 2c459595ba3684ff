"""`claimjobs watch`: a queue on the terminal, redrawn every few seconds, with keys for what an operator does."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import termios
import tty
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final

import click
import sqlalchemy as sa
from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.table import Table
from rich.text import Text

from claimjobs.admin.overview import COUNTED_STATES, History, Overview, outlook
from claimjobs.cli.console import asks as somebody_answers
from claimjobs.cli.console import can_redraw, log_as_messages, number, show
from claimjobs.cli.jobs import found_by_ids
from claimjobs.cli.options import AT_LEAST_1, Seconds
from claimjobs.cli.queue_options import Target, queue_options
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError
from claimjobs.instants import age
from claimjobs.key_text import key_in_message, visible
from claimjobs.metrics.page import FAILED, KEYS, OWNERS, failed_rows, key_rows, owner_rows
from claimjobs.queue.queue import Queue
from claimjobs.signals import graceful, on_signals

READ_EVERY_SECONDS: Final = 2.0
"""Seconds between two readings."""
HELP: Final = "p pause   r resume   t retry   c cancel   q quit"
QUESTIONS: Final = {
    "p": "pause the queue, for this reason (Enter: none, Esc: do not): ",
    "r": "end the pause? Enter: yes, Esc: no ",
    "t": "retry which dead jobs? ids, or all: ",
    "c": "cancel which jobs? ids: ",
}
QUIT: Final = ("q", "\x04")
ENTER: Final = ("\r", "\n")
ERASE: Final = ("\x7f", "\b")
ESCAPE: Final = "\x1b"
BARS: Final = "▁▂▃▄▅▆▇█"
NUMBERS: Final = ("jobs", "change/s", "owner", "holds", "heartbeat", "failures")
"""The titles of columns that are aligned to the right."""
ABOVE_OWNERS: Final = 8
"""Lines above the owners: the headline, the states, how long the oldest waits, and blank lines."""


@click.command()
@click.option("--every", type=Seconds(), default=READ_EVERY_SECONDS, help="Read the queue so often.")
@click.option("--times", type=AT_LEAST_1, metavar="N", help="End after so many readings.")
@queue_options
def watch(target: Target, every: float, times: int | None) -> None:
    """Show a queue until q or Ctrl-C: jobs by state with their course, owners, the last dead jobs; with --per-key
    also the keys that wait longest for their turn, and those that a limit or a rate holds back.

    p pauses the queue, r ends the pause, t retries dead jobs, c cancels jobs; each asks first. Without a terminal, and
    on one that can draw nothing again (TERM=dumb), it prints a line for each reading.

    Jobs are counted up to 10,000 in each state, so that no reading takes long: `10,000+` means so many or more. The
    change of a state is per second, over the last 30 s.

    \b
    Examples:
      claimjobs watch
      claimjobs watch --table emails --every 5
      claimjobs watch --times 1 > now.txt
    """
    with target.queue() as queue, log_as_messages():
        console = Console(markup=False, emoji=False, highlight=False)
        if can_redraw(console) and somebody_answers():
            _Watch(queue).on_screen(console, every, times)
            return
        history = History()
        with graceful(queue.stop, queue.stop):
            for reading in count(1):
                history.add(seen := queue.overview())
                show(line(seen, history))
                if reading == times or queue.stopping:
                    return
                queue.wait(every)


class _Watch:
    """A queue on a terminal, and the question that is being answered there."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._history = queue, History()
        self._key: str | None = None
        """The key of the question that is being answered; None: nothing is asked."""
        self._typed = ""
        self._says = ""
        """What became of the last answer."""
        self._ends = False

    def on_screen(self, console: Console, every: float, times: int | None) -> None:
        """Redraw until it is ended. What fails is told in the last line, and tried again."""
        with _keys_at_once(), Live(console=console, screen=True, auto_refresh=False) as live:
            self._history.add(seen := self._queue.overview())
            for reading in count(1):
                asks = self._says if self._key is None else QUESTIONS[self._key] + self._typed
                live.update(screen(seen, self._history, console.size, asks=asks), refresh=True)
                if self._ends or (times is not None and reading >= times and self._key is None):
                    return
                if select.select([sys.stdin], [], [], every)[0]:
                    for key in os.read(sys.stdin.fileno(), 1_024).decode(errors="ignore") or QUIT[0]:
                        if not self._ends:
                            self._press(key)
                try:
                    self._history.add(seen := self._queue.overview())
                except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                    self._says, self._key = f"the queue cannot be read: {visible(reason(error))}", None

    def _press(self, key: str) -> None:
        if self._key is None:
            self._ends = key in QUIT
            self._key, self._typed, self._says = (key if key in QUESTIONS else None), "", ""
        elif key in ENTER:
            self._says, self._key = self._done(self._key, self._typed.strip()), None
        elif key == ESCAPE:
            self._key = None
        elif key in ERASE:
            self._typed = self._typed[:-1]
        elif key.isprintable():
            self._typed += key

    def _done(self, key: str, answer: str) -> str:
        queue = self._queue
        try:
            if key == "p":
                queue.pause(answer or None)
                return "paused: consumers notice it within a fifth of their lease"
            if key == "r":
                return "goes on" if queue.resume() else "it was not paused"
            keys = None
            if key == "c" or answer != "all":
                found, missing = found_by_ids(queue, shlex.split(answer))
                if missing:
                    return f"nothing is done: no row has the key {', '.join(map(key_in_message, missing))}"
                keys = [entry.key for entry in found]
            return f"{queue.jobs.retry(keys)} retried" if key == "t" else f"{len(queue.cancel(keys or ()))} cancelled"
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            return visible(reason(error))
        except (click.BadParameter, ValueError) as error:  # also a quotation mark without another
            return str(error)


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let each key be read at once, and show none, for a `with` block, which Ctrl-C and SIGTERM end."""

    def interrupt(_number: int) -> None:
        raise KeyboardInterrupt

    before = termios.tcgetattr(sys.stdin)
    try:
        with suppress(KeyboardInterrupt), on_signals(interrupt, signal.SIGTERM):
            tty.setcbreak(sys.stdin)
            yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# --- what is drawn -------------------------------------------------------------------------------------------


def line(seen: Overview, history: History) -> str:
    """The queue in one line."""
    owners = ", ".join(f"{jobs:,} {life}" for life, jobs in seen.backlog.owners.items() if jobs)
    parts = [*(f"{seen.count(state)} {state}" for state in COUNTED_STATES), *outlook(seen, history)]
    if owners:
        parts.append(f"owners: {owners}")
    if seen.retrying:
        worst = seen.retrying[0]
        times = "" if worst.failures is None else f" ({number(worst.failures, 'failure')})"
        parts.append(f"job {key_in_message(worst.key)}{times}: {_one_line(worst.error)}")
    paused = f"{_paused(seen)}, " if seen.paused is not None else ""
    return f"{seen.now:%H:%M:%S} {seen.table}: {paused}{', '.join(parts)}"


def screen(seen: Overview, history: History, size: tuple[int, int], *, asks: str = "") -> Layout:
    """The queue, to fit a terminal of this width and height: the states always, owners, keys and failed jobs as far as
    there is room. `asks`: the last line; empty: which keys there are.
    """
    width, height = size
    room = height - ABOVE_OWNERS - 1
    keys = max(0, min(len(seen.keys), room // 3))
    room -= keys + 2 if keys else 0
    most = max(0, room // 3, room - len(seen.owners) - 4)
    dead = min(len(seen.dead), max(most // 2, most - len(seen.retrying)))
    failed = list(failed_rows(seen, most - dead, dead))
    room = max(0, room - 1 - (len(failed) + 2 if failed else 0))
    shown = len(seen.owners) if len(seen.owners) <= room else max(0, room - 1)

    state, style = ("running", "green") if seen.has_consumers else ("no consumer is running", "yellow")
    if seen.paused is not None:
        state, style = _paused(seen), "yellow"
    now = f"  {seen.now:%Y-%m-%d %H:%M:%S} UTC"
    headline = Text.assemble((visible(seen.table), "bold cyan"), "  ", (state, style), now)
    bars = {of: sparkline([jobs for _, jobs in history.counts(of)], max(0, width - 40)) for of in COUNTED_STATES}
    states = [(of, seen.count(of), history.shown_change(of), bars[of]) for of in COUNTED_STATES]
    parts: list[Text | Table] = [headline, Text(), _table(("state", "jobs", "change/s", ""), states)]
    parts += [Text(" · ".join(outlook(seen, history))), Text()]
    if seen.owners:
        more = [("", f"{len(seen.owners) - shown:,} more", "", "", "")] if 0 < room < len(seen.owners) else []
        parts.append(_table(OWNERS, [*owner_rows(seen, shown), *more]))
    else:
        parts.append(Text("no owner is registered: nobody claims by lease", "dim"))
    if keys:
        parts += [Text(), _table(KEYS, key_rows(seen, keys))]
    if failed:
        parts += [Text(), _table(FAILED, failed)]
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    last = Text(asks or HELP, "bold" if asks else "dim", no_wrap=True, overflow="ellipsis")
    layout = Layout()
    layout.split_column(Layout(Group(*parts)), Layout(last, size=1))
    return layout


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of one line for each row. What is dead is red, what waits is yellow."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        style = "red" if "dead" in row else "yellow" if titles is FAILED or "held back" in str(row[-1]) else None
        table.add_row(*(_one_line(str(cell)) for cell in row), style=style)
    return table


def sparkline(values: Sequence[int], width: int) -> str:
    """The last values as bars, one for each column; the highest is the largest of them."""
    shown = values[-width:]
    most = max(shown, default=0)
    return "".join(BARS[round((len(BARS) - 1) * value / most)] if most else BARS[0] for value in shown)


def _paused(seen: Overview) -> str:
    reason = f" ({visible(seen.pause_reason)})" if seen.pause_reason else ""
    return f"paused for {age(seen.paused or 0)}{reason}"


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))

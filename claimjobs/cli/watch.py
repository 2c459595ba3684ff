"""`claimjobs watch`: a queue on the terminal, redrawn every few seconds, with keys for what an operator does."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click
import sqlalchemy as sa
from rich.console import Console
from rich.live import Live

from claimjobs.admin.overview import History
from claimjobs.cli.console import asks as somebody_answers
from claimjobs.cli.console import log_as_messages, on_terminal, show
from claimjobs.cli.jobs import keys_of
from claimjobs.cli.options import AT_LEAST_1, Seconds
from claimjobs.cli.queue_options import Target, queue_options
from claimjobs.cli.watch_screen import WatchScreen, line
from claimjobs.database.error_translation import reason
from claimjobs.errors import ClaimjobsError
from claimjobs.key_text import visible
from claimjobs.queue.queue import Queue
from claimjobs.signals import graceful, on_signals

EVERY: Final = 2.0
"""Seconds between two readings."""
ENTER: Final = ("\r", "\n")
ERASE: Final = ("\x7f", "\b")
CANCEL: Final = "\x1b"


@click.command()
@click.option("--every", type=Seconds(), default=EVERY, help="Read the queue so often.")
@click.option("--times", type=AT_LEAST_1, metavar="N", help="End after so many readings.")
@queue_options
def watch(target: Target, every: float, times: int | None) -> None:
    """Show a queue until q or Ctrl-C: jobs by state with their course, owners, the last dead jobs; with --per-key
    also the keys that wait longest for their turn, and those that a limit or a rate holds back.

    p pauses the queue, r ends the pause, t retries dead jobs, c cancels jobs; each asks first. Without a terminal it
    prints a line for each reading.

    Jobs are counted up to 10,000 in each state, so that no reading takes long: `10,000+` means so many or more. The
    change of a state is per second, over the last 30 s.

    \b
    Examples:
      claimjobs watch
      claimjobs watch --table emails --every 5
      claimjobs watch --times 1 > now.txt
    """
    with target.queue() as queue, log_as_messages():
        if on_terminal() and somebody_answers():
            _Watch(queue, every, times).on_screen()
        else:
            with graceful(queue.stop, queue.stop):
                _print_lines(queue, every, times)


def _print_lines(queue: Queue, every: float, times: int | None) -> None:
    history, count = History(), 0
    while not queue.stopping:
        seen = queue.overview()
        history.add(seen)
        show(line(seen, history))
        count += 1
        if count == times:
            return
        queue.wait(every)


class _Watch:
    """A queue on a terminal, and the question that is being answered there."""

    def __init__(self, queue: Queue, every: float, times: int | None) -> None:
        self._queue, self._every, self._left = queue, every, times
        self._history = History()
        self._says: str | None = None
        """A question, or what became of the last answer; None: the keys."""
        self._answer: str | None = None
        """What is typed as the answer to the question; None: nothing is asked."""
        self._key = ""
        self._ends = False

    def on_screen(self) -> None:
        """Redraw until it is ended. What fails is told in the last line, and tried again."""
        console = Console(markup=False, emoji=False, highlight=False)
        with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            seen = self._queue.overview()
            self._history.add(seen)
            while True:
                question = None if self._says is None else self._says + (self._answer or "")
                live.update(WatchScreen(seen, self._history, asks=question), refresh=True)
                if self._ends or not self._goes_on():
                    return
                try:
                    seen = self._queue.overview()
                    self._history.add(seen)
                except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
                    self._says, self._answer = f"the queue cannot be read: {visible(reason(error))}", None

    def _goes_on(self) -> bool:
        """Wait for the next reading, and react to keys meanwhile. False after the last one, or `q`."""
        if self._left is not None:
            self._left -= 1
        deadline = time.monotonic() + self._every
        while (seconds := deadline - time.monotonic()) > 0:
            if self._left == 0 and self._answer is None:
                return False
            if select.select([sys.stdin], [], [], seconds)[0]:
                for key in os.read(sys.stdin.fileno(), 1_024).decode(errors="ignore") or "q":
                    self._press(key)
                return True
        return True

    def _press(self, key: str) -> None:
        if self._answer is None:
            self._begin(key)
        elif key in ENTER:
            answer, self._answer = self._answer, None
            self._says = self._done(answer.strip())
        elif key in ERASE:
            self._answer = self._answer[:-1]
        elif key == CANCEL:
            self._answer = self._says = None
        elif key.isprintable():
            self._answer += key

    def _begin(self, key: str) -> None:
        questions = {
            "p": "pause the queue, for this reason (Enter: none, Esc: do not): ",
            "r": "end the pause? Enter: yes, Esc: no ",
            "t": "retry which dead jobs? ids, or all: ",
            "c": "cancel which jobs? ids: ",
        }
        self._ends = key in ("q", "\x04")
        self._key, self._says = key, questions.get(key)
        self._answer = "" if key in questions else None

    def _done(self, answer: str) -> str:
        """Do what was asked; what became of it."""
        queue = self._queue
        try:
            if self._key == "p":
                queue.pause(answer or None)
                return "paused: consumers notice it within a fifth of their lease"
            if self._key == "r":
                return "goes on" if queue.resume() else "it was not paused"
            everything = self._key == "t" and answer == "all"
            keys = None if everything else keys_of(queue.roles.key, answer.split())
            return (
                f"{queue.jobs.retry(keys)} retried"
                if self._key == "t"
                else f"{len(queue.cancel(keys or ()))} cancelled"
            )
        except click.BadParameter as error:
            return error.message
        except (ClaimjobsError, sa.exc.SQLAlchemyError) as error:
            return visible(reason(error))


@contextmanager
def _keys() -> Iterator[None]:
    """Let each key be read at once, and show none, for a `with` block, which Ctrl-C and SIGTERM end."""
    before = termios.tcgetattr(sys.stdin)
    try:
        with suppress(KeyboardInterrupt), on_signals(_interrupt, signal.SIGTERM):
            tty.setcbreak(sys.stdin)
            yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _interrupt(_number: int) -> None:
    raise KeyboardInterrupt

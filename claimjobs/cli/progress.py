"""The progress of a file on standard error: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import Protocol, Self

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from claimjobs.cli.console import number, say, terminal
from claimjobs.key_text import visible

EVERY = 5.0
"""Seconds between two lines."""


class ProgressWatch(Protocol):
    """Shows the progress, and prints messages meanwhile."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def at(self, rows: int, position: int) -> None: ...
    def say(self, message: str) -> None: ...


class Bar:
    """A bar with the share of bytes and the number of rows. For a file of unknown size it only moves."""

    def __init__(self, size: int | None) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rows]}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=terminal(stderr=True), transient=True)
        self._task = self._bar.add_task("enqueue", total=size, rows="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def at(self, rows: int, position: int) -> None:
        self._bar.update(self._task, completed=position, rows=number(rows, "row"))

    def say(self, message: str) -> None:
        self._bar.console.print(visible(f"claimjobs: {message}"), soft_wrap=True)


class Lines:
    """A line every few seconds, for a log."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._next = time.monotonic() + EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def at(self, rows: int, position: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            share = f", {position / self._size:.0%} of the file" if self._size else ""
            say(f"{number(rows, 'row')} read{share}")

    def say(self, message: str) -> None:
        say(message)


def watch(size: int | None) -> ProgressWatch:
    """A bar if standard error is a terminal, otherwise lines."""
    return Bar(size) if sys.stderr.isatty() else Lines(size)

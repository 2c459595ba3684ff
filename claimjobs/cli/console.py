"""What a person reads: messages, numbers and ages."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from claimjobs.database.masking import masked

URLS = "claimjobs.urls"
"""Under this name all contexts of a command line share what was given."""


def say(message: str) -> None:
    """A message without secrets, on standard error: standard output is for data."""
    click.echo(f"claimjobs: {masked(message, urls_of(click.get_current_context(silent=True)))}", err=True)


def write_nowhere(stream: IO[Any]) -> None:
    """Nobody takes what is written there: what Python still has of it, and more, goes nowhere, without an error."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def log_said() -> Iterator[None]:
    """What the library has to tell is said while the block lasts."""
    log, handler = logging.getLogger("claimjobs"), _Saying()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def on_terminal() -> bool:
    """Whether a person sees standard output."""
    return sys.stdout.isatty()


def asks() -> bool:
    """Whether a person can be asked: both a question and its answer have a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def number(count: int, thing: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def age(seconds: float) -> str:
    """`3 s`, `2 min 3 s`, `5 h 2 min`, `12 d 4 h`: the two largest units."""
    rest = round(seconds)
    counts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in counts[:2] if count) or "0 s"


def urls_of(context: click.Context | None) -> list[str]:
    """The URLs that were given, whose secrets must not be shown."""
    return [] if context is None else list(context.meta.get(URLS, ()))

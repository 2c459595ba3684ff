"""What a person reads: messages, numbers and ages."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click


def say(message: str) -> None:
    """A message, on standard error: standard output is for data."""
    click.echo(f"claimjobs: {message}", err=True)


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


def without_passwords(text: str, urls: Iterable[str] = ()) -> str:
    """The text with every password in it hidden: those of the URLs given, and of any URL that stands in it."""
    for password in {found for url in urls for found in _passwords(url)}:
        text = text.replace(password, "***")
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def _passwords(url: str) -> list[str]:
    """As it is written in the URL, and as it is sent. The last @ ends it, also where it should have been quoted."""
    from urllib.parse import unquote, unquote_plus  # noqa: PLC0415

    found = re.match(r"[^:]*://[^:/@]*:(.*)@", url)
    return [p for p in (found[1], unquote(found[1]), unquote_plus(found[1])) if p] if found else []
